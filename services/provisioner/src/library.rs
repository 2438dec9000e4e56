//! A provisioner of your own: say how a volume is made and deleted, and everything around it is done here.
//!
//! Claims and classes are watched, sizes, modes and names are checked, the intent is durable before [`Provisioner::provision`]
//! is called, PersistentVolumes are written, events told, failures tried again, and what was made for a claim that is gone is
//! deleted. The CSI provisioner stands on the same trait (`csi.rs`); `examples/hostpath-provisioner` is a whole one.

mod args;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use stowage_model::access_mode::{AccessModes, CsiAccessMode};
use stowage_model::names::VolumeHandle;
use stowage_model::topology::Segments;
use stowage_runtime::{Context, Stop};

use crate::controller;
use crate::facts::Facts;
use crate::intent::{ClaimId, Intent, SecretRef};
use crate::options::Options;

pub use stowage_model::access_mode::AccessMode;
pub use stowage_runtime::flags::parse;
pub use stowage_runtime::operation::Failure;
pub use tonic::async_trait;

pub use self::args::ProvisionerArgs;
pub use crate::intent::{Location, Made};

/// Makes and deletes volumes.
///
/// Both calls may come again for the same volume, after a failure or a crash, and must then find what they did before.
#[async_trait]
pub trait Provisioner: Send + Sync + 'static {
    /// Makes a volume, and says where it is or what came of it.
    async fn provision(&self, options: ProvisionOptions) -> Provisioned;

    /// Deletes a volume; one that is gone already is success. A failure is tried again until it works, and [`ignored`] is no
    /// failure.
    async fn delete(&self, options: DeleteOptions) -> Result<(), Failure>;

    /// Whether volumes can be used in this mode. A claim that asks for another is told so.
    fn supports_access_mode(&self, mode: AccessMode) -> bool;

    /// Whether volumes can be used as devices. A claim with `volumeMode: Block` is told if not.
    fn supports_block(&self) -> bool {
        false
    }

    /// Whether the volume has room at a place; asked only in node deployment, before a claim is taken for the node.
    async fn has_room(&self, _options: ProvisionOptions, _place: Segments) -> Result<bool, Failure> {
        Ok(true)
    }
}

/// What a volume is made from. The same for each try of one claim, also when claim and class are gone by then.
#[derive(Debug, Clone, PartialEq)]
pub struct ProvisionOptions {
    /// Name of the PersistentVolume: unique, and the same for each try.
    pub volume: String,
    /// Who asks for it.
    pub claim: ClaimId,
    /// How much is asked for.
    pub bytes: i64,
    /// How it is to be used.
    pub access_modes: AccessModes,
    /// Whether it is to be a device.
    pub block: bool,
    /// What its class says.
    pub class: Class,
    /// The node that was chosen for it, where its class waits for the first consumer.
    pub selected_node: Option<String>,
    /// Whether an earlier try may have made it.
    pub may_exist: bool,
    pub(crate) intent: Arc<Intent>,
}

/// What of a StorageClass counts for a volume.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Its parameters, but those that are reserved for CSI.
    pub parameters: BTreeMap<String, String>,
    /// How its volumes are mounted.
    pub mount_options: Vec<String>,
}

impl ProvisionOptions {
    pub(crate) fn new(intent: Arc<Intent>, may_exist: bool) -> Self {
        let modes = intent.request.modes.iter().filter_map(|number| mode_of(*number));
        Self {
            volume: intent.volume.clone(),
            claim: intent.claim.clone(),
            bytes: intent.request.bytes,
            access_modes: modes.collect(),
            block: intent.request.mount.is_none(),
            class: Class {
                name: intent.class.name.clone(),
                parameters: intent.request.parameters.clone(),
                mount_options: intent.class.mount_options.clone(),
            },
            selected_node: intent.request.node.clone(),
            may_exist,
            intent,
        }
    }

    /// The volume is made, and this field of the PersistentVolume's spec says where it is, as in
    /// `options.made("hostPath", json!({ "path": path }))`.
    pub fn made(&self, field: &str, value: Value) -> Made {
        Made {
            handle: VolumeHandle::from(self.volume.as_str()),
            bytes: self.bytes,
            location: Some(Location { field: field.to_owned(), value }),
            ..Made::default()
        }
    }
}

/// The mode that is recorded by its CSI number.
fn mode_of(number: i32) -> Option<AccessMode> {
    const ONCE: [CsiAccessMode; 2] = [CsiAccessMode::SingleNodeWriter, CsiAccessMode::SingleNodeMultiWriter];
    let is = |mode: CsiAccessMode| mode.number() == number;
    match () {
        () if ONCE.into_iter().any(is) => Some(AccessMode::ReadWriteOnce),
        () if is(CsiAccessMode::MultiNodeReaderOnly) => Some(AccessMode::ReadOnlyMany),
        () if is(CsiAccessMode::MultiNodeMultiWriter) => Some(AccessMode::ReadWriteMany),
        () if is(CsiAccessMode::SingleNodeSingleWriter) => Some(AccessMode::ReadWriteOncePod),
        () => None,
    }
}

/// What is to be deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct DeleteOptions {
    /// Name of the PersistentVolume.
    pub volume: String,
    /// What a CSI driver calls it; elsewhere the same as its name.
    pub handle: VolumeHandle,
    /// Where its object says that it is, if it is not a CSI volume.
    pub location: Option<Location>,
    /// Where it can be reached from, as its object's node affinity says it by `In`; `None` is everywhere.
    pub places: Option<Vec<Segments>>,
    /// The annotations of its object; none of a volume that never had one.
    pub annotations: BTreeMap<String, String>,
    pub(crate) secret: Option<SecretRef>,
}

impl DeleteOptions {
    /// Leaves the volume to another instance unless nodes with this label reach it: on any other node its data look as if they
    /// were gone.
    pub fn must_be_reached_from(&self, label: &str, value: &str) -> Result<(), Failure> {
        let is_there = |place: &Segments| place.get(label).is_some_and(|found| found == value);
        match self.places.as_ref().is_none_or(|places| places.iter().any(is_there)) {
            true => Ok(()),
            false => Err(ignored(format!("it is not reached from nodes with {label}={value}"))),
        }
    }
}

/// What came of a try to make a volume.
#[derive(Debug, Clone, PartialEq)]
pub enum Provisioned {
    /// This is the last word about this try: the volume is there, or nothing was made.
    Finished(Result<Made, Failure>),
    /// Something may have been made, or may be under way: it is asked again until that is known, also when the claim is
    /// gone by then.
    InBackground(Failure),
    /// Nothing was tried, or nothing was learnt: as much is known as before.
    NoChange(Failure),
    /// Nothing was made, because it cannot be made for the chosen node: another is chosen. As `Finished` where none was.
    Reschedule(Failure),
}

/// Code of a failure that has no better one.
const FAILED: &str = "Failed";

/// Code of a deletion that is left to another instance.
pub(crate) const IGNORED: &str = "Ignored";

fn failure(message: impl ToString) -> Failure {
    Failure { code: FAILED.to_owned(), message: message.to_string() }
}

impl Provisioned {
    /// Nothing was made, and why.
    pub fn failed(why: impl ToString) -> Self {
        Self::Finished(Err(failure(why)))
    }

    /// It may be under way.
    pub fn in_background(why: impl ToString) -> Self {
        Self::InBackground(failure(why))
    }

    /// As much is known as before.
    pub fn no_change(why: impl ToString) -> Self {
        Self::NoChange(failure(why))
    }

    /// Another node should be chosen.
    pub fn reschedule(why: impl ToString) -> Self {
        Self::Reschedule(failure(why))
    }
}

/// Why a volume could not be deleted.
pub fn not_deleted(why: impl ToString) -> Failure {
    failure(why)
}

/// The volume is not this instance's to delete: its object stays for the one whose it is, and nobody is told of a failure. This
/// one is asked again rarely.
pub fn ignored(why: impl ToString) -> Failure {
    Failure { code: IGNORED.to_owned(), message: why.to_string() }
}

/// Provisions for the claims whose class names this provisioner, until asked to stop; see [`Options::of_library`]. A try that
/// takes longer than `options.driver.timeout` is cancelled where that is not zero: its future is dropped, and it is asked for
/// again, since what it began may be there.
pub fn run(
    context: Context,
    name: &str,
    provisioner: Arc<dyn Provisioner>,
    options: Options,
) -> BoxFuture<'static, Result<(), Stop>> {
    let facts = Arc::new(Facts::of_library(name, &*provisioner, &context, options));
    Box::pin(controller::serve(context, facts, provisioner))
}

#[cfg(test)]
mod tests;
