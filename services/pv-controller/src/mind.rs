//! From a key to its decision: the snapshot, what people were told, what operations stand where, and the rules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::{SignedDuration, Timestamp};

use stowage_model::matching::delays_binding;
use stowage_model::object::Key;
use stowage_runtime::engine::Reserved;
use stowage_runtime::events::Note;
use stowage_runtime::operation::Record;

use crate::decide::{self, Action, ClaimAction, Decision, Source, Subject, Waiting, Why};
use crate::matchmaker::Outcome;
use crate::options::Rules;
use crate::snapshot::{Caches, ClaimSnapshot, PodSnapshot, Told, VolumeSnapshot, Work};

/// API servers keep events for an hour: what still holds is told again before it is forgotten.
const AGAIN: SignedDuration = SignedDuration::from_mins(45);

/// When to try again what nobody could be told, because too many other events waited.
const UNTOLD: SignedDuration = SignedDuration::from_mins(1);

struct Telling {
    note: Note,
    again_at: Timestamp,
}

/// What people were last told about each subject by each component.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<BTreeMap<(Subject, Source), Telling>>>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Subject, Source), Telling>> {
        self.0.lock().expect("no code panics while holding the notes")
    }

    /// Notes what is being told, or what had to be left for later.
    pub fn note(&self, subject: Subject, source: Source, note: Note, is_told: bool, now: Timestamp) {
        let again_at = now.saturating_add(if is_told { AGAIN } else { UNTOLD }).unwrap_or(Timestamp::MAX);
        self.lock().insert((subject, source), Telling { note, again_at });
    }

    pub fn forget(&self, subject: &Subject) {
        let mut notes = self.lock();
        if notes.is_empty() {
            return;
        }
        for source in Source::ALL {
            notes.remove(&(subject.clone(), source));
        }
    }

    fn told(&self, subject: &Subject, source: Source, now: Timestamp) -> Option<Note> {
        let notes = self.lock();
        let telling = notes.get(&(subject.clone(), source)).filter(|telling| now < telling.again_at);
        telling.map(|telling| telling.note.clone())
    }

    /// When something about the subject is to be told again. What was due and was not told does not hold any more.
    fn again_at(&self, subject: &Subject, now: Timestamp) -> Option<Timestamp> {
        let mut notes = self.lock();
        let mut earliest = None;
        for source in Source::ALL {
            let at = (subject.clone(), source);
            match notes.get(&at).map(|telling| telling.again_at) {
                Some(due) if due <= now => _ = notes.remove(&at),
                Some(due) => earliest = earliest.into_iter().chain([due]).min(),
                None => {}
            }
        }
        earliest
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

/// Everything that a decision is made from, at one moment.
pub struct Mind<'a, R> {
    pub caches: &'a Caches,
    pub rules: &'a Rules,
    pub memory: &'a Memory,
    /// What is known of the work of reclaiming.
    pub record: R,
    pub reserved: &'a Reserved,
    pub now: Timestamp,
}

impl<R: Fn(&Work) -> Option<Record<()>>> Mind<'_, R> {
    /// Decides on one subject as the caches stand, and when to tell again what it waits for.
    pub fn think(&self, subject: &Subject) -> Thought {
        let mut thought = self.decide(subject);
        let decision = &mut thought.decision;
        match (subject, &decision.why) {
            _ if !decision.actions.is_empty() => {}
            // A claim that has its volume waits for nothing that was ever told.
            (Subject::Claim(_), Why::Settled) => self.memory.forget(subject),
            _ => decision.wake_at = decision.wake_at.into_iter().chain(self.memory.again_at(subject, self.now)).min(),
        }
        thought
    }

    fn decide(&self, subject: &Subject) -> Thought {
        let gone = || Thought::of(Decision::rest(Why::Gone));
        let told = |source| self.memory.told(subject, source, self.now);
        match subject {
            Subject::Claim(key) => {
                let Some(snapshot) = self.caches.claim(key, self.reserved, self.rules) else { return gone() };
                let told = Told { binder: told(Source::Binder), expander: told(Source::Expander) };
                let snapshot = ClaimSnapshot { told, ..snapshot };
                let decision = decide::claim::decide(&snapshot, self.now);
                let wake =
                    self.caches.matchmaker.decided(&snapshot.claim, &outcome(&snapshot, &decision), snapshot.version);
                Thought { decision: decision.map(Action::Claim), wake }
            }
            Subject::Volume(key) => {
                let Some(snapshot) = self.caches.volume(key, self.rules) else { return gone() };
                let operation = (self.record)(&Work::of(&snapshot.volume));
                let snapshot = VolumeSnapshot { told: told(Source::Binder), operation, ..snapshot };
                Thought::of(decide::volume::decide(&snapshot, self.now).map(Action::Volume))
            }
            Subject::Pod(key) => {
                let Some(snapshot) = self.caches.pod(key, self.rules) else { return gone() };
                let snapshot = PodSnapshot { told: told(Source::Ephemeral), ..snapshot };
                Thought::of(decide::pod::decide(&snapshot).map(Action::Pod))
            }
            Subject::AttributesClass(key) => match self.caches.attributes_class(key) {
                Some(snapshot) if self.rules.controllers.attributes_class_protection => {
                    Thought::of(decide::attributes_class::decide(&snapshot).map(Action::AttributesClass))
                }
                _ => gone(),
            },
        }
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
