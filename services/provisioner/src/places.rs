//! The places that a request names, and how they are stored.
//!
//! Where every node is a place of its own, each request names them all. So a list is shared by all requests that name it,
//! in memory and in the journal: there it stands in parts, each once, and records have the names of the parts. A part ends
//! where its last place says so, not after so many, so that a node that comes or goes changes one part and not all that follow.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize, Serializer};

use stowage_model::topology::Segments;

/// A list of so many bytes stands in each record, where older provisioners read it.
const SHORT: usize = 1024;

/// One of so many places ends its part: of five thousand nodes there are twenty parts or so.
const PLACES_OF_A_PART: u64 = 256;

/// A part ends here whatever its last place says.
const PART_BYTES: usize = 64 * 1024;

/// A list of places. Cheap to clone, and to compare with a clone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Places(Arc<List>);

#[derive(Default)]
struct List {
    all: Vec<Segments>,
    /// None of a list that stands whole in each record. Made when they are first asked for.
    parts: OnceLock<Vec<Arc<Part>>>,
}

impl PartialEq for List {
    fn eq(&self, other: &Self) -> bool {
        self.all == other.all
    }
}

impl Eq for List {}

/// A part of a list as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The hash of the text.
    pub name: String,
    /// Its places as JSON.
    pub text: String,
}

impl Places {
    pub fn of(all: Vec<Segments>) -> Self {
        Self(Arc::new(List { all, parts: OnceLock::new() }))
    }

    /// A list that stood whole in its record, and goes on to.
    fn whole(all: Vec<Segments>) -> Self {
        Self(Arc::new(List { all, parts: OnceLock::from(Vec::new()) }))
    }

    /// The list that is stored in these parts.
    pub fn joined(parts: Vec<Arc<Part>>) -> Result<Self, serde_json::Error> {
        let read = parts.iter().map(|part| serde_json::from_str::<Vec<Segments>>(&part.text));
        let all = read.collect::<Result<Vec<_>, _>>()?.concat();
        Ok(Self(Arc::new(List { all, parts: OnceLock::from(parts) })))
    }

    pub fn all(&self) -> &[Segments] {
        &self.0.all
    }

    /// The parts in which it is stored; none if it stands in its record.
    pub fn parts(&self) -> &[Arc<Part>] {
        self.0.parts.get_or_init(|| cut(&self.0.all))
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.all, f)
    }
}

fn cut(all: &[Segments]) -> Vec<Arc<Part>> {
    let texts = all.iter().map(|place| serde_json::to_string(place).expect("maps of texts always serialise"));
    let texts: Vec<String> = texts.collect();
    if texts.iter().map(String::len).sum::<usize>() <= SHORT {
        return Vec::new();
    }
    let (mut parts, mut part) = (Vec::new(), String::new());
    for (index, text) in texts.iter().enumerate() {
        part.push(if part.is_empty() { '[' } else { ',' });
        part.push_str(text);
        let ends = hash(text) / (u64::MAX / PLACES_OF_A_PART) == 0 || part.len() >= PART_BYTES;
        if ends || index + 1 == texts.len() {
            part.push(']');
            let text = std::mem::take(&mut part);
            parts.push(Arc::new(Part { name: format!("{:016x}", hash(&text)), text }));
        }
    }
    parts
}

/// FNV-1a, 64 bits, mixed once more: its upper bits hardly know of the last bytes. Two texts of one hash are told apart by
/// whoever stores them.
fn hash(text: &str) -> u64 {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The places a volume may be reachable from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirement {
    /// One of these.
    pub requisite: Places,
    /// Where the best is among them; those after it follow, then those before.
    pub first: usize,
}

/// A requirement as it is stored, whole or by its parts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Stored {
    requisite: Vec<Segments>,
    preferred: Vec<Segments>,
    parts: Vec<String>,
    first: usize,
}

/// Why what is stored is no requirement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the journal has not all parts of its list of places: {parts:?}")]
    Find { parts: Vec<String> },
    #[error("it prefers other places than it asks for, or none of them")]
    Order,
}

impl Requirement {
    /// The places, best first.
    pub fn preferred(&self) -> impl Iterator<Item = &Segments> {
        let all = self.requisite.all();
        let (before, after) = all.split_at(self.first.min(all.len()));
        after.iter().chain(before)
    }
}

impl Serialize for Requirement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Whole<'a> {
            requisite: &'a [Segments],
            preferred: Vec<&'a Segments>,
        }
        #[derive(Serialize)]
        struct Shared<'a> {
            parts: Vec<&'a str>,
            first: usize,
        }
        match self.requisite.parts() {
            [] => {
                Whole { requisite: self.requisite.all(), preferred: self.preferred().collect() }.serialize(serializer)
            }
            parts => {
                let parts = parts.iter().map(|part| part.name.as_str()).collect();
                Shared { parts, first: self.first }.serialize(serializer)
            }
        }
    }
}

impl Stored {
    /// What was stored; `joined` finds the list of which these are the parts.
    pub fn read(self, joined: impl FnOnce(&[String]) -> Option<Places>) -> Result<Requirement, Error> {
        let Self { requisite, preferred, parts, first } = self;
        if !parts.is_empty() {
            let requisite = joined(&parts).ok_or(Error::Find { parts })?;
            return if first < requisite.all().len() {
                Ok(Requirement { requisite, first })
            } else {
                Err(Error::Order)
            };
        }
        let count = requisite.len();
        let is_order = |first: &usize| {
            preferred.len() == count && (0..count).all(|index| preferred[index] == requisite[(first + index) % count])
        };
        let first = (0..count.max(1)).find(is_order).ok_or(Error::Order)?;
        Ok(Requirement { requisite: Places::whole(requisite), first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes with names of fifty characters.
    fn nodes(numbers: impl Iterator<Item = u32>) -> Places {
        let place = |number| Segments::from([("topology.example/node".to_owned(), format!("node-{number:045}"))]);
        Places::of(numbers.map(place).collect())
    }

    fn names(places: &Places) -> Vec<&str> {
        places.parts().iter().map(|part| part.name.as_str()).collect()
    }

    #[test]
    fn a_short_list_has_no_parts_and_a_long_one_is_its_parts_in_order() {
        assert!(nodes(0..10).parts().is_empty());
        for count in [20, 600, 5_000] {
            let list = nodes(0..count);
            let joined = Places::joined(list.parts().to_vec()).unwrap();
            assert_eq!((joined.all(), names(&joined)), (list.all(), names(&list)));
            assert!(list.parts().iter().all(|part| part.text.len() <= PART_BYTES + 200));
        }
        assert!((8..50).contains(&nodes(0..5_000).parts().len()), "{}", nodes(0..5_000).parts().len());
    }

    #[test]
    fn a_node_that_comes_or_goes_changes_one_part() {
        let all = nodes(0..5_000);
        for gone in [0, 1, 2_500, 4_998] {
            let fewer = nodes((0..5_000).filter(|number| *number != gone));
            let new = names(&fewer).into_iter().filter(|name| !names(&all).contains(name)).count();
            assert!(new <= 2, "{new} parts are new without node {gone}");
        }
    }

    #[test]
    fn what_prefers_other_places_than_it_asks_for_is_none_of_ours() {
        let stored = |text| serde_json::from_str::<Stored>(text).unwrap().read(|_| Some(nodes(0..20)));
        for text in [
            r#"{"requisite":[{"a":"1"},{"a":"2"}],"preferred":[{"a":"1"}]}"#,
            r#"{"requisite":[{"a":"1"},{"a":"2"}],"preferred":[{"a":"2"},{"a":"2"}]}"#,
            r#"{"requisite":[],"preferred":[{"a":"2"}]}"#,
            r#"{"parts":["x"],"first":20}"#,
        ] {
            assert!(matches!(stored(text), Err(Error::Order)), "{text}");
        }
        assert_eq!(stored(r#"{"requisite":[],"preferred":[]}"#).unwrap(), Requirement::default());
        assert_eq!(stored(r#"{"parts":["x"],"first":19}"#).unwrap().preferred().next(), nodes(0..20).all().last());
    }
}
