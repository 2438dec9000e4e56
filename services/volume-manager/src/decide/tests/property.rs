//! Pods come and go, steps end as they please: a pod's mount always follows the node's, and when plugins behave at last
//! the volume is mounted for exactly the pods that want it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use stowage_runtime::told::Known;

use super::super::Action;
use super::super::expand::Expansion;
use super::super::volume::{Attachment, Snapshot, Wanted, decide};
use super::*;
use crate::actual_state::ActualStateOfWorld;
use MountState::{Mounted, Uncertain};

#[derive(Debug, Clone)]
enum Event {
    PodComes(u8),
    PodGoes(u8),
    /// The next step ends so: 0 done, 1 failed for good, 2 nobody knows.
    Step(u8),
    Restart,
}

#[derive(Default)]
struct Model {
    live: BTreeSet<String>,
    actual: ActualStateOfWorld,
}

impl Model {
    fn known(&self) -> Option<&AttachedVolume> {
        self.actual.iter().next().map(|(_, known)| known)
    }

    fn snapshot(&self) -> Snapshot {
        let wanted = self
            .live
            .iter()
            .map(|uid| (uid.clone(), Wanted { pod: pod(uid, json!({})), mount: mount(), told: Known::default() }));
        Snapshot {
            volume: volume(),
            wanted: wanted.collect(),
            actual: self.known().cloned(),
            live: self.live.iter().cloned().collect(),
            traits: traits(),
            unreachable: None,
            not_ready: None,
            attachment: Attachment::Attached,
            records: BTreeMap::new(),
            pods_unresolved: false,
            expansion: Expansion::NotNeeded,
        }
    }

    /// Carries out the next actions with this end; false if there is nothing to do.
    fn step(&mut self, end: u8) -> bool {
        let actions = decide(&self.snapshot(), now()).actions;
        let some = !actions.is_empty();
        actions.into_iter().for_each(|action| self.carry_out(action, end));
        some
    }

    fn carry_out(&mut self, action: Action, end: u8) {
        let (name, spec) = (volume(), spec());
        let reconstructed = self.known().is_some_and(|known| known.is_reconstructed);
        let state = match end {
            0 => Some(Mounted),
            1 => None,
            _ => Some(Uncertain),
        };
        match action {
            Action::MountDevice { .. } => {
                let state = if end == 1 && reconstructed { Some(Uncertain) } else { state };
                self.actual.update(&name, &spec, |known| {
                    known.device = state;
                    known.is_reconstructed &= end != 0;
                });
            }
            Action::SetUp { pod, .. } => {
                let device = self.known().and_then(|known| known.device);
                assert_eq!(device, Some(Mounted), "M1: published without stage");
                let state = if end == 1 && reconstructed { Some(Uncertain) } else { state };
                self.actual.set_pod(&name, &spec, &pod.meta.uid, state.map(mounted));
            }
            Action::TearDown { uid, .. } => {
                assert!(!self.live.contains(&uid), "a live pod lost its volume");
                if end == 0 {
                    self.actual.set_pod(&name, &spec, &uid, None);
                }
            }
            Action::UnmountDevice { .. } => {
                assert!(self.known().is_some_and(|known| known.pods.is_empty()), "M1: unstaged while published");
                if end == 0 {
                    self.actual.set_device(&name, &spec, None);
                }
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn restart(&mut self) {
        let Some(known) = self.known().cloned() else { return };
        self.actual.update(&volume(), &known.spec, |known| {
            known.is_reconstructed = true;
            known.device = Some(Uncertain);
            known.pods.values_mut().for_each(|pod| (pod.state, pod.is_reconstructed) = (Uncertain, true));
        });
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0_u8..3).prop_map(Event::PodComes),
        (0_u8..3).prop_map(Event::PodGoes),
        (0_u8..3).prop_map(Event::Step),
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
                Event::Step(end) => { model.step(end); }
                Event::Restart => model.restart(),
            }
        }
        // One round of leaving pods, one mount, three pods, one unmount at most.
        let rounds = (0..10).take_while(|_| model.step(0)).count();
        prop_assert!(rounds < 8, "no fixpoint after {rounds} rounds");
        let pods = model.known().map(|known| known.pods.clone()).unwrap_or_default();
        prop_assert_eq!(&pods.keys().cloned().collect::<BTreeSet<_>>(), &model.live);
        prop_assert!(pods.values().all(|pod| pod.state == Mounted));
        prop_assert_eq!(model.known().is_some(), !model.live.is_empty());
    }
}
