//! Why objects are not where they should be: a plain function over what was read. One file per part of a life.

mod attaching;
mod binding;
mod by_hand;
mod claim;
mod deleting;
mod growing;
mod index;
mod leader;
mod mounting;
mod placing;
mod pod;
mod provisioning;
mod snapshot;
mod volume;
mod work;

use jiff::{SignedDuration, Timestamp};

use stowage_model::object::{Key, Kind, Projection, kinds};
use stowage_model::pod::{PodVolume, PodVolumeSource};
use stowage_model::{Claim, Pod, VolumeAttachment};

use super::gathered::{Gathered, Wanted};
use super::report::{Cause, Mark, Report, State, Step, Story, Who};
use super::told::Told;

use self::index::Index;
use self::work::Work;

pub use leader::lease_names;

/// What nobody has done by then, nobody does: longer than the retries of a loaded cluster that works.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// What settles a complaint that was told before it, for good or for another try.
const SETTLING: [&str; 11] = [
    "FileSystemResizeRequired",
    "FileSystemResizeSuccessful",
    "Provisioning",
    "ProvisioningSucceeded",
    "Scheduled",
    "SnapshotReady",
    "SuccessfulAttachVolume",
    "VolumeDeleted",
    "VolumeModifySuccessful",
    "VolumeRecycled",
    "VolumeResizeSuccessful",
];

/// Whether anything is concluded from an event of this reason that is no warning.
pub fn is_news(reason: &str) -> bool {
    SETTLING.contains(&reason) || mounting::AFTER_MOUNT.contains(&reason)
}

/// What is to be told of everything that was asked about.
pub fn diagnose(g: &Gathered, now: Timestamp) -> Report {
    let view = View { g, now, index: Index::new(g), work: Work::new(g, now + leader::SLACK) };
    let one = |key: &Key| -> Option<Story> {
        match &g.wanted {
            Wanted::All { .. } => None,
            Wanted::Claim(_) => g.claims.look(key).there().map(|claim| claim::story(&view, claim)),
            Wanted::Pod(_) => g.pods.look(key).there().map(|pod| pod::story(&view, pod)),
            Wanted::Volume(_) => g.volumes.look(key).there().map(|volume| volume::story(&view, volume)),
            Wanted::Snapshot(_) => g.snapshots.look(key).there().map(|one| snapshot::story(&view, one)),
        }
    };
    let (is_of_one, stories) = match &g.wanted {
        Wanted::All { .. } => (false, view.all()),
        Wanted::Claim(key) | Wanted::Pod(key) | Wanted::Volume(key) | Wanted::Snapshot(key) => {
            (true, one(key).into_iter().collect())
        }
    };
    Report { now, is_of_one, stories, unread: g.unread.clone() }
}

/// What was read, with the questions that are asked of it.
struct View<'a> {
    g: &'a Gathered,
    now: Timestamp,
    index: Index<'a>,
    work: Work<'a>,
}

impl<'a> View<'a> {
    /// Everything that is not where it should be, the worst first.
    fn all(&self) -> Vec<Story> {
        let g = self.g;
        // Claims of others are read for what they have.
        let is_asked = |claim: &&Claim| match &g.wanted {
            Wanted::All { namespace: Some(namespace) } => claim.meta.namespace == *namespace,
            _ => true,
        };
        let claims = g.claims.all().iter().filter(is_asked).map(|claim| claim::story(self, claim));
        let pods = g.pods.all().iter().map(|pod| pod::story(self, pod));
        let snapshots = g.snapshots.all().iter().map(|one| snapshot::story(self, one));
        // With a namespace, volumes are there for its claims only.
        let is_whole = g.wanted == Wanted::All { namespace: None };
        let volumes = g.volumes.all().iter().filter(|_| is_whole).map(|volume| volume::story(self, volume));
        let stories = claims.chain(pods).chain(snapshots).chain(volumes);
        let mut stories: Vec<Story> = stories.filter(|story| story.state() > State::Fine).collect();
        stories.sort_by(|a, b| {
            let worse = b.state().cmp(&a.state());
            worse.then_with(|| a.kind.plural.cmp(b.kind.plural)).then_with(|| a.key.cmp(&b.key))
        });
        stories
    }

    /// The events of an object, the latest first.
    fn told<T: Projection>(&self, about: &T) -> Vec<&'a Told> {
        let uid = &about.meta().uid;
        self.index.events(about).iter().copied().filter(|told| told.is_of_uid(uid)).collect()
    }

    /// The last warning of one of these reasons, unless one of the others was told after it.
    fn complaint<T: Projection>(&self, about: &T, reasons: &[&str], settled_by: &[&str]) -> Option<&'a Told> {
        debug_assert!(settled_by.iter().all(|reason| SETTLING.contains(reason)), "the survey reads no {settled_by:?}");
        let told = self.told(about);
        let last = told.iter().find(|told| {
            let reason = told.reason.as_str();
            reasons.contains(&reason) || settled_by.contains(&reason)
        })?;
        reasons.contains(&last.reason.as_str()).then_some(*last)
    }

    /// The pods that use a claim and may still run.
    fn users_of(&self, claim: &Key) -> Vec<&'a Pod> {
        self.index.users(claim).iter().copied().filter(|pod| !pod.is_terminal()).collect()
    }

    /// The pods that keep a claim from going, by the rule of the pv-controller's protection: one that was placed does so
    /// even when it has ended, one that was not does not. The claim made for a pod does not wait for that pod's own end.
    fn holders_of(&self, claim: &Claim) -> Vec<&'a Pod> {
        let key = claim.meta.key();
        let refers = |pod: &Pod, volume: &PodVolume| {
            let is_own = volume.source == PodVolumeSource::Ephemeral;
            pod.claim_of(volume).is_some_and(|used| used == key)
                && (!is_own || (claim.is_owned_by(pod) && !pod.is_shut_down()))
        };
        let holds = |pod: &&Pod| pod.is_scheduled() && pod.spec.volumes.iter().any(|volume| refers(pod, volume));
        self.index.users(&key).iter().copied().filter(holds).collect()
    }

    fn attachments_of(&self, volume: &str) -> impl Iterator<Item = &'a VolumeAttachment> {
        self.index.attachments_of(volume).iter().copied()
    }

    /// Whether something has taken too long; what nobody knows the age of has not.
    fn is_late(&self, since: Option<Timestamp>) -> bool {
        since.is_some_and(|since| self.now.duration_since(since) > PATIENCE)
    }

    /// A cause that is one only if the time it takes is no longer that of work. Where nobody knows since when it takes it,
    /// a component that is dead has had it since then.
    fn slow(
        &self,
        id: &'static str,
        who: Who,
        since: Option<Timestamp>,
        why: impl Into<String>,
        way_out: impl Into<String>,
    ) -> Cause {
        let since = since.or_else(|| self.dead_since(&who));
        let state = if self.is_late(since) { State::Stuck } else { State::Working };
        Cause { state, ..Cause::stuck(id, who, why, way_out) }
    }

    /// What it hangs on may not be read: then nobody is to blame.
    fn unseen(&self, kind: Kind, since: Option<Timestamp>, why: impl Into<String>) -> Cause {
        let plural = kind.plural;
        let why = format!("{}, and not all {plural} could be read", why.into());
        let way_out = format!(
            "ask for the right to list {plural}, or somebody who has it; the report ends with what was not read"
        );
        self.slow("cannot-be-told", Who::unknown(), since, why, way_out)
    }
}

/// The first of the worst.
fn worst(causes: Vec<Cause>) -> Option<Cause> {
    causes.into_iter().reduce(|worst, next| if next.state > worst.state { next } else { worst })
}

/// What waits for something else is as far as that is, and in the same hands.
fn behind(inner: Cause, id: &'static str, why: impl Into<String>, way_out: impl Into<String>) -> Cause {
    Cause { id, why: why.into(), way_out: way_out.into(), ..inner }
}

/// What an event says, with who told it and how often.
fn quoted(told: &Told, now: Timestamp) -> String {
    let last = told.last().map(|at| format!(", last {} ago", super::report::ago(at, now))).unwrap_or_default();
    let often = if told.times() > 1 { format!(", {} times", told.times()) } else { String::new() };
    let by = if told.component().is_empty() { String::new() } else { format!(" by {}", told.component()) };
    format!("{} (event {}{by}{often}{last})", told.message.trim(), told.reason)
}

/// The steps of a life in which each needs those before it: done ones, the one where it is, and what is not yet.
struct Steps(Vec<Step>);

impl Steps {
    fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether all so far are done.
    fn are_done(&self) -> bool {
        self.0.iter().all(|step| step.mark == Mark::Done)
    }

    fn add(&mut self, name: impl Into<String>, is_done: bool, since: Option<Timestamp>) {
        let mark = match (is_done, self.are_done()) {
            (true, _) => Mark::Done,
            (false, true) => Mark::Here,
            (false, false) => Mark::NotYet,
        };
        self.0.push(Step { name: name.into(), mark, since: since.filter(|_| mark != Mark::NotYet) });
    }
}

/// `kubectl KIND NAME` arguments of an object.
fn kubectl(plural: &str, key: &Key) -> String {
    let singular = match plural {
        "persistentvolumeclaims" => "pvc",
        "persistentvolumes" => "pv",
        "pods" => "pod",
        other => other.strip_suffix('s').unwrap_or(other),
    };
    match key.namespace.as_str() {
        "" => format!("{singular} {}", key.name),
        namespace => format!("{singular} {} -n {namespace}", key.name),
    }
}

fn kubectl_claim(claim: &Claim) -> String {
    kubectl(kinds::CLAIM.plural, &claim.meta.key())
}

/// A few names, and how many more.
fn some<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.len() {
        0..=3 => names.join(", "),
        more => format!("{} and {} more", names[..3].join(", "), more - 3),
    }
}

#[cfg(test)]
mod tests;
