//! Pods come and go, calls end as they please: publishing always follows staging, and when the driver behaves at last
//! the volume is mounted for exactly the pods that want it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use stowage_runtime::told::Known;

use super::super::Action;
use super::super::volume::{Attachment, Held, Snapshot, Wanted, decide};
use super::*;
use crate::world::{Hold, Published, Staged};

#[derive(Debug, Clone)]
enum Event {
    PodComes(u8),
    PodGoes(u8),
    /// The next call ends so: 0 done, 1 failed for good, 2 nobody knows.
    Call(u8),
    Restart,
}

#[derive(Default)]
struct Model {
    live: BTreeSet<String>,
    staged: Option<Staged>,
    published: BTreeMap<String, Published>,
}

impl Model {
    fn snapshot(&self) -> Snapshot {
        let wanted = self
            .live
            .iter()
            .map(|uid| (uid.clone(), Wanted { pod: pod(uid, json!({})), usage: usage(), told: Known::default() }));
        let published = self.published.iter().map(|(uid, published)| {
            (uid.clone(), Held { published: published.clone(), pod_is_live: self.live.contains(uid) })
        });
        Snapshot {
            volume: volume(),
            wanted: wanted.collect(),
            published: published.collect(),
            staged: self.staged.clone(),
            driver: Some(driver()),
            attachment: Attachment::Attached,
            records: BTreeMap::new(),
            pods_unresolved: false,
        }
    }

    /// Carries out the next call with this end; false if there is nothing to do.
    fn step(&mut self, end: u8) -> bool {
        let Some(action) = decide(&self.snapshot(), now()).actions.into_iter().next() else {
            return false;
        };
        match action {
            Action::Stage { .. } => {
                self.staged = match end {
                    0 => Some(Staged { hold: Hold::Mounted, reconstructed: false }),
                    1 => self.staged.take().filter(|staged| staged.reconstructed),
                    _ => Some(Staged { hold: Hold::Uncertain, reconstructed: false }),
                };
            }
            Action::Publish { pod, .. } => {
                let is_staged = self.staged.as_ref().is_some_and(|staged| staged.hold == Hold::Mounted);
                assert!(is_staged, "M1: published without stage");
                let spec_name = "pv".to_owned();
                let published = match end {
                    0 => Some(Published { spec_name, hold: Hold::Mounted, reconstructed: false }),
                    1 => None,
                    _ => Some(Published { spec_name, hold: Hold::Uncertain, reconstructed: false }),
                };
                match published {
                    Some(published) => self.published.insert(pod.meta.uid.clone(), published),
                    None => self.published.remove(&pod.meta.uid),
                };
            }
            Action::Unpublish { uid, .. } => {
                assert!(!self.live.contains(&uid), "a live pod lost its volume");
                if end == 0 {
                    self.published.remove(&uid);
                }
            }
            Action::Unstage { .. } => {
                assert!(self.published.is_empty(), "M1: unstaged while published");
                if end == 0 {
                    self.staged = None;
                }
            }
            other => panic!("unexpected {other:?}"),
        }
        true
    }

    fn restart(&mut self) {
        for published in self.published.values_mut() {
            (published.hold, published.reconstructed) = (Hold::Uncertain, true);
        }
        if let Some(staged) = &mut self.staged {
            (staged.hold, staged.reconstructed) = (Hold::Uncertain, true);
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0_u8..3).prop_map(Event::PodComes),
        (0_u8..3).prop_map(Event::PodGoes),
        (0_u8..3).prop_map(Event::Call),
        Just(Event::Restart),
    ]
}

proptest! {
    #[test]
    fn any_history_ends_with_the_volume_mounted_for_exactly_the_pods_that_want_it(
        events in proptest::collection::vec(event(), 0..60)
    ) {
        let mut model = Model::default();
        for event in events {
            match event {
                Event::PodComes(pod) => { model.live.insert(format!("pod-{pod}")); }
                Event::PodGoes(pod) => { model.live.remove(&format!("pod-{pod}")); }
                Event::Call(end) => { model.step(end); }
                Event::Restart => model.restart(),
            }
        }
        // Three unpublishes, one stage, three publishes, one unstage at most.
        let rounds = (0..10).take_while(|_| model.step(0)).count();
        prop_assert!(rounds < 9, "no fixpoint after {rounds} rounds");
        let mounted: BTreeSet<String> = model.published.keys().cloned().collect();
        prop_assert_eq!(&mounted, &model.live);
        prop_assert!(model.published.values().all(|published| published.hold == Hold::Mounted));
        prop_assert_eq!(model.staged.is_some(), !model.live.is_empty());
    }
}
