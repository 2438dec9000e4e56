//! A small API server made of JSON, changed by exactly the writes the service would send, and seen through its caches.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde_json::Value;

use stowage_model::Volume;
use stowage_model::object::{self, Kind, ObjectId, kinds};
use stowage_runtime::api::Target;
use stowage_runtime::engine::Reserved;
use stowage_runtime::events::{Note, Severity};
use stowage_runtime::operation::{Failure, Record, State};

use crate::apply::ephemeral::claim_for;
use crate::controllers::Controllers;
use crate::decide::{self, Action, ClaimAction, Decision, PodAction, Source, VolumeAction, Why};
use crate::note::note_outcome;
use crate::options::{Options, Rules};
use crate::snapshot::{Snapshot, Sources, Told, Work};
use crate::watches::{Caches, Key};
use crate::write::{self, Write};

use super::fixtures::Fixture;

use store::kind_of;

mod looks;
mod store;

pub const NOW: &str = "2026-01-01T00:00:00Z";

/// How the log marks a write or list that was refused.
pub const REFUSED: &str = " refused";

/// How the log marks a write that was made but not answered.
pub const UNANSWERED: &str = " unanswered";

/// How the operation of reclaiming ends when it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    Works,
    /// Fails before it has touched anything, whenever it is started.
    CannotStart,
    /// Fails this often, then works.
    Fails(u32),
}

/// Why an action was not carried out to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// What it was decided on is not true any more: a fresh read was made, and nobody is told.
    Stale,
    /// The answer was lost: the same.
    Unanswered,
    /// The server said no.
    Refused,
}

pub struct World {
    store: BTreeMap<(&'static str, object::Key), Value>,
    pub revision: u64,
    pub caches: Caches,
    pub told: Told,
    pub rules: Rules,
    records: BTreeMap<Work, Record<()>>,
    /// Since when provisioners are asked.
    pub asked_since: Option<Timestamp>,
    pub plugin: Plugin,
    pub now: Timestamp,
    pub log: Vec<String>,
    /// Everything told, with its component and its text.
    pub said: Vec<String>,
    /// How many of the next writes, and of the next lists, are refused.
    pub refused_writes: u32,
    pub refused_lists: u32,
    /// How many writes were refused because what they were decided on was not true any more.
    pub conflicts: u32,
    /// How many of the next writes are made, but not answered.
    pub lost_answers: u32,
    /// Versions that the caches have not seen, by kind; used only while `lagging`.
    pub unseen: BTreeMap<&'static str, VecDeque<(Kind, Value, bool)>>,
    pub lagging: bool,
    /// Objects with a write under way.
    pub busy: Vec<ObjectId>,
}

/// How the log names an object: with its namespace unless that is the one of nearly all.
fn called(key: &object::Key) -> String {
    if matches!(key.namespace.as_str(), "" | "n") { key.name.clone() } else { key.to_string() }
}

impl World {
    /// Upstream's behaviour alone: without the conditions this service adds or folds in.
    pub fn new(objects: impl IntoIterator<Item = Fixture>) -> Self {
        let rules = Rules { unused_condition: false, unbound_condition: false, ..Options::default().rules() };
        let mut world = Self {
            store: BTreeMap::new(),
            revision: 0,
            caches: Caches::default(),
            told: Told::default(),
            rules,
            records: BTreeMap::new(),
            asked_since: None,
            plugin: Plugin::Works,
            now: NOW.parse().unwrap(),
            log: vec![],
            said: vec![],
            refused_writes: 0,
            refused_lists: 0,
            conflicts: 0,
            lost_answers: 0,
            unseen: BTreeMap::new(),
            lagging: false,
            busy: vec![],
        };
        objects.into_iter().for_each(|object| world.put(object));
        world
    }

    pub fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    pub fn only(self, change: impl FnOnce(&mut Controllers)) -> Self {
        self.rules(|rules| {
            rules.controllers = Controllers::NONE;
            change(&mut rules.controllers);
        })
    }

    pub fn host_path(self) -> Self {
        self.rules(|rules| rules.host_path_provisioner = true)
    }

    pub fn plugin(self, plugin: Plugin) -> Self {
        Self { plugin, ..self }
    }

    pub fn refusing_writes(self, refused_writes: u32) -> Self {
        Self { refused_writes, ..self }
    }

    pub fn refusing_lists(self, refused_lists: u32) -> Self {
        Self { refused_lists, ..self }
    }

    pub fn losing_answers(self, lost_answers: u32) -> Self {
        Self { lost_answers, ..self }
    }

    /// An object that is in the API but that no cache has seen.
    pub fn unseen(mut self, object: Fixture) -> Self {
        self.lagging = true;
        self.put(object);
        self.lagging = false;
        self.unseen.clear();
        self
    }

    /// Gives everything stored here to another world whose caches may not have seen it.
    pub fn copy_to(&self, other: &mut World) {
        other.revision = other.revision.max(self.revision);
        for ((plural, key), tree) in &self.store {
            if other.store.get(&(*plural, key.clone())) != Some(tree) {
                other.store.insert((plural, key.clone()), tree.clone());
                other.publish(kind_of(plural), tree.clone(), false);
            }
        }
    }

    /// Everything that decides how it goes on, as text; versions are only names.
    pub fn state(&self) -> String {
        let mut text = String::new();
        for ((plural, key), tree) in &self.store {
            let mut tree = tree.clone();
            tree["metadata"]["resourceVersion"] = Value::Null;
            if let Some(held) = tree.pointer_mut("/spec/claimRef").and_then(Value::as_object_mut) {
                held.remove("resourceVersion");
            }
            text.push_str(&format!("{plural} {key} {tree}\n"));
        }
        let mut told: Vec<&String> = self.log.iter().filter(|line| !line.contains('{')).collect();
        told.sort();
        told.dedup();
        format!("{text}{told:?}")
    }

    pub fn keys(&self) -> Vec<Key> {
        let claims = self.caches.claims.keys().into_iter().map(Key::Claim);
        let volumes = self.caches.volumes.keys().into_iter().map(Key::Volume);
        let pods = self.caches.pods.keys().into_iter().map(Key::Pod);
        let classes = self.caches.attributes_classes.keys().into_iter().map(Key::AttributesClass);
        claims.chain(volumes).chain(pods).chain(classes).collect()
    }

    /// What would be decided on, with these objects busy.
    pub fn with_sources<T>(&self, reserved: &Reserved, read: impl FnOnce(&Sources<'_>) -> T) -> T {
        let (caches, told, rules) = (&self.caches, &self.told, self.rules);
        let record = &|work: &Work| self.records.get(work).cloned();
        let (is_pod_lookup_pending, asked_since) = (&|_: &object::Key| false, &|_: &object::Key| self.asked_since);
        read(&Sources { caches, rules, told, reserved, record, is_pod_lookup_pending, asked_since })
    }

    pub fn gather(&self, key: &Key) -> Snapshot {
        self.with_sources(&Reserved::of(self.busy.iter().cloned()), |sources| sources.gather(key))
    }

    /// Decides and remembers it, as the engine does.
    pub fn decision(&self, key: &Key) -> Decision<Action> {
        let snapshot = self.gather(key);
        let decision = decide::decide(&snapshot, self.now);
        note_outcome(&self.caches, &self.told, key, &snapshot, &decision);
        decision
    }

    pub fn decide(&self, key: &Key) -> (Vec<Action>, Why) {
        let decision = self.decision(key);
        (decision.actions, decision.why)
    }

    /// Decides on the keys that pass, in order and until nothing is left to do; says everything that was done.
    pub fn settle_only(&mut self, passes: impl Fn(&Key) -> bool) -> Vec<String> {
        loop {
            let mut acted = false;
            for key in self.keys().into_iter().filter(|key| passes(key)) {
                acted |= self.step(&key);
                assert!(self.log.len() < 60, "no fixpoint: {:#?}", self.log);
            }
            if !acted {
                return std::mem::take(&mut self.log);
            }
        }
    }

    pub fn settle(&mut self) -> Vec<String> {
        self.settle_only(|_| true)
    }

    /// Another life of the service over the same objects: it has seen them all and remembers nothing.
    fn restarted(&self) -> Self {
        let mut anew = Self::new([]);
        (anew.rules, anew.now, anew.plugin) = (self.rules, self.now, self.plugin);
        anew.revision = self.revision;
        for ((plural, key), tree) in &self.store {
            anew.store.insert((plural, key.clone()), tree.clone());
            anew.observe(kind_of(plural), tree.clone(), false);
        }
        anew
    }

    /// What a way to sync does, and then what another life writes that decides on everything; it may tell things again.
    pub fn with_another_life(&mut self, sync: fn(&mut Self) -> Vec<String>) -> (Vec<String>, Vec<String>) {
        let steps = sync(self);
        let mut later = self.restarted().settle();
        later.retain(|line| line.contains('{') || line.starts_with("DELETE "));
        (steps, later)
    }

    /// What a way to sync does, after which another life has nothing to write.
    pub fn rests_after(&mut self, sync: fn(&mut Self) -> Vec<String>) -> Vec<String> {
        let (steps, later) = self.with_another_life(sync);
        assert_eq!(later, Vec::<String>::new(), "not at rest after {steps:#?}");
        steps
    }

    pub fn sync_claims(&mut self) -> Vec<String> {
        self.settle_only(|key| matches!(key, Key::Claim(_)))
    }

    pub fn sync_volumes(&mut self) -> Vec<String> {
        self.settle_only(|key| matches!(key, Key::Volume(_)))
    }

    /// Decides on one key once and acts; says whether there was anything to do.
    pub fn step(&mut self, key: &Key) -> bool {
        let decision = self.decision(key);
        let any = !decision.actions.is_empty();
        for action in decision.actions {
            if self.apply(key, action).is_err() {
                break;
            }
        }
        any
    }

    fn apply(&mut self, key: &Key, action: Action) -> Result<(), Trouble> {
        let object = key.object();
        match action {
            Action::Claim(action, seen) => {
                let claim = self.caches.claims.get(object).ok_or(Trouble::Stale)?;
                if let ClaimAction::Tell(source, note) = &action {
                    self.tell(*source, key, note);
                    return Ok(());
                }
                self.look_for_claim(&claim, &action, seen)?;
                let volume = match &action {
                    ClaimAction::Reserve { volume, .. } => {
                        self.caches.volumes.get(&object::Key::cluster(volume.clone()))
                    }
                    ClaimAction::Bind(bind) => self.caches.volumes.get(&object::Key::cluster(bind.volume.clone())),
                    _ => None,
                };
                let result = self.send(write::of_claim(&action, &claim, volume.as_deref()));
                let asks = matches!(action, ClaimAction::Make { .. } | ClaimAction::AskProvisioner { .. });
                if asks && result == Err(Trouble::Refused) {
                    self.tell(Source::Binder, key, &Note::warning("ProvisioningFailed", "the write was refused"));
                }
                // The fresh read has shown it.
                let is_made = matches!(action, ClaimAction::Make { .. }) && result == Err(Trouble::Unanswered);
                if is_made { Ok(()) } else { result }
            }
            Action::Volume(action, _) => {
                let volume = self.caches.volumes.get(object).ok_or(Trouble::Stale)?;
                self.look_for_volume(&volume, &action)?;
                match &action {
                    VolumeAction::Tell(note) => self.tell(Source::Binder, key, note),
                    VolumeAction::TellClaim(note) => {
                        let held = volume.spec.claim_ref.as_ref().unwrap().key();
                        self.say(Source::Binder, "pvc", &held, note);
                    }
                    VolumeAction::Recycle | VolumeAction::DeleteData => self.reclaim(&volume, &action),
                    _ => {}
                }
                self.send(write::of_volume(&action, &volume))
            }
            Action::Pod(action) => {
                let pod = self.caches.pods.get(object).ok_or(Trouble::Stale)?;
                match action {
                    PodAction::Tell(note) => {
                        self.tell(Source::Ephemeral, key, &note);
                        Ok(())
                    }
                    PodAction::RemoveRecycler => {
                        self.send(vec![Write::Delete { kind: kinds::POD, target: Target::exact(&pod.meta) }])
                    }
                    PodAction::CreateClaim { volume, claim } => {
                        let Some(raw) = self.get(kinds::POD, object).cloned() else {
                            self.refresh(kinds::POD, object);
                            return Err(Trouble::Stale);
                        };
                        let body = claim_for(&raw, &pod, &volume, &claim).unwrap();
                        self.send(vec![Write::Create { kind: kinds::CLAIM, body }])
                    }
                }
            }
            Action::AttributesClass(action, _) => {
                let class = self.caches.attributes_classes.get(object).ok_or(Trouble::Stale)?;
                self.send(vec![write::of_attributes_class(action, &class)])
            }
        }
    }

    /// Tells people about the key, and notes what they were told.
    fn tell(&mut self, source: Source, key: &Key, note: &Note) {
        let kind = match key {
            Key::Claim(_) => "pvc",
            Key::Volume(_) => "pv",
            Key::Pod(_) => "pod",
            Key::AttributesClass(_) => "vac",
        };
        self.say(source, kind, key.object(), note);
        self.told.note(key.clone(), source, note.clone(), true, self.now);
    }

    fn say(&mut self, source: Source, kind: &str, key: &object::Key, note: &Note) {
        let severity = if note.severity == Severity::Normal { "Normal" } else { "Warning" };
        self.log.push(format!("{severity} {} {kind}/{}", note.reason, called(key)));
        self.said.push(format!("{}: {}", source.component(), note.message));
    }

    /// Counts down what is to go wrong, and marks the last line of the log; says whether it does.
    fn goes_wrong(&mut self, left: impl Fn(&mut Self) -> &mut u32, mark: &str) -> bool {
        let left = left(self);
        if *left == 0 {
            return false;
        }
        *left -= 1;
        if let Some(line) = self.log.last_mut() {
            line.push_str(mark);
        }
        true
    }

    fn refuse(&mut self, left: impl Fn(&mut Self) -> &mut u32) -> Result<(), Trouble> {
        if self.goes_wrong(left, REFUSED) { Err(Trouble::Refused) } else { Ok(()) }
    }

    /// The operation from start to end: called off, as `Reclaimer::reclaim` does it, unless a fresh look at the volume and
    /// its claim shows that the work is still to be done.
    fn reclaim(&mut self, volume: &Volume, action: &VolumeAction) {
        let work = Work::of(volume);
        let retry_at = self.now + jiff::SignedDuration::from_secs(1);
        self.refresh(kinds::VOLUME, &work.volume);
        let fresh = self.read::<Volume>(&work.volume).filter(|fresh| Work::of(fresh) == work);
        if !fresh.is_some_and(|fresh| self.is_without_claim(&fresh)) {
            let state = State::Uncertain(Failure { code: "CalledOff".into(), message: "changed".into() });
            self.records.insert(work, Record { state, since: self.now, failures: 1, retry_at });
            return;
        }
        if self.plugin != Plugin::CannotStart {
            self.log.push(format!("{action:?} {}", volume.meta.name));
        }
        let failed = |message: &str| State::Failed(Failure { code: "Failed".into(), message: message.into() });
        let state = match &mut self.plugin {
            Plugin::Works | Plugin::Fails(0) => State::Done(()),
            Plugin::CannotStart => failed("it cannot be started"),
            Plugin::Fails(times) => {
                *times -= 1;
                failed("disk on fire")
            }
        };
        self.records.insert(work, Record { state, since: self.now, failures: 1, retry_at });
    }
}
