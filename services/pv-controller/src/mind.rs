//! From a key to its decision: the snapshot, what people were told, what operations stand where, and the rules.

use jiff::Timestamp;

use stowage_model::matching::delays_binding;
use stowage_model::object::Key;
use stowage_model::phase::ClaimPhase;
use stowage_runtime::cache::View;
use stowage_runtime::engine::Reserved;
use stowage_runtime::operation::Record;

use crate::decide::{self, Action, ClaimAction, Decision, Source, Subject, Waiting, Why};
use crate::matchmaker::Outcome;
use crate::options::Rules;
use crate::snapshot::{Caches, ClaimSnapshot, PodSnapshot, Told, VolumeSnapshot, Work};

/// What people were last told about each subject, by each component that told them anything.
pub type Memory = stowage_runtime::told::Told<Subject, Source>;

/// What still holds of what was told.
fn told(memory: &Memory, subject: &Subject, now: Timestamp) -> Told {
    let known = memory.known(subject);
    let by = |source| known.said(&source, now).cloned();
    Told { binder: by(Source::Binder), expander: by(Source::Expander), ephemeral: by(Source::Ephemeral) }
}

/// The versions that a decision was made on: what is written must be guarded by them and by no later ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// The subject's revision.
    pub subject: u64,
    /// That of the volume which a claim is to be bound to, or has lost; 0 for one that is gone.
    pub volume: u64,
    /// That of the claim's class; 0 for one that does not exist.
    pub class: u64,
}

/// A decision, what it was made on, and the claim that it wakes.
pub struct Thought {
    pub decision: Decision<Action>,
    pub seen: Seen,
    pub wake: Option<Key>,
}

impl Thought {
    fn of(decision: Decision<Action>, subject: u64) -> Self {
        Self { decision, seen: Seen { subject, ..Seen::default() }, wake: None }
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
            _ => {
                decision.wake_at =
                    decision.wake_at.into_iter().chain(self.memory.known(subject).again_at(self.now)).min()
            }
        }
        thought
    }

    fn decide(&self, subject: &Subject) -> Thought {
        let gone = || Thought::of(Decision::rest(Why::Gone), 0);
        let told = || told(self.memory, subject, self.now);
        match subject {
            Subject::Claim(key) => {
                let Some(snapshot) = self.caches.claim(key, self.reserved, self.rules) else {
                    // Gone or unreadable, it keeps no volume from those who wait.
                    return Thought { wake: self.caches.matchmaker.forget(key), ..gone() };
                };
                let snapshot = ClaimSnapshot { told: told(), ..snapshot };
                let decision = decide::claim::decide(&snapshot, self.now);
                let wake =
                    self.caches.matchmaker.decided(&snapshot.claim, &outcome(&snapshot, &decision), snapshot.version);
                let seen = Seen {
                    subject: snapshot.claim.meta.revision,
                    volume: volume_seen(&snapshot, &decision),
                    class: snapshot.class.as_ref().map(|class| class.meta.revision).unwrap_or_default(),
                };
                Thought { decision: decision.map(Action::Claim), seen, wake }
            }
            Subject::Volume(key) => {
                let Some(snapshot) = self.caches.volume(key, self.rules) else { return gone() };
                let operation = (self.record)(&Work::of(&snapshot.volume));
                let snapshot = VolumeSnapshot { told: told().binder, operation, ..snapshot };
                let decision = decide::volume::decide(&snapshot, self.now).map(Action::Volume);
                Thought::of(decision, snapshot.volume.meta.revision)
            }
            Subject::Pod(key) => {
                let Some(snapshot) = self.caches.pod(key, self.rules) else { return gone() };
                let snapshot = PodSnapshot { told: told().ephemeral, ..snapshot };
                Thought::of(decide::pod::decide(&snapshot).map(Action::Pod), snapshot.pod.meta.revision)
            }
            Subject::AttributesClass(key) => match self.caches.attributes_class(key) {
                Some(snapshot) if self.rules.controllers.attributes_class_protection => {
                    let decision = decide::attributes_class::decide(&snapshot).map(Action::AttributesClass);
                    Thought::of(decision, snapshot.class.meta.revision)
                }
                _ => gone(),
            },
        }
    }
}

/// The revision of the volume that the decision is about, as it was when it was chosen.
fn volume_seen(s: &ClaimSnapshot, decision: &Decision<ClaimAction>) -> u64 {
    let chosen = decision.actions.iter().find_map(|action| match action {
        ClaimAction::Reserve { volume, .. } => Some(volume),
        ClaimAction::Bind(step) => Some(&step.volume),
        ClaimAction::Status(change) if change.to.phase == ClaimPhase::Lost => Some(&s.claim.spec.volume_name),
        _ => None,
    });
    let named = match &s.named {
        View::Known(volume) => Some(volume),
        View::Absent | View::Unknown => None,
    };
    let volume = s.candidates.iter().chain(named).find(|volume| chosen == Some(&volume.meta.name));
    volume.map(|volume| volume.meta.revision).unwrap_or_default()
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
