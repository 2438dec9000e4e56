use super::super::volume::Attachment;
use super::super::waiting::{Unmounted, Waiting, cause, waiting};
use stowage_plugins::Fault;

use super::*;
use crate::desired_state::{PodVolumes, Problem};
use crate::executor::{OperationName, VolumeOperation};

fn unmounted() -> Unmounted {
    Unmounted {
        not_ready: None,
        attachment: Attachment::Attached,
        attach_error: None,
        over_limit: None,
        held_back: None,
        records: BTreeMap::new(),
    }
}

fn of(found: Unmounted) -> Waiting {
    let volumes = PodVolumes { volumes: [(volume(), mount())].into(), problems: Vec::new() };
    waiting("a", &volumes, &[(volume(), found)].into())
}

fn with(name: OperationName, pod: Option<&str>, record: Record) -> Unmounted {
    let operation = VolumeOperation { volume: volume(), pod: pod.map(str::to_owned), name };
    Unmounted { records: [(operation, record)].into(), ..unmounted() }
}

#[test]
fn each_cause_names_the_volume_as_the_pod_calls_it() {
    let sentence = |found| of(found).sentence.unwrap_or_default();
    let no_driver =
        Unmounted { not_ready: Some(Fault::transient("driver d is not registered on this node")), ..unmounted() };
    assert_eq!(sentence(no_driver), "volume \"data\": driver d is not registered on this node");
    let detached = Unmounted { attachment: Attachment::NotAttached, ..unmounted() };
    assert_eq!(sentence(detached.clone()), "volume \"data\": it is not attached to the node yet");
    let refused = Unmounted { attach_error: Some("no such disk".into()), ..detached };
    assert_eq!(sentence(refused), "volume \"data\": it is not attached to the node: no such disk");
    let failing = with(OperationName::SetUp, Some("a"), failed());
    assert_eq!(sentence(failing), "volume \"data\": it cannot be mounted: no");
    let staging = with(OperationName::MountDevice, None, failed());
    assert_eq!(sentence(staging), "volume \"data\": it cannot be mounted: no");
}

#[test]
fn nothing_is_said_of_what_is_on_its_way_or_of_another_pods_failure() {
    assert_eq!(of(unmounted()), Waiting::default());
    assert_eq!(of(with(OperationName::SetUp, Some("a"), running())), Waiting::default());
    assert_eq!(of(with(OperationName::SetUp, Some("b"), failed())), Waiting::default());
}

#[test]
fn a_volume_that_cannot_be_told_is_named_beside_one_that_waits() {
    let problem = Problem {
        volume: "logs".into(),
        message: "volume \"logs\": claim c is not bound yet".into(),
        is_waiting: true,
        labels_differ: None,
    };
    let volumes = PodVolumes { volumes: [(volume(), mount())].into(), problems: vec![problem] };
    let detached = Unmounted { attachment: Attachment::NotInUse, ..unmounted() };
    let said = waiting("a", &volumes, &[(volume(), detached)].into()).sentence.unwrap();
    assert_eq!(said, "volume \"data\": it is not attached to the node yet; volume \"logs\": claim c is not bound yet");
}

#[test]
fn s75_the_drivers_that_are_full_are_named() {
    let full = Unmounted { attachment: Attachment::NotAttached, over_limit: Some("driver".into()), ..unmounted() };
    assert_eq!(of(full).over_limit, ["driver".to_owned()].into());
}

#[test]
fn only_what_was_refused_for_good_is_final() {
    let is_final = |found: Unmounted| cause("a", &found).unwrap().is_final;
    assert!(is_final(Unmounted { not_ready: Some(Fault::refused("gitRepo is disabled")), ..unmounted() }));
    assert!(!is_final(Unmounted { not_ready: Some(Fault::transient("no driver yet")), ..unmounted() }));
    assert!(!is_final(Unmounted { attachment: Attachment::NotAttached, ..unmounted() }));
    let with_code = |name, code: &str| {
        let failure = Failure { code: code.into(), message: "no".into() };
        with(name, None, Record { state: State::Failed(failure), ..failed() })
    };
    assert!(is_final(with_code(OperationName::Attach, "Refused")));
    // A driver may think better of it, and what keeps a volume from growing does not keep it from being mounted.
    assert!(!is_final(with_code(OperationName::MountDevice, "InvalidArgument")));
    assert!(!is_final(with_code(OperationName::Expand, "Refused")));
}

#[test]
fn a_volume_that_another_pod_has_to_give_back_first_says_so() {
    let held = Unmounted { held_back: Some("it is in use by another pod".into()), ..unmounted() };
    assert_eq!(of(held).sentence.unwrap(), "volume \"data\": it is in use by another pod");
}
