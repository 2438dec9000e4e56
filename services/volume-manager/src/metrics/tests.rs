use std::time::Duration;

use stowage_model::object::Key;
use stowage_plugins::plugin::VolumeStats;

use super::*;
use crate::actual_state::MountState;
use crate::decide::tests::{mount, mounted, now, spec, volume};
use crate::desired_state::PodVolumes;
use crate::state::States;

fn node() -> (metrics::Metrics, Metrics, Arc<State>) {
    let all = metrics::Metrics::default();
    let own = Metrics::register(&all);
    let state = Arc::new(State::new(States::default(), Default::default()));
    own.watch(&all, &state);
    (all, own, state)
}

#[track_caller]
fn shows(metrics: &metrics::Metrics, line: &str) {
    let text = metrics.encode();
    assert!(text.lines().any(|shown| shown == line), "{line}\nis not in\n{text}");
}

fn want(state: &State) {
    let volumes = PodVolumes { volumes: [(volume(), mount())].into(), problems: Vec::new() };
    state.with(|states| states.desired.set("p", volumes, now()));
}

fn hold(state: &State, how: Option<MountState>) {
    state.with(|states| states.actual.set_pod(&volume(), &spec(), "p", how.map(mounted)));
}

#[test]
fn what_is_wanted_and_not_mounted_is_a_difference_until_it_is() {
    let (all, _, state) = node();
    want(&state);
    hold(&state, Some(MountState::Uncertain));
    shows(&all, r#"volume_manager_state_diff{plugin="kubernetes.io/csi:driver",direction="to_mount"} 1"#);
    shows(
        &all,
        r#"volume_manager_total_volumes{plugin_name="kubernetes.io/csi:driver",state="desired_state_of_world"} 1"#,
    );
    hold(&state, Some(MountState::Mounted));
    shows(&all, r#"kubelet_volumes_mounted{plugin="kubernetes.io/csi:driver"} 1"#);
    shows(
        &all,
        r#"volume_manager_total_volumes{plugin_name="kubernetes.io/csi:driver",state="actual_state_of_world"} 1"#,
    );
    assert!(!all.encode().contains("state_diff{"));
    state.with(|states| states.desired.remove("p"));
    shows(&all, r#"volume_manager_state_diff{plugin="kubernetes.io/csi:driver",direction="to_unmount"} 1"#);
}

#[test]
fn an_operation_is_counted_under_every_name_it_has() {
    let (all, own, _state) = node();
    own.operation("volume_mount", "kubernetes.io/csi:driver", true, Duration::from_millis(20));
    own.operation("mount_device", "kubernetes.io/csi:driver", false, Duration::from_millis(20));
    own.mounted_after("kubernetes.io/csi:driver".into(), Duration::from_secs(2));
    shows(&all, r#"kubelet_volume_mount_total{plugin="kubernetes.io/csi:driver",status="success"} 1"#);
    shows(
        &all,
        r#"volume_manager_operations_total{operation="mount_device",plugin="kubernetes.io/csi:driver",status="failure"} 1"#,
    );
    shows(
        &all,
        r#"volume_operation_total_seconds_sum{plugin_name="kubernetes.io/csi:driver",operation_name="overall_volume_mount"} 2.0"#,
    );
    shows(
        &all,
        r#"storage_operation_duration_seconds_count{volume_plugin="kubernetes.io/csi:driver",operation_name="mount_device",status="fail-unknown",migrated="false"} 1"#,
    );
}

#[test]
fn driver_calls_are_shown_under_the_kubelets_names_too() {
    let (all, _, _state) = node();
    all.observe_csi("driver", "/csi.v1.Node/NodePublishVolume", "OK", None, Duration::from_millis(1));
    let labels = r#"{driver_name="driver",method_name="/csi.v1.Node/NodePublishVolume",grpc_status_code="OK"} 1"#;
    for name in ["csi_operations_seconds", "kubelet_csi_operation_duration_seconds"] {
        shows(&all, &format!("{name}_count{labels}"));
    }
}

#[test]
fn a_claims_figures_go_when_it_is_unmounted() {
    let (all, own, state) = node();
    hold(&state, Some(MountState::Mounted));
    let stats = VolumeStats { capacity_bytes: Some(1 << 30), used_bytes: Some(7), ..VolumeStats::default() };
    own.usages.told(Key::namespaced("default", "claim"), stats);
    shows(&all, r#"kubelet_volume_stats_capacity_bytes{namespace="default",persistentvolumeclaim="claim"} 1073741824"#);
    shows(&all, r#"kubelet_volume_stats_used_bytes{namespace="default",persistentvolumeclaim="claim"} 7"#);
    assert!(!all.encode().contains("kubelet_volume_stats_inodes{"), "what is not known is not shown");
    hold(&state, None);
    assert!(!all.encode().contains("persistentvolumeclaim="));
}

#[test]
fn two_nodes_of_one_process_are_counted_together() {
    let (all, own, first) = node();
    let second = Arc::new(State::new(States::default(), Default::default()));
    own.watch(&all, &second);
    hold(&first, Some(MountState::Mounted));
    hold(&second, Some(MountState::Mounted));
    shows(&all, r#"kubelet_volumes_mounted{plugin="kubernetes.io/csi:driver"} 2"#);
    drop(second);
    shows(&all, r#"kubelet_volumes_mounted{plugin="kubernetes.io/csi:driver"} 1"#);
}
