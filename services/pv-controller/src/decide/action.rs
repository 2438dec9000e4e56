//! What a decision can ask for.

use serde_json::Value;

use stowage_model::object::Key;
use stowage_model::phase::VolumePhase;
use stowage_model::text::Text;
use stowage_runtime::events::Note;

use super::binder::bind::Bind;
use super::status::Change;

/// Which of upstream's components an event comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Binder,
    Expander,
    Ephemeral,
}

impl Source {
    /// The component as events name it.
    pub fn component(self) -> &'static str {
        match self {
            Self::Binder => "persistentvolume-controller",
            Self::Expander => "volume_expand",
            Self::Ephemeral => "ephemeral_volume",
        }
    }
}

/// Writes that go together, the start of an operation, or one thing told to people; with the versions that it was decided
/// on, which guard it.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Claim(ClaimAction, Seen),
    Volume(VolumeAction, u64),
    Pod(PodAction),
    AttributesClass(AttributesClassAction, u64),
}

/// The versions that a claim was decided on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub claim: u64,
    /// That of the volume which the claim is to be bound to, or has lost; 0 for one that is gone.
    pub volume: u64,
    /// That of the claim's class; 0 for one that does not exist.
    pub class: u64,
}

impl Action {
    /// Whether people are told something, and nothing else is done.
    pub fn is_told(&self) -> bool {
        matches!(
            self,
            Self::Claim(ClaimAction::Tell(..), _)
                | Self::Volume(VolumeAction::Tell(_) | VolumeAction::TellClaim(_), _)
                | Self::Pod(PodAction::Tell(_))
        )
    }
}

/// What a claim's decision asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimAction {
    /// Points the volume at the claim; `marked` when the controller, not a user, chose the pair.
    Reserve { volume: String, marked: bool },
    /// Everything that may follow a reservation, side by side.
    Bind(Box<Bind>),
    /// Brings the claim's status in line.
    Status(Box<Change>),
    /// Asks a provisioner to make a volume.
    AskProvisioner { provisioner: String, migrated_to: Option<&'static str> },
    /// Makes the object of a volume whose storage appears when it is first used.
    Make { volume: Box<Value> },
    /// Gives a claim without a class the default one.
    AssignClass { class: String },
    /// Brings annotation and finalizer in line.
    Tidy(ClaimTidy),
    /// Removes the finalizer, after a fresh look at the pods.
    Unprotect,
    /// Names the resizer of a claim whose in-tree volume a driver has taken over.
    NameResizer { resizer: &'static str },
    /// Deletes the claim made for a pod that is gone, after a fresh look for the pod.
    Collect,
    /// Tells people.
    Tell(Source, Note),
}

/// What must change in a claim's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimTidy {
    /// The annotation's new value, or that it goes.
    pub migrated_to: Option<Option<&'static str>>,
    /// Whether the protection finalizer is missing.
    pub protect: bool,
}

/// What a volume's decision asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeAction {
    /// Sets the phase.
    Phase { phase: VolumePhase, message: String },
    /// Sets the phase to Released after a fresh read shows that the claim is really gone.
    Release,
    /// Takes back the pointer to the claim; a user's own pointer only loses the uid.
    Unbind,
    /// Brings annotation and finalizers in line.
    Tidy(VolumeTidy),
    /// Removes the protection finalizer, after a fresh look at the phase.
    Unprotect,
    /// Starts erasing the volume so that it can be used again.
    Recycle,
    /// Starts deleting the volume's data.
    DeleteData,
    /// Deletes the object; its data is gone.
    DeleteObject,
    /// Tells people.
    Tell(Note),
    /// Tells people at the claim the volume refers to.
    TellClaim(Note),
}

/// What must change in a volume's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeTidy {
    /// The annotation's new value, or that it goes.
    pub migrated_to: Option<Option<&'static str>>,
    /// The new list of finalizers.
    pub finalizers: Option<Vec<Text>>,
}

/// What a pod's decision asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum PodAction {
    /// Makes the claim of one of the pod's volumes, from a fresh read of the pod.
    CreateClaim { volume: String, claim: Key },
    /// Deletes a recycler that nobody waits for.
    RemoveRecycler,
    /// Tells people.
    Tell(Note),
}

/// What a VolumeAttributesClass's decision asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributesClassAction {
    Protect,
    Unprotect,
}
