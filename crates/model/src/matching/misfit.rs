//! Why a volume does not suit a claim.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use crate::claim::Claim;
use crate::matching::{Fit, Place, fits};
use crate::volume::Volume;

/// The first condition a volume does not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Misfit {
    /// It lacks a mode the claim asks for.
    AccessModes,
    /// It belongs to another claim.
    OtherClaim,
    /// It is smaller than the claim asks for.
    TooSmall,
    /// One is a file system, the other a device.
    VolumeMode,
    /// Its VolumeAttributesClass is another.
    AttributesClass,
    /// It is being deleted.
    Deleting,
    /// It is free, and the claim wants one that is filled from its data source.
    OtherData,
    /// It is free, but the claim waits for its first consumer.
    WaitsForConsumer,
    /// Its phase is not `Available`.
    NotAvailable,
    /// Its labels do not match the claim's selector.
    Selector,
    /// Its class is another.
    OtherClass,
    /// The node cannot reach it.
    NodeAffinity,
}

impl Misfit {
    /// The reason with the values that differ, for an event.
    pub fn describe(self, volume: &Volume, claim: &Claim) -> String {
        let name = &volume.meta.name;
        let named = |class: &str| if class.is_empty() { "none".to_owned() } else { format!("{class:?}") };
        match self {
            Self::AccessModes => format!(
                "volume {name:?} offers access modes [{}], the claim asks for [{}]",
                volume.spec.access_modes, claim.spec.access_modes
            ),
            Self::OtherClaim => {
                let owner = volume.spec.claim_ref.as_ref().map(|r| r.key().to_string()).unwrap_or_default();
                format!("volume {name:?} belongs to claim {owner:?}")
            }
            Self::TooSmall => {
                format!("volume {name:?} has {}, the claim asks for {}", volume.capacity(), claim.requested())
            }
            Self::VolumeMode => format!(
                "volume {name:?} has volumeMode {}, the claim asks for {}",
                volume.spec.volume_mode, claim.spec.volume_mode
            ),
            Self::AttributesClass => format!(
                "volumeAttributesClassName of volume {name:?} is {}, the claim asks for {}",
                named(volume.attributes_class()),
                named(claim.attributes_class())
            ),
            Self::Deleting => format!("volume {name:?} is being deleted"),
            Self::OtherData => {
                format!(
                    "volume {name:?} is not known to hold what the claim names in spec.dataSource or spec.dataSourceRef"
                )
            }
            Self::WaitsForConsumer => "the claim waits for a pod to use it".to_owned(),
            Self::NotAvailable => format!("volume {name:?} is {}, not Available", volume.status.phase),
            Self::Selector => format!("labels of volume {name:?} do not match the claim's selector"),
            Self::OtherClass => format!(
                "storageClassName of volume {name:?} is {}, the claim asks for {}",
                named(volume.class_name()),
                named(claim.class_name())
            ),
            Self::NodeAffinity => format!("node affinity of volume {name:?} excludes the node"),
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AccessModes => "other access modes",
            Self::OtherClaim => "taken",
            Self::TooSmall => "too small",
            Self::VolumeMode => "other volume mode",
            Self::AttributesClass => "other attributes class",
            Self::Deleting => "being deleted",
            Self::OtherData => "other data",
            Self::WaitsForConsumer => "waiting for a pod",
            Self::NotAvailable => "not available",
            Self::Selector => "not selected",
            Self::OtherClass => "other class",
            Self::NodeAffinity => "out of the node's reach",
        })
    }
}

/// How many volumes do not fit, by reason: `12 volumes: 7 too small, 5 other class`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Misfits {
    fitting: usize,
    reasons: BTreeMap<Misfit, usize>,
}

/// Why the claim got none of the volumes.
pub fn explain<'a>(volumes: impl IntoIterator<Item = &'a Volume>, claim: &Claim, place: Place<'_>) -> Misfits {
    let mut misfits = Misfits::default();
    for volume in volumes {
        misfits.add(fits(volume, claim, place), 1);
    }
    misfits
}

impl Misfits {
    pub(super) fn add(&mut self, found: Result<Fit, Misfit>, count: usize) {
        match found {
            _ if count == 0 => {}
            Ok(_) => self.fitting += count,
            Err(misfit) => *self.reasons.entry(misfit).or_default() += count,
        }
    }

    /// How many volumes were looked at.
    pub fn total(&self) -> usize {
        self.fitting + self.reasons.values().sum::<usize>()
    }

    /// How many volumes have that first reason.
    pub fn count(&self, misfit: Misfit) -> usize {
        self.reasons.get(&misfit).copied().unwrap_or_default()
    }
}

impl fmt::Display for Misfits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        match total {
            0 => return f.write_str("no volumes"),
            1 => f.write_str("1 volume: ")?,
            _ => write!(f, "{total} volumes: ")?,
        }
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(misfit, count)| (Reverse(**count), **misfit));
        let mut parts: Vec<String> = reasons.iter().map(|(misfit, count)| format!("{count} {misfit}")).collect();
        if self.fitting > 0 {
            parts.push(format!("{} fitting", self.fitting));
        }
        f.write_str(&parts.join(", "))
    }
}
