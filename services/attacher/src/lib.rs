//! attacher: turns the VolumeAttachments of one driver into ControllerPublishVolume and ControllerUnpublishVolume.
//!
//! Watches VolumeAttachments, volumes and CSINodes; reads secrets. Writes the finalizer and node id of attachments, their
//! status, and the finalizer of volumes. One driver call at a time per volume handle. The finalizer is on the attachment
//! before the first publish and leaves it after a good unpublish only, so no publish that may have happened is forgotten.
#![forbid(unsafe_code)]

pub mod args;

mod apply;
mod calls;
mod controller;
mod decide;
mod request;
mod snapshot;
mod watches;

pub use controller::{Options, run};
