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
        for (resource, table) in &mut self.tables {
            while let Some(event) = table.pop_unpublished(self.published) {
                let gone = (event.event_type != EventType::Deleted).then_some(&*event.object);
                self.dependents.change(*resource, &event.key, gone, event.previous.as_deref());
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
        self.aside.discard_unpublished();
        self.read_definitions();
        self.read_expiry();
        Some(lost)
    }
}
