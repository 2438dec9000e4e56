use std::sync::{Mutex, PoisonError};

/// Volumes on their way to a node, in the order in which they set out: two that are attached at once must not both take
/// the last place.
#[derive(Debug, Default)]
pub struct Arrivals(Mutex<Vec<(String, String)>>);

impl Arrivals {
    /// Returns who set out before to the same node. To be called before those that have arrived are counted.
    pub fn set_out(&self, node: &str, volume: &str) -> (Arrival<'_>, Vec<String>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = waiting.iter().filter(|(other, _)| other == node).map(|(_, volume)| volume.clone()).collect();
        let place = (node.to_owned(), volume.to_owned());
        waiting.push(place.clone());
        (Arrival { arrivals: self, place }, earlier)
    }
}

/// Ends on drop.
pub struct Arrival<'a> {
    arrivals: &'a Arrivals,
    place: (String, String),
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let mut waiting = self.arrivals.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|place| *place != self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sees_those_who_set_out_before_it_to_the_same_node() {
        let arrivals = Arrivals::default();
        let (first, before_first) = arrivals.set_out("a", "one");
        let (_second, before_second) = arrivals.set_out("a", "two");
        let (_other, before_other) = arrivals.set_out("b", "three");
        assert!(before_first.is_empty() && before_other.is_empty());
        assert_eq!(before_second, ["one"]);
        drop(first);
        assert_eq!(arrivals.set_out("a", "four").1, ["two"]);
    }
}
