//! What shows that a component works, whatever its Lease says: what it has told, and what nobody else writes.

use std::collections::BTreeMap;

use jiff::Timestamp;

use stowage_model::phase::VolumePhase;
use stowage_model::{Claim, Volume, VolumeAttachment, VolumeSnapshotContent, condition, resize};

use crate::explain::gathered::Gathered;

/// Begins the names of the contents that the snapshot-controller makes; others are made by hand.
const MADE_CONTENT: &str = "snapcontent-";

/// When each service last worked, those of drivers for each driver.
pub struct Work<'a>(BTreeMap<(&'a str, &'a str), Timestamp>);

impl<'a> Work<'a> {
    /// What is dated after `latest` shows nothing: a clock is wrong, or somebody lies.
    pub fn new(g: &'a Gathered, latest: Timestamp) -> Self {
        let told = g.events.all().iter().filter_map(|told| Some((teller(told.component())?, told.last())));
        let volumes = g.volumes.all().iter().flat_map(of_volume);
        let attachments = g.attachments.all().iter().flat_map(of_attachment);
        let contents = g.contents.all().iter().flat_map(of_content);
        let claims = g.claims.all().iter().flat_map(of_claim);
        let mut work = BTreeMap::new();
        for (who, at) in told.chain(volumes).chain(attachments).chain(contents).chain(claims) {
            if let Some(at) = at.filter(|at| *at <= latest) {
                let last = work.entry(who).or_insert(at);
                *last = at.max(*last);
            }
        }
        Self(work)
    }

    pub fn last(&self, service: &str, driver: &str) -> Option<Timestamp> {
        self.0.get(&(service, driver)).copied()
    }
}

/// A service, its driver if it is one of a driver, and when it did something.
type Done<'a> = ((&'a str, &'a str), Option<Timestamp>);

/// Who tells events under this name.
fn teller(component: &str) -> Option<(&str, &str)> {
    let of_driver = |prefix, service| component.strip_prefix(prefix).map(|driver| (service, driver));
    match component {
        "persistentvolume-controller" => Some(("pv-controller", "")),
        "attachdetach-controller" => Some(("attach-detach-controller", "")),
        "default-scheduler" => Some(("scheduler", "")),
        "snapshot-controller" => Some(("snapshot-controller", "")),
        // The provisioner's is DRIVER_HOST_UUID.
        _ => of_driver("external-resizer ", "resizer")
            .or_else(|| of_driver("csi-snapshotter ", "snapshotter"))
            .or_else(|| component.split_once('_').map(|(driver, _)| ("provisioner", driver))),
    }
}

fn of_volume(volume: &Volume) -> impl Iterator<Item = Done<'_>> {
    let made = volume.provisioned_by().map(|driver| (("provisioner", driver), volume.meta.creation_timestamp));
    // A new volume has a phase that nobody has thought of.
    let is_changed = volume.status.phase != VolumePhase::Pending;
    let changed = volume.status.last_phase_transition_time.filter(|_| is_changed);
    made.into_iter().chain([(("pv-controller", ""), changed)])
}

fn of_attachment(attachment: &VolumeAttachment) -> impl Iterator<Item = Done<'_>> {
    let status = &attachment.status;
    let created = attachment.meta.creation_timestamp;
    let failed =
        [&status.attach_error, &status.detach_error].into_iter().flatten().filter_map(|error| error.time).max();
    let attached = created.filter(|_| status.attached);
    let attacher = attachment.spec.attacher.as_str();
    [(("attach-detach-controller", ""), created), (("attacher", attacher), attached.max(failed))].into_iter()
}

fn of_content(content: &VolumeSnapshotContent) -> impl Iterator<Item = Done<'_>> {
    let created = content.meta.creation_timestamp;
    let is_made = content.meta.name.starts_with(MADE_CONTENT);
    let error = content.status.as_ref().and_then(|status| status.error.as_ref()?.time);
    let cut = created.filter(|_| content.snapshot_handle().is_some());
    let driver = content.spec.driver.as_str();
    [(("snapshot-controller", ""), created.filter(|_| is_made)), (("snapshotter", driver), cut.max(error))].into_iter()
}

fn of_claim(claim: &Claim) -> impl Iterator<Item = Done<'_>> {
    let begun = [resize::RESIZING, resize::MODIFYING_VOLUME].into_iter().filter_map(|kind| {
        let condition = condition::find(&claim.status.conditions, kind)?;
        condition.last_transition_time
    });
    let begun = begun.max();
    claim.storage_provisioner().map(|driver| (("resizer", driver), begun)).into_iter()
}
