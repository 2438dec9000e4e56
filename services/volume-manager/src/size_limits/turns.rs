//! Whose turn it is to be measured: nobody who waits is passed by one who comes later.

use std::collections::{BTreeMap, VecDeque};

/// Those that wait, in the order in which they came.
pub struct Turns<K, T> {
    waiting: VecDeque<(K, T)>,
}

impl<K, T> Default for Turns<K, T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<K: Ord, T> Turns<K, T> {
    /// Takes what is found now: those that wait keep their places, those that are gone lose theirs, and the rest comes after.
    pub fn look(&mut self, mut found: BTreeMap<K, T>) {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        self.waiting = waiting.filter_map(|(key, _)| found.remove_entry(&key)).collect();
        self.waiting.extend(found);
    }

    pub fn pop(&mut self) -> Option<(K, T)> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four at a time, each for longer than the pause between two looks: those first in the alphabet come again and again.
    #[test]
    fn the_last_in_the_alphabet_is_measured_though_the_others_take_long_and_come_again_at_once() {
        let all = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "z"];
        let mut turns = Turns::default();
        let mut under_way: Vec<&str> = Vec::new();
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        for _ in 0..10 {
            turns.look(all.into_iter().filter(|name| !under_way.contains(name)).map(|name| (name, ())).collect());
            under_way = std::iter::from_fn(|| turns.pop()).take(4).map(|(name, ())| name).collect();
            under_way.iter().for_each(|name| *times.entry(name).or_default() += 1);
        }
        assert!(all.iter().all(|name| times.get(name) >= Some(&3)), "{times:?}");
    }

    #[test]
    fn what_is_gone_loses_its_turn_and_what_is_found_again_is_what_was_found_last() {
        let mut turns = Turns::default();
        turns.look([("a", 1), ("b", 1), ("c", 1)].into());
        assert_eq!(turns.pop(), Some(("a", 1)));
        turns.look([("a", 2), ("c", 2)].into());
        assert_eq!([turns.pop(), turns.pop(), turns.pop()], [Some(("c", 2)), Some(("a", 2)), None]);
    }
}
