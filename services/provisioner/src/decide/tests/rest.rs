//! Repeated deciding comes to rest, without a leak.

use proptest::prelude::*;
use serde_json::json;

use stowage_model::finalizers::SNAPSHOT_SOURCE_OF_PROVISIONER;
use stowage_model::names::VolumeHandle;

use super::*;
use crate::fixture::{DRIVER, facts, made, read, volume_with};
use crate::snapshot::{LookedUp, SourceSnapshot};
use crate::source::tests::{content_with, found_snapshot, looked, restoring, snapshot_with};
use crate::source::{Found, Look, Need, Origin, Restorable};

fn content() -> Option<Record<Look>> {
    looked(State::Done(content_with(|_| {})))
}

/// What the driver answers to one call.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Done,
    /// The driver's last word about this call: it has made nothing. What an earlier one made is still there.
    Final,
    /// A word about the request itself: a driver that had made the volume would have found it first.
    Infeasible,
    /// The worst kind: done, and nobody knows.
    Uncertain,
}

/// A world small enough to be one struct: applies actions as `apply` would and lets the driver answer.
#[derive(Debug, Default)]
struct World {
    claim: Option<Arc<Claim>>,
    volume: bool,
    recorded: Option<Recorded>,
    creation: Option<Record<Made>>,
    cleanup: Option<Record<VolumeHandle>>,
    told: Known,
    in_driver: bool,
    /// Whether the snapshot that the claim names carries our finalizer.
    held: bool,
    /// What was found of the VolumeAttributesClass that the claim names.
    attributes: Option<Record<LookedUp>>,
    clock: i64,
}

impl World {
    fn source(&self) -> Restorable {
        let finalizers: &[&str] = if self.held { &[SNAPSHOT_SOURCE_OF_PROVISIONER] } else { &[] };
        snapshot_with(|snapshot| snapshot["metadata"]["finalizers"] = json!(finalizers))
    }

    fn uses_source(&self) -> bool {
        self.recorded.as_ref().is_some_and(|recorded| recorded.intent.request.source.is_some())
    }

    /// What the key of the source is decided to need.
    fn look_at_source(&mut self, facts: &Facts) {
        let Found { origin, object, .. } = found_snapshot(self.source(), content());
        let facts = Arc::new(facts.clone());
        let claim = stowage_model::object::Key::namespaced("shop", "db");
        let users = if self.uses_source() { vec![claim] } else { Vec::new() };
        let need = Need::default();
        let (others, told) = (Vec::new(), Known::default());
        let s = SourceSnapshot { facts, origin, object, users, others, need, is_awaited: false, told };
        for action in super::super::decide(&Snapshot::Source(Box::new(s)), later(self.clock)).actions {
            assert!(matches!(action, Action::Unprotect { .. }), "{action:?}");
            self.held = false;
        }
    }

    fn snapshot(&self, facts: &Facts) -> ClaimSnapshot {
        ClaimSnapshot {
            facts: Arc::new(facts.clone()),
            claim: self.claim.clone(),
            class: Some(Arc::new(class_with(|_| {}))),
            volume: if self.volume { View::Known(volume_with(|_| {})) } else { View::Absent },
            recorded: self.recorded.clone(),
            creation: self.creation.clone(),
            cleanup: self.cleanup.clone(),
            owner: None,
            cluster: Cluster::default(),
            source: self
                .claim
                .as_ref()
                .and_then(|claim| Origin::of(claim))
                .map(|_| found_snapshot(self.source(), content())),
            is_unprotected: !self.held && self.uses_source(),
            is_source_going: false,
            is_source_gone: false,
            are_attributes_unserved: false,
            attributes: self.attributes.clone(),
            bid: None,
            room: None,
            told: self.told.clone(),
        }
    }

    fn carry_out(&mut self, action: Action, answer: Answer) {
        let at = later(self.clock);
        let record = |state| Some(Record { state, since: at, failures: 1, retry_at: at });
        match action {
            Action::Record(intent) => {
                if self.recorded.as_ref().is_none_or(|recorded| recorded.intent != intent) {
                    self.attributes = None;
                }
                self.recorded = Some(Recorded { intent, durable: true, maybe_made: false, inherited: false });
            }
            Action::LookUp(name) => {
                let class = json!({ "metadata": { "name": name }, "driverName": DRIVER, "parameters": { "a": "b" } });
                let class = Some(read(class, |_| {}));
                let state = State::Done(LookedUp { name, class });
                self.attributes = Some(Record { state, since: at, failures: 0, retry_at: at });
            }
            Action::Create { .. } => {
                let recorded = self.recorded.as_mut().expect("no call before its record");
                assert!(recorded.durable, "no call before its record is durable");
                let is_filled = recorded.intent.request.source.is_some();
                assert!(self.held || !is_filled, "no call before its source is held");
                // What `calls` concludes from the answer; what the driver has is not changed by a refusal.
                recorded.maybe_made = match answer {
                    Answer::Done | Answer::Uncertain => true,
                    Answer::Final => recorded.maybe_made,
                    Answer::Infeasible if self.in_driver => true,
                    Answer::Infeasible => false,
                };
                // It rests, and is taken off its page at some time.
                recorded.durable = recorded.maybe_made;
                self.in_driver |= matches!(answer, Answer::Done | Answer::Uncertain);
                self.creation = record(match answer {
                    Answer::Done => State::Done(made()),
                    // A driver that has the volume finds it before it judges the request.
                    Answer::Infeasible if self.in_driver => State::Done(made()),
                    Answer::Infeasible => State::Failed(failure("InvalidArgument")),
                    Answer::Final => State::Failed(failure("Internal")),
                    Answer::Uncertain => State::Uncertain(failure("DeadlineExceeded")),
                });
            }
            Action::Protect(_) => self.held = true,
            Action::MakeVolume { .. } => {
                assert!(!self.volume, "one claim never has two volumes");
                self.volume = true;
            }
            Action::CleanUp { handle, .. } => {
                self.in_driver &= !matches!(answer, Answer::Done);
                self.cleanup = Some(Record {
                    state: match answer {
                        Answer::Done => State::Done(handle),
                        Answer::Final | Answer::Infeasible => State::Failed(failure("Internal")),
                        Answer::Uncertain => State::Uncertain(failure("DeadlineExceeded")),
                    },
                    since: at,
                    failures: 1,
                    retry_at: at,
                });
            }
            Action::Forget => {
                (self.recorded, self.creation, self.cleanup, self.attributes) = (None, None, None, None);
            }
            Action::Tell(note) => self.told = Known::of((), note, later(2700)),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// The process dies: only the API's and the driver's state remain, and of a record not that nothing was made. One that
    /// rests may be off its page.
    fn crash(&mut self, is_off: bool) {
        self.recorded.take_if(|recorded| !recorded.durable && is_off);
        self.creation = None;
        self.cleanup = None;
        self.attributes = None;
        self.told = Known::default();
        if let Some(recorded) = &mut self.recorded {
            (recorded.durable, recorded.maybe_made) = (true, true);
        }
    }
}

proptest! {
    #[test]
    fn whatever_the_driver_answers_and_whenever_we_crash_or_the_claim_goes_deciding_ends_without_a_leak(
        answers in proptest::collection::vec(
            prop_oneof![
                Just(Answer::Done), Just(Answer::Final), Just(Answer::Infeasible), Just(Answer::Uncertain),
            ], 0..6),
        crashes in proptest::collection::btree_map(0..16_usize, any::<bool>(), 0..4),
        deleted_at in proptest::option::of(0..12_usize),
        filled in any::<bool>(),
        attributed in any::<bool>(),
    ) {
        let facts = facts();
        let mut answers = answers.into_iter();
        let claim = claim_with(|claim| {
            if filled {
                claim["spec"]["dataSource"] = restoring();
            }
            if attributed {
                claim["spec"]["volumeAttributesClassName"] = "gold".into();
            }
        });
        let mut world = World { claim: Some(Arc::new(claim)), ..World::default() };
        let mut resting = false;
        for round in 0..64 {
            if deleted_at == Some(round) {
                world.claim = None;
            }
            if let Some(is_off) = crashes.get(&round) {
                world.crash(*is_off);
            }
            world.clock += 600;
            let decision = decide(&world.snapshot(&facts), later(world.clock));
            resting = decision.actions.is_empty();
            for action in decision.actions {
                let answer = if matches!(action, Action::Create { .. } | Action::CleanUp { .. }) {
                    answers.next().unwrap_or(Answer::Done)
                } else {
                    Answer::Done
                };
                world.carry_out(action, answer);
            }
            world.look_at_source(&facts);
        }
        prop_assert!(resting, "no fixpoint: {:?}", world);
        prop_assert!(world.recorded.is_none());
        prop_assert!(!world.held, "nothing is made from the source, and it is still held");
        prop_assert_eq!(world.in_driver, world.volume, "a volume without an owner, or an object without a volume");
        prop_assert!(world.volume || deleted_at.is_some());
    }
}
