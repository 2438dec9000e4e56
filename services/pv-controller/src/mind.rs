//! From a key to its decision: the snapshot, what people were told, what operations stand where, and the rules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;

use stowage_model::matching::delays_binding;
use stowage_model::object::Key;
use stowage_runtime::engine::Reserved;
use stowage_runtime::events::Note;
use stowage_runtime::operation::Record;

use crate::decide::{self, Action, ClaimAction, Decision, Source, Subject, Waiting, Why};
use crate::matchmaker::Outcome;
use crate::options::Rules;
use crate::snapshot::{Caches, ClaimSnapshot, PodSnapshot, Told, VolumeSnapshot, Work};

/// What people were last told about each subject by each component.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<BTreeMap<(Subject, Source), Note>>>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Subject, Source), Note>> {
        self.0.lock().expect("no code panics while holding the notes")
    }

    pub fn note(&self, subject: Subject, source: Source, note: Note) {
        self.lock().insert((subject, source), note);
    }

    pub fn forget(&self, subject: &Subject) {
        let mut notes = self.lock();
        for source in [Source::Binder, Source::Expander, Source::Ephemeral] {
            notes.remove(&(subject.clone(), source));
        }
    }

    fn told(&self, subject: &Subject, source: Source) -> Option<Note> {
        self.lock().get(&(subject.clone(), source)).cloned()
    }
}

/// A decision, and the claim that it wakes.
pub struct Thought {
    pub decision: Decision<Action>,
    pub wake: Option<Key>,
}

impl Thought {
    fn of(decision: Decision<Action>) -> Self {
        Self { decision, wake: None }
    }
}

/// Decides on one subject as the caches stand.
pub fn think(
    caches: &Caches,
    rules: &Rules,
    memory: &Memory,
    record: impl Fn(&Work) -> Option<Record<()>>,
    subject: &Subject,
    now: Timestamp,
    reserved: &Reserved,
) -> Thought {
    let gone = || Thought::of(Decision::rest(Why::Gone));
    let told = |source| memory.told(subject, source);
    match subject {
        Subject::Claim(key) => {
            let Some(snapshot) = caches.claim(key, reserved, rules) else { return gone() };
            let told = Told { binder: told(Source::Binder), expander: told(Source::Expander) };
            let snapshot = ClaimSnapshot { told, ..snapshot };
            let decision = decide::claim::decide(&snapshot, now);
            let wake = caches.matchmaker.decided(&snapshot.claim, &outcome(&snapshot, &decision), snapshot.version);
            Thought { decision: decision.map(Action::Claim), wake }
        }
        Subject::Volume(key) => {
            let Some(snapshot) = caches.volume(key, rules) else { return gone() };
            let operation = record(&Work::of(&snapshot.volume));
            let snapshot = VolumeSnapshot { told: told(Source::Binder), operation, ..snapshot };
            Thought::of(decide::volume::decide(&snapshot, now).map(Action::Volume))
        }
        Subject::Pod(key) => {
            let Some(snapshot) = caches.pod(key, rules) else { return gone() };
            let snapshot = PodSnapshot { told: told(Source::Ephemeral), ..snapshot };
            Thought::of(decide::pod::decide(&snapshot).map(Action::Pod))
        }
        Subject::AttributesClass(key) => match caches.attributes_class(key) {
            Some(snapshot) if rules.controllers.attributes_class_protection => {
                Thought::of(decide::attributes_class::decide(&snapshot).map(Action::AttributesClass))
            }
            _ => gone(),
        },
    }
}

fn outcome(s: &ClaimSnapshot, decision: &Decision<ClaimAction>) -> Outcome {
    let delayed = || delays_binding(&s.claim, s.class.as_deref()).unwrap_or(true);
    match &decision.why {
        Why::Bind(pair) => Outcome::Takes(pair.volume.clone()),
        Why::Waiting(Waiting::Volume | Waiting::Provisioner | Waiting::Class) | Why::Provision | Why::DefaultClass
            if !delayed() =>
        {
            Outcome::Waits
        }
        _ => Outcome::Leaves,
    }
}
