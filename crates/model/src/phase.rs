//! The enumerations of the Kubernetes storage API.

text_enum! {
    /// Where a claim is in its life (`status.phase`).
    pub enum ClaimPhase {
        /// Not bound yet.
        #[default]
        Pending = "Pending",
        /// Bound to a volume.
        Bound = "Bound",
        /// Its volume is gone.
        Lost = "Lost",
    }
}

text_enum! {
    /// Where a persistent volume is in its life (`status.phase`).
    pub enum VolumePhase {
        /// Not looked at yet.
        #[default]
        Pending = "Pending",
        /// Free to be bound.
        Available = "Available",
        /// Bound to a claim.
        Bound = "Bound",
        /// Its claim is gone, it is not reclaimed yet.
        Released = "Released",
        /// Reclaiming it failed.
        Failed = "Failed",
    }
}

text_enum! {
    /// Where a pod is in its life (`status.phase`).
    pub enum PodPhase {
        /// Accepted, not all containers run yet.
        #[default]
        Pending = "Pending",
        /// On its node, at least one container started.
        Running = "Running",
        /// All containers ended well.
        Succeeded = "Succeeded",
        /// All containers ended, one of them badly.
        Failed = "Failed",
    }
}

text_enum! {
    /// Whether a volume is given to the pod as a file system or as a device; absent means file system.
    pub enum VolumeMode {
        /// Mounted as a directory.
        #[default]
        Filesystem = "Filesystem",
        /// Handed over as a raw block device.
        Block = "Block",
    }
}

text_enum! {
    /// What happens to a volume when its claim goes; the API server's default for a volume is `Retain`.
    pub enum ReclaimPolicy {
        /// Keep the data and the object.
        #[default]
        Retain = "Retain",
        /// Delete the data, then the object.
        Delete = "Delete",
        /// Scrub the data and offer the volume again (deprecated upstream).
        Recycle = "Recycle",
    }
}

text_enum! {
    /// When a claim of a class is bound.
    pub enum BindingMode {
        /// As soon as the claim exists.
        #[default]
        Immediate = "Immediate",
        /// When the scheduler has chosen a node for the first pod that uses it.
        WaitForFirstConsumer = "WaitForFirstConsumer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_of_a_newer_kubernetes_is_unknown_and_does_not_fail() {
        let phase: VolumePhase = serde_json::from_str("\"Hibernating\"").unwrap();
        assert_eq!(phase, VolumePhase::Unknown);
    }

    #[test]
    fn an_empty_phase_is_the_first_one() {
        let phase: ClaimPhase = serde_json::from_str("\"\"").unwrap();
        assert_eq!(phase, ClaimPhase::Pending);
    }

    #[test]
    fn every_phase_reads_back_as_it_is_written() {
        for phase in [VolumePhase::Pending, VolumePhase::Available, VolumePhase::Bound, VolumePhase::Released] {
            assert_eq!(VolumePhase::from(phase.as_str()), phase);
        }
    }
}
