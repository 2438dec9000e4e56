//! Where in a tree something is, written out only when somebody is told.

use std::fmt;

/// A member of a member, an element of a list: a path whose parts stay where they are.
///
/// Paths as texts, made for each member on the way, take as much work as names are long times members are many.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    Root,
    Member(&'a Place<'a>, &'a str),
    Element(&'a Place<'a>, usize),
    /// Of a map with keys of all kinds.
    Key(&'a Place<'a>, &'a str),
}

impl<'a> Place<'a> {
    pub fn member(&'a self, name: &'a str) -> Self {
        Self::Member(self, name)
    }

    pub fn element(&'a self, index: usize) -> Self {
        Self::Element(self, index)
    }

    pub fn key(&'a self, name: &'a str) -> Self {
        Self::Key(self, name)
    }

    pub fn is_root(&self) -> bool {
        matches!(self, Self::Root)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Member(Self::Root, name) => f.write_str(name),
            Self::Member(around, name) => write!(f, "{around}.{name}"),
            Self::Element(around, index) => write!(f, "{around}[{index}]"),
            Self::Key(around, name) => write!(f, "{around}[{name}]"),
        }
    }
}

/// What is told about some places of one tree: as much of it as anybody reads.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    pub places: Vec<String>,
    written: usize,
}

/// Characters of paths, all together; an answer's warnings have room for 4096.
const MAX_NOTED: usize = 256 << 10;

impl Noted {
    pub fn note(&mut self, place: &Place<'_>) {
        if self.written < MAX_NOTED {
            let place = clipped(place, MAX_NOTED - self.written);
            self.written += place.len();
            self.places.push(place);
        }
    }
}

/// What `shown` looks like, its first `most` bytes.
pub(crate) fn clipped(shown: impl fmt::Display, most: usize) -> String {
    struct Clipped {
        text: String,
        most: usize,
    }
    impl fmt::Write for Clipped {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            let room = self.most.saturating_sub(self.text.len());
            if part.len() <= room {
                self.text.push_str(part);
                return Ok(());
            }
            self.text.push_str(&part[..part.floor_char_boundary(room)]);
            self.text.push('…');
            Err(fmt::Error)
        }
    }
    let mut clipped = Clipped { text: String::new(), most };
    // The only error is that there is no more room.
    let _full = fmt::Write::write_fmt(&mut clipped, format_args!("{shown}"));
    clipped.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_a_path() {
        let spec = Place::Root.member("spec");
        let list = spec.member("list");
        let element = list.element(3);
        assert_eq!(element.member("a").to_string(), "spec.list[3].a");
        assert_eq!(list.key("a.b").member("c").to_string(), "spec.list[a.b].c");
        assert_eq!(Place::Root.to_string(), "");
    }

    #[test]
    fn what_is_noted_and_shown_has_an_end() {
        assert_eq!(clipped("äöü", 3), "ä…");
        assert_eq!(clipped("äöü", 6), "äöü");
        let mut noted = Noted::default();
        let name = "x".repeat(MAX_NOTED / 2 + 1);
        (0..1000).for_each(|_| noted.note(&Place::Root.member(&name)));
        assert_eq!(noted.places.len(), 2);
    }
}
