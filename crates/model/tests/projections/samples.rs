//! One object of each kind, as a real API server sends it, with fields this project does not know.

use serde_json::{Value, json};

fn metadata(namespace: Option<&str>, name: &str) -> Value {
    json!({
        "name": name,
        "namespace": namespace,
        "uid": format!("uid-of-{name}"),
        "resourceVersion": "4711",
        "generation": 3,
        "creationTimestamp": "2025-03-01T10:00:00Z",
        "deletionTimestamp": "2025-03-01T11:00:00Z",
        "deletionGracePeriodSeconds": 30,
        "finalizers": ["kubernetes.io/pvc-protection"],
        "labels": {"app": "web", "topology.kubernetes.io/zone": "a"},
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{\"bulky\":true}",
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            "pv.kubernetes.io/bind-completed": "yes",
        },
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "pod-uid", "controller": true}],
        "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
        "fieldOfTomorrow": {"deep": [1, 2, {"x": null}]},
    })
}

pub fn claim() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(Some("shop"), "data"),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi", "cpu": "1"}, "limits": {"storage": "20Gi"}},
            "storageClassName": "fast",
            "volumeName": "pvc-1",
            "volumeMode": "Block",
            "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]},
            "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"},
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "other", "namespace": "ns"},
            "volumeAttributesClassName": "gold",
            "fieldOfTomorrow": 1,
        },
        "status": {
            "phase": "Bound",
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "10Gi"},
            "allocatedResources": {"storage": 10737418240_u64},
            "conditions": [{"type": "Resizing", "status": "True", "reason": "r", "message": "m",
                            "lastProbeTime": null, "lastTransitionTime": "2025-03-01T10:00:00Z"}],
        },
    })
}

pub fn volume() -> Value {
    let secret = json!({"name": "s", "namespace": "ns"});
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata(None, "pvc-1"),
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany"],
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data",
                         "uid": "uid-of-data", "resourceVersion": "12"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
            "mountOptions": ["noatime"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}], "matchFields": null}]}},
            "csi": {
                "driver": "shared.csi.stowage.dev", "volumeHandle": "h1", "fsType": "ext4", "readOnly": true,
                "volumeAttributes": {"pool": "fast"},
                "controllerPublishSecretRef": secret, "nodeStageSecretRef": secret, "nodePublishSecretRef": secret,
                "controllerExpandSecretRef": secret, "nodeExpandSecretRef": secret,
            },
            "volumeAttributesClassName": "gold",
        },
        "status": {"phase": "Bound", "reason": "", "message": "", "lastPhaseTransitionTime": "2025-03-01T10:00:00Z"},
    })
}

pub fn class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": metadata(None, "fast"),
        "provisioner": "shared.csi.stowage.dev",
        "parameters": {"pool": "fast"},
        "reclaimPolicy": "Retain",
        "mountOptions": ["noatime"],
        "allowVolumeExpansion": true,
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}],
    })
}

pub fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(Some("shop"), "web-0"),
        "spec": {
            "nodeName": "node1",
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "config", "configMap": {"name": "c", "defaultMode": 420}},
                {"name": "password", "secret": {"secretName": "s"}},
                {"name": "token", "projected": {"sources": []}},
                {"name": "me", "downwardAPI": {"items": []}},
                {"name": "host", "hostPath": {"path": "/", "type": ""}},
                {"name": "inline", "csi": {"driver": "local.csi.stowage.dev", "volumeAttributes": {"size": "1Gi"},
                                            "nodePublishSecretRef": {"name": "s"}}},
                {"name": "share", "nfs": {"server": "s", "path": "/"}},
            ],
            "containers": [{"name": "web", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d"}],
                            "volumeDevices": [{"name": "scratch", "devicePath": "/dev/x"}]}],
            "initContainers": [{"name": "init", "volumeMounts": [{"name": "tmp", "mountPath": "/t"}]}],
            "securityContext": {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch", "runAsUser": 1},
            "serviceAccountName": "web",
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "nodeSelector": {"disk": "ssd"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}},
            "schedulingGates": [{"name": "g"}],
            "schedulerName": "default-scheduler",
            "restartPolicy": "Never",
            "hostUsers": false,
            "terminationGracePeriodSeconds": 30,
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False", "observedGeneration": 1}],
            "containerStatuses": [{"name": "web", "ready": true, "restartCount": 0,
                                    "state": {"running": {"startedAt": "2025-03-01T10:00:00Z"}}, "lastState": {}}],
            "initContainerStatuses": [{"name": "init", "ready": false, "state": {"terminated": {"exitCode": 0}}}],
            "startTime": "2025-03-01T10:00:00Z",
        },
    })
}

pub fn node() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata(None, "node1"),
        "spec": {"podCIDR": "10.0.0.0/24", "unschedulable": true,
                 "taints": [{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute",
                             "timeAdded": "2025-03-01T10:00:00Z"}]},
        "status": {
            "volumesAttached": [{"name": "kubernetes.io/csi/d^h", "devicePath": ""}],
            "volumesInUse": ["kubernetes.io/csi/d^h"],
            "conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                            "lastHeartbeatTime": "2025-03-01T10:00:00Z", "lastTransitionTime": "2025-03-01T10:01:00Z"}],
            "images": [{"names": ["i"], "sizeBytes": 1}],
        },
    })
}

pub fn attachment() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": metadata(None, "csi-abc"),
        "spec": {"attacher": "shared.csi.stowage.dev", "nodeName": "node1",
                 "source": {"persistentVolumeName": "pvc-1", "inlineVolumeSpec": volume()["spec"].clone()}},
        "status": {
            "attached": true,
            "attachmentMetadata": {"token": "t"},
            "attachError": {"message": "m", "time": "2025-03-01T10:00:00Z", "errorCode": 8},
            "detachError": {"message": "m", "time": "2025-03-01T10:00:00Z"},
        },
    })
}

pub fn csi_node() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": metadata(None, "node1"),
        "spec": {"drivers": [{"name": "d", "nodeID": "id1", "topologyKeys": ["zone"], "allocatable": {"count": 24}}]},
    })
}

pub fn csi_driver() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": metadata(None, "d"),
        "spec": {
            "attachRequired": false, "podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"],
            "storageCapacity": true, "fsGroupPolicy": "File", "requiresRepublish": true, "seLinuxMount": true,
            "tokenRequests": [{"audience": "a", "expirationSeconds": 600}],
        },
    })
}

pub fn lease() -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata(Some("kube-system"), "external-attacher-leader-d"),
        "spec": {"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "acquireTime": "2025-03-01T10:00:00.000000Z",
                 "renewTime": "2025-03-01T10:00:05.123456Z", "leaseTransitions": 2},
    })
}

pub fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(Some("ns"), "s"), "type": "Opaque",
           "data": {"password": "aHVudGVyMg=="}})
}

pub fn volume_snapshot() -> Value {
    json!({
        "metadata": {"name": "s", "namespace": "shop", "uid": "u", "resourceVersion": "7"},
        "spec": {
            "source": {"persistentVolumeClaimName": "data", "volumeSnapshotContentName": "c"},
            "volumeSnapshotClassName": "fast",
        },
        "status": {
            "boundVolumeSnapshotContentName": "snapcontent-u",
            "creationTime": "2026-01-02T03:04:05Z",
            "readyToUse": true,
            "restoreSize": "1Gi",
            "error": {"time": "2026-01-02T03:04:05Z", "message": "no"},
            "volumeGroupSnapshotName": "g",
        },
    })
}

pub fn volume_snapshot_content() -> Value {
    json!({
        "metadata": {"name": "snapcontent-u", "uid": "c", "resourceVersion": "8"},
        "spec": {
            "volumeSnapshotRef": {"namespace": "shop", "name": "s", "uid": "u"},
            "deletionPolicy": "Delete",
            "driver": "d",
            "volumeSnapshotClassName": "fast",
            "source": {"volumeHandle": "v", "snapshotHandle": "h"},
            "sourceVolumeMode": "Filesystem",
        },
        "status": {
            "snapshotHandle": "h",
            "creationTime": 1_700_000_000_000_000_000_i64,
            "restoreSize": 1024,
            "readyToUse": true,
            "error": {"time": "2026-01-02T03:04:05Z", "message": "no"},
            "volumeGroupSnapshotHandle": "gh",
        },
    })
}

pub fn volume_group_snapshot() -> Value {
    json!({
        "metadata": {"name": "g", "namespace": "shop", "uid": "gu", "resourceVersion": "9"},
        "spec": {
            "source": {"selector": {"matchLabels": {"app": "db"}}, "volumeGroupSnapshotContentName": "gc"},
            "volumeGroupSnapshotClassName": "fast",
        },
        "status": {
            "boundVolumeGroupSnapshotContentName": "groupsnapcontent-gu",
            "creationTime": "2026-01-02T03:04:05Z",
            "readyToUse": true,
            "error": {"time": "2026-01-02T03:04:05Z", "message": "no"},
        },
    })
}

pub fn volume_group_snapshot_content() -> Value {
    json!({
        "metadata": {"name": "groupsnapcontent-gu", "uid": "gc", "resourceVersion": "10"},
        "spec": {
            "volumeGroupSnapshotRef": {"namespace": "shop", "name": "g", "uid": "gu"},
            "deletionPolicy": "Delete",
            "driver": "d",
            "volumeGroupSnapshotClassName": "fast",
            "source": {
                "volumeHandles": ["v"],
                "groupSnapshotHandles": {"volumeGroupSnapshotHandle": "gh", "volumeSnapshotHandles": ["h"]},
            },
        },
        "status": {
            "volumeGroupSnapshotHandle": "gh",
            "creationTime": "2026-01-02T03:04:05Z",
            "readyToUse": true,
            "error": {"time": "2026-01-02T03:04:05Z", "message": "no"},
            "volumeSnapshotInfoList": [{
                "volumeHandle": "v", "snapshotHandle": "h", "creationTime": 5, "readyToUse": true, "restoreSize": 1024,
            }],
        },
    })
}

pub fn snapshot_class() -> Value {
    json!({
        "metadata": {
            "name": "fast",
            "annotations": {
                "snapshot.storage.kubernetes.io/is-default-class": "true",
                "groupsnapshot.storage.kubernetes.io/is-default-class": "true",
            },
        },
        "driver": "d",
        "parameters": {"a": "b"},
        "deletionPolicy": "Delete",
    })
}

pub fn reference_grant() -> Value {
    json!({
        "metadata": {"name": "g", "namespace": "prod", "uid": "rg", "resourceVersion": "11"},
        "spec": {
            "from": [{"group": "", "kind": "PersistentVolumeClaim", "namespace": "dev"}],
            "to": [{"group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}],
        },
    })
}
