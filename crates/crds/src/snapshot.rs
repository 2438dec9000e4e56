//! VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass: v1, and v1beta1 for what old clusters have stored.

use stowage_model::object::{Kind, kinds};

use crate::definition::{AGE, Column, Definition, Version, metadata, object};
use crate::schema::{Schema, deletion_policy, error, reference};

const APPROVED: &str = "https://github.com/kubernetes-csi/external-snapshotter/pull/814";
const CONTENT_APPROVED: &str = "https://github.com/kubernetes-csi/external-snapshotter/pull/955";

/// Both versions of a kind; `schema` is told whether it is for the newer.
fn versions(kind: Kind, has_status: bool, schema: impl Fn(bool) -> Schema) -> Vec<Version> {
    let Kind { group, kind, .. } = kind;
    let warning = format!("{group}/v1beta1 {kind} is deprecated; use {group}/v1 {kind}");
    let version = |name, schema, newer, warning| Version {
        name,
        schema,
        served: newer,
        stored: newer,
        deprecated: !newer,
        warning,
        has_status,
    };
    let newer = schema(true).field("metadata", metadata());
    vec![version("v1", newer, true, None), version("v1beta1", schema(false), false, Some(warning))]
}

pub(crate) fn class() -> Definition {
    let kind = kinds::VOLUME_SNAPSHOT_CLASS;
    let columns: [Column; 3] = [("Driver", "string", ".driver"), ("DeletionPolicy", "string", ".deletionPolicy"), AGE];
    Definition {
        kind,
        short_names: &["vsclass", "vsclasses"],
        approved: APPROVED,
        columns: columns.into(),
        versions: versions(kind, false, |_| {
            object("How snapshots are made: by which driver, with which parameters, and whether they outlive their objects.")
                .field("driver", Schema::string("Name of the CSI driver that makes them."))
                .field("parameters", Schema::map("For the driver, which alone knows what they mean, and the names of its secrets."))
                .field("deletionPolicy", deletion_policy(
                    "Whether the snapshot in the driver is deleted (Delete) or kept (Retain) when its VolumeSnapshot is deleted."))
                .required(&["deletionPolicy", "driver"])
        }),
    }
}

pub(crate) fn content() -> Definition {
    let kind = kinds::VOLUME_SNAPSHOT_CONTENT;
    let columns: [Column; 8] = [
        ("ReadyToUse", "boolean", ".status.readyToUse"),
        ("RestoreSize", "integer", ".status.restoreSize"),
        ("DeletionPolicy", "string", ".spec.deletionPolicy"),
        ("Driver", "string", ".spec.driver"),
        ("VolumeSnapshotClass", "string", ".spec.volumeSnapshotClassName"),
        ("VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"),
        ("VolumeSnapshotNamespace", "string", ".spec.volumeSnapshotRef.namespace"),
        AGE,
    ];
    Definition {
        kind,
        short_names: &["vsc", "vscs"],
        approved: CONTENT_APPROVED,
        columns: columns.into(),
        versions: versions(kind, true, |newer| {
            object("A snapshot in a driver. Made by the snapshot-controller, or by an administrator for a snapshot that exists already.")
                .field("spec", content_spec(newer))
                .field("status", content_status(newer))
                .required(&["spec"])
        }),
    }
}

fn content_spec(newer: bool) -> Schema {
    let immutable = |name: &'static str| move |schema: Schema| schema.immutable(name);
    let volume = Schema::string("The driver's id of the volume of which a snapshot is made.");
    let snapshot = Schema::string("The driver's id of a snapshot that exists already.");
    let source = Schema::object("Where the snapshot comes from: exactly one of the fields is set.")
        .field("volumeHandle", volume.when(newer, immutable("volumeHandle")))
        .field("snapshotHandle", snapshot.when(newer, immutable("snapshotHandle")))
        .when(newer, |source| source.one_of("volumeHandle", "snapshotHandle"));
    let owner = reference("The VolumeSnapshot this belongs to. Its uid is set when the two are bound.");
    let owner = owner.when(newer, |owner| {
        owner
            .with("x-kubernetes-map-type", "atomic")
            .rule("has(self.name) && has(self.__namespace__)", "set both name and namespace of volumeSnapshotRef")
    });
    let mode = Schema::string("Filesystem or Block, as the volume was of which the snapshot was made.");
    Schema::object("What is wanted.")
        .field("volumeSnapshotRef", owner)
        .field(
            "deletionPolicy",
            deletion_policy(
                "Whether the snapshot in the driver is deleted (Delete) or kept (Retain) when this object is deleted.",
            ),
        )
        .field("driver", Schema::string("Name of the CSI driver that has the snapshot, as it calls itself."))
        .field(
            "volumeSnapshotClassName",
            Schema::string("The class the snapshot was made with. It may be gone or changed since."),
        )
        .field("source", source)
        .when(newer, |spec| {
            spec.field("sourceVolumeMode", mode.immutable("sourceVolumeMode")).stays("sourceVolumeMode")
        })
        .required(&["deletionPolicy", "driver", "source", "volumeSnapshotRef"])
}

fn content_status(newer: bool) -> Schema {
    let size = "The least size in bytes of a volume made from this. Absent while nobody knows it.";
    let group = "The driver's id of the group snapshot this was made with.";
    Schema::object("What is; set by the snapshotter.")
        .field("snapshotHandle", Schema::string("The driver's id of the snapshot. Absent until there is one."))
        .field(
            "creationTime",
            Schema::integer("The moment whose data it holds, in nanoseconds since 1970, by the driver's clock."),
        )
        .field("restoreSize", Schema::integer(size).with("minimum", 0))
        .field("readyToUse", Schema::boolean("Whether volumes can be made from it. Absent while nobody knows."))
        .field("error", error())
        .when(newer, |status| status.field("volumeGroupSnapshotHandle", Schema::string(group)))
}

pub(crate) fn snapshot() -> Definition {
    let kind = kinds::VOLUME_SNAPSHOT;
    let columns: [Column; 8] = [
        ("ReadyToUse", "boolean", ".status.readyToUse"),
        ("SourcePVC", "string", ".spec.source.persistentVolumeClaimName"),
        ("SourceSnapshotContent", "string", ".spec.source.volumeSnapshotContentName"),
        ("RestoreSize", "string", ".status.restoreSize"),
        ("SnapshotClass", "string", ".spec.volumeSnapshotClassName"),
        ("SnapshotContent", "string", ".status.boundVolumeSnapshotContentName"),
        ("CreationTime", "date", ".status.creationTime"),
        AGE,
    ];
    Definition {
        kind,
        short_names: &["vs"],
        approved: APPROVED,
        columns: columns.into(),
        versions: versions(kind, true, |newer| {
            object("The wish for a snapshot of a claim, or for one that exists already.")
                .field("spec", snapshot_spec(newer))
                .field("status", snapshot_status(newer))
                .required(&["spec"])
        }),
    }
}

fn snapshot_spec(newer: bool) -> Schema {
    let claim = Schema::string("A PersistentVolumeClaim of this namespace, of whose volume a snapshot is made.");
    let content = Schema::string("A VolumeSnapshotContent that stands for a snapshot the driver has already.");
    let class = Schema::string(
        "The VolumeSnapshotClass it is made with. Without one, the default class of the volume's driver is filled in.",
    );
    let immutable = |name: &'static str| move |schema: Schema| schema.immutable(name);
    let source = Schema::object("Where the snapshot comes from: exactly one of the fields is set.")
        .field("persistentVolumeClaimName", claim.when(newer, immutable("persistentVolumeClaimName")))
        .field("volumeSnapshotContentName", content.when(newer, immutable("volumeSnapshotContentName")))
        .when(newer, |source| source.one_of("persistentVolumeClaimName", "volumeSnapshotContentName"));
    let named = "volumeSnapshotClassName must not be empty; leave it out for the default class";
    Schema::object("What is wanted.")
        .field("source", source)
        .field("volumeSnapshotClassName", class.when(newer, |class| class.rule("size(self) > 0", named)))
        .required(&["source"])
}

fn snapshot_status(newer: bool) -> Schema {
    let bound = "The VolumeSnapshotContent it is bound to. The two belong together only if that one's volumeSnapshotRef says so too.";
    let group = "The VolumeGroupSnapshot it was made with.";
    Schema::object("What is; set by the snapshot-controller.")
        .field("boundVolumeSnapshotContentName", Schema::string(bound))
        .field("creationTime", Schema::time("The moment whose data it holds, by the driver's clock."))
        .field("readyToUse", Schema::boolean("Whether volumes can be made from it. Absent while nobody knows."))
        .field(
            "restoreSize",
            Schema::quantity("The least size of a volume made from it. Absent while nobody knows it."),
        )
        .field("error", error())
        .when(newer, |status| status.field("volumeGroupSnapshotName", Schema::string(group)))
}
