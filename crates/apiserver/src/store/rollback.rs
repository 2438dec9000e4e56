//! Undoing what never became durable.

use super::{EventType, Store};

impl Store {
    /// Takes back every unpublished change; returns the first and last revision undone.
    ///
    /// The head stays where it is: a revision that was given out once is not given out again. The published revision
    /// stays too, as nothing newer is on the disk.
    pub(crate) fn discard_unpublished(&mut self) -> Option<(u64, u64)> {
        if self.head == self.published {
            return None;
        }
        let lost = (self.published + 1, self.head);
        for table in self.tables.values_mut() {
            while table.window.back().is_some_and(|event| event.revision > self.published) {
                let Some(event) = table.window.pop_back() else { break };
                match (event.event_type, event.previous.clone()) {
                    (EventType::Added, _) | (_, None) => {
                        table.objects.remove(&event.key);
                    }
                    (_, Some(previous)) => {
                        table.objects.insert(event.key.clone(), previous);
                    }
                }
            }
        }
        Some(lost)
    }
}
