use stowage_csi::code::outcome_of;
use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};
use stowage_model::AccessMode as Access;
use stowage_model::access_mode::AccessModes;
use stowage_runtime::caller::Refused;
use tonic::{Code, Status};

use super::*;
use crate::registration::Version;
use crate::world::DriverInfo;

fn driver(capabilities: impl IntoIterator<Item = Capability>) -> DriverInfo {
    DriverInfo {
        name: "d".into(),
        version: Version::parse("1.0").unwrap(),
        node_id: "n".into(),
        topology: BTreeMap::new(),
        limit: None,
        capabilities: capabilities.into_iter().collect(),
    }
}

fn usage(access_modes: impl Into<AccessModes>) -> Use {
    Use {
        volume: VolumeId::new("d", "h"),
        spec_name: "pv".into(),
        pod_volume: "data".into(),
        fs_type: "xfs".into(),
        mount_options: vec!["noatime".into()],
        attributes: BTreeMap::new(),
        access_modes: access_modes.into(),
        read_only: false,
        fs_group: Some(1000),
        stage_secret: None,
        publish_secret: None,
    }
}

fn mode(modes: impl Into<AccessModes>, driver: &DriverInfo) -> Mode {
    let capability = capability(&usage(modes), driver).unwrap();
    Mode::try_from(capability.access_mode.unwrap().mode).unwrap()
}

fn mount(driver: &DriverInfo) -> MountVolume {
    match capability(&usage([Access::ReadWriteOnce]), driver).unwrap().access_type {
        Some(AccessType::Mount(mount)) => mount,
        other => panic!("{other:?}"),
    }
}

#[test]
fn access_modes_are_told_as_finely_as_the_driver_understands() {
    let (plain, finer) = (driver([]), driver([Capability::SingleNodeMultiWriter]));
    for (access, plainly, finely) in [
        (Access::ReadWriteOnce, Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
        (Access::ReadOnlyMany, Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
        (Access::ReadWriteMany, Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
        (Access::ReadWriteOncePod, Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
    ] {
        assert_eq!((mode([access], &plain), mode([access], &finer)), (plainly, finely), "{access:?}");
    }
    assert_eq!(mode(AccessModes::default(), &plain), Mode::SingleNodeWriter);
}

#[test]
fn file_system_and_mount_options_are_the_volumes() {
    let mount = mount(&driver([]));
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("xfs", vec!["noatime".to_owned()]));
}

#[test]
fn s102_the_group_is_passed_only_to_a_driver_that_applies_it() {
    assert_eq!(mount(&driver([Capability::VolumeMountGroup])).volume_mount_group, "1000");
    assert_eq!(mount(&driver([])).volume_mount_group, "");
}

#[test]
fn s104_the_driver_is_told_about_the_pod_by_the_usual_keys() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "p", "namespace": "ns", "uid": "u" }, "spec": { "serviceAccountName": "sa" },
    }))
    .unwrap();
    let told: Vec<(String, String)> = pod_info(&pod).into_iter().collect();
    let expected = [
        ("csi.storage.k8s.io/ephemeral", "false"),
        ("csi.storage.k8s.io/pod.name", "p"),
        ("csi.storage.k8s.io/pod.namespace", "ns"),
        ("csi.storage.k8s.io/pod.uid", "u"),
        ("csi.storage.k8s.io/serviceAccount.name", "sa"),
    ];
    assert_eq!(told, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

#[test]
fn s100_s106_a_call_that_may_go_on_is_uncertain_and_a_refusal_is_not() {
    let fault = |code| {
        let status = Status::new(code, "x");
        Fault::call(STAGE)(Refused::Answered { outcome: outcome_of(STAGE.family, &status), status })
    };
    for code in [Code::DeadlineExceeded, Code::Unavailable, Code::Aborted, Code::ResourceExhausted] {
        assert!(matches!(fault(code).ended(), Ended::Uncertain(_)), "{code:?}");
    }
    for code in [Code::InvalidArgument, Code::Internal, Code::NotFound, Code::FailedPrecondition] {
        assert!(matches!(fault(code).ended(), Ended::Failed(_)), "{code:?}");
    }
    let said = fault(Code::Internal).to_string();
    assert_eq!(said, "NodeStageVolume: x (Internal)");
}
