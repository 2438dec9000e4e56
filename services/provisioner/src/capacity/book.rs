//! What the lane remembers: where there are nodes with the driver, and what the driver last said about each item.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::topology::Segments;

use super::item::Item;

/// What the driver said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub available: i64,
    pub largest: Option<i64>,
    pub at: Timestamp,
}

/// What is known of one item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub answer: Option<Answer>,
    /// Something happened there since the driver was last asked.
    pub is_stale: bool,
}

#[derive(Debug, Default)]
pub struct Book {
    places: Places,
    seen: BTreeMap<Item, Seen>,
}

/// The places of the nodes that have the driver.
#[derive(Debug, Default)]
struct Places {
    of_nodes: BTreeMap<String, Arc<Segments>>,
    /// How many nodes are in each.
    count: BTreeMap<Arc<Segments>, usize>,
}

impl Places {
    /// Moves a node; says which place has its first node now, and which has lost its last.
    fn set(&mut self, node: &str, place: Option<Segments>) -> Vec<Arc<Segments>> {
        let place = place.map(|place| match self.count.get_key_value(&place) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(place),
        });
        let before = match &place {
            Some(place) => self.of_nodes.insert(node.to_owned(), Arc::clone(place)),
            None => self.of_nodes.remove(node),
        };
        if before == place {
            return Vec::new();
        }
        let mut changed = Vec::new();
        if let Some(place) = place {
            let count = self.count.entry(Arc::clone(&place)).or_default();
            *count += 1;
            if *count == 1 {
                changed.push(place);
            }
        }
        if let Some(before) = before
            && let Some(count) = self.count.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.count.remove(&before);
                changed.push(before);
            }
        }
        changed
    }
}

impl Book {
    /// Says which places came or went.
    pub fn set_place(&mut self, node: &str, place: Option<Segments>) -> Vec<Arc<Segments>> {
        self.places.set(node, place)
    }

    pub fn has_place(&self, place: &Segments) -> bool {
        self.places.count.contains_key(place)
    }

    pub fn places(&self) -> Vec<Arc<Segments>> {
        self.places.count.keys().cloned().collect()
    }

    pub fn seen(&self, item: &Item) -> Seen {
        self.seen.get(item).copied().unwrap_or_default()
    }

    /// The driver is being asked: what happens from here on, its answer may not know.
    pub fn asking(&mut self, item: &Item) {
        self.seen.entry(item.clone()).or_default().is_stale = false;
    }

    pub fn answered(&mut self, item: &Item, answer: Answer) {
        self.seen.entry(item.clone()).or_default().answer = Some(answer);
    }

    /// It was asked in vain, and is asked again.
    pub fn unanswered(&mut self, item: &Item) {
        self.seen.entry(item.clone()).or_default().is_stale = true;
    }

    pub fn forget(&mut self, item: &Item) {
        self.seen.remove(item);
    }

    /// What was said about a class that is another one now.
    pub fn forget_class(&mut self, class: &str) {
        self.seen.retain(|item, _| *item.class != *class);
    }

    /// Something happened in the place; says which items it concerns.
    pub fn stale_place(&mut self, place: &Segments) -> Vec<Item> {
        let first = Item::new(&Arc::new(place.clone()), "");
        let there = self.seen.range_mut(first..).take_while(|(item, _)| *item.place == *place);
        there.map(|(item, seen)| mark(item, seen)).collect()
    }

    /// Something happened somewhere to volumes of the class.
    pub fn stale_class(&mut self, class: &str) -> Vec<Item> {
        let of_class = self.seen.iter_mut().filter(|(item, _)| *item.class == *class);
        of_class.map(|(item, seen)| mark(item, seen)).collect()
    }

    /// Every item for these classes.
    pub fn items(&self, classes: &[Arc<str>]) -> BTreeSet<Item> {
        let of_place = |place: &Arc<Segments>| {
            let place = Arc::clone(place);
            classes.iter().map(move |class| Item { place: Arc::clone(&place), class: Arc::clone(class) })
        };
        self.places.count.keys().flat_map(of_place).collect()
    }
}

fn mark(item: &Item, seen: &mut Seen) -> Item {
    seen.is_stale = true;
    item.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> Segments {
        Segments::from([("zone".to_owned(), name.to_owned())])
    }

    fn changed(places: Vec<Arc<Segments>>) -> Vec<String> {
        places.iter().map(|place| place["zone"].clone()).collect()
    }

    #[test]
    fn a_place_comes_with_its_first_node_and_goes_with_its_last() {
        let mut book = Book::default();
        assert_eq!(changed(book.set_place("n1", Some(zone("a")))), ["a"]);
        assert_eq!(changed(book.set_place("n2", Some(zone("a")))), [""; 0]);
        assert_eq!(changed(book.set_place("n2", Some(zone("a")))), [""; 0]);
        assert_eq!(changed(book.set_place("n2", Some(zone("b")))), ["b"]);
        assert_eq!(changed(book.set_place("n1", Some(zone("b")))), ["a"]);
        assert_eq!(changed(book.set_place("n1", None)), [""; 0]);
        assert_eq!(changed(book.set_place("n2", None)), ["b"]);
        assert_eq!(changed(book.set_place("n2", None)), [""; 0]);
        assert!(book.places().is_empty());
    }

    #[test]
    fn a_driver_without_keys_has_one_place_that_is_everywhere() {
        let mut book = Book::default();
        for node in ["n1", "n2", "n3"] {
            book.set_place(node, Some(Segments::new()));
        }
        assert_eq!(book.items(&["fast".into()]).len(), 1);
        assert!(book.has_place(&Segments::new()));
    }

    #[test]
    fn what_happened_in_a_place_concerns_its_items_alone() {
        let mut book = Book::default();
        for (place, class) in [("a", "fast"), ("a", "slow"), ("b", "fast")] {
            book.asking(&Item::new(&Arc::new(zone(place)), class));
        }
        let names = |items: Vec<Item>| items.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(book.stale_place(&zone("a"))), ["fast in zone=a", "slow in zone=a"]);
        assert_eq!(names(book.stale_class("fast")), ["fast in zone=a", "fast in zone=b"]);
        assert_eq!(names(book.stale_place(&zone("c"))), [""; 0]);
        assert!(book.seen(&Item::new(&Arc::new(zone("a")), "slow")).is_stale);
        book.asking(&Item::new(&Arc::new(zone("a")), "slow"));
        assert!(!book.seen(&Item::new(&Arc::new(zone("a")), "slow")).is_stale);
    }
}
