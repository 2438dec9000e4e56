//! VolumeGroupSnapshot, VolumeGroupSnapshotContent and VolumeGroupSnapshotClass: v1 and v1beta2, which are alike, and v1beta1.

use stowage_model::object::kinds;

use crate::definition::{AGE, Column, Definition, Version, metadata, object};
use crate::schema::{Schema, deletion_policy, error, label_selector, reference};

const APPROVED: &str = "https://github.com/kubernetes-csi/external-snapshotter/pull/1337";

/// All versions of a kind; `schema` is told whether it is for one of the newer two. v1beta2 is stored, as long as there may
/// be controllers that know nothing newer.
fn versions(has_status: bool, schema: impl Fn(bool) -> Schema) -> Vec<Version> {
    let version = |name, newer, stored| Version {
        name,
        schema: schema(newer).field("metadata", metadata()),
        served: true,
        stored,
        deprecated: !newer,
        warning: None,
        has_status,
    };
    vec![version("v1", true, false), version("v1beta1", false, false), version("v1beta2", true, true)]
}

/// A field that no longer changes, where the older version lets it.
fn fixed(newer: bool, name: &str, schema: Schema) -> Schema {
    schema.when(newer, |schema| schema.immutable(name))
}

pub(crate) fn class() -> Definition {
    let columns: [Column; 3] = [("Driver", "string", ".driver"), ("DeletionPolicy", "string", ".deletionPolicy"), AGE];
    Definition {
        kind: kinds::VOLUME_GROUP_SNAPSHOT_CLASS,
        short_names: &["vgsclass", "vgsclasses"],
        approved: APPROVED,
        columns: columns.into(),
        versions: versions(false, |newer| {
            let driver = Schema::string("Name of the CSI driver that makes them.");
            let parameters =
                Schema::map("For the driver, which alone knows what they mean, and the names of its secrets.");
            let policy = deletion_policy(
                "Whether the group snapshot in the driver is deleted (Delete) or kept (Retain) when its VolumeGroupSnapshot is deleted.",
            );
            object("How group snapshots are made: by which driver, with which parameters, and whether they outlive their objects.")
                .field("driver", fixed(newer, "driver", driver))
                .field("parameters", fixed(newer, "parameters", parameters))
                .field("deletionPolicy", fixed(newer, "deletionPolicy", policy))
                .required(&["deletionPolicy", "driver"])
        }),
    }
}

pub(crate) fn content() -> Definition {
    let columns: [Column; 7] = [
        ("ReadyToUse", "boolean", ".status.readyToUse"),
        ("DeletionPolicy", "string", ".spec.deletionPolicy"),
        ("Driver", "string", ".spec.driver"),
        ("VolumeGroupSnapshotClass", "string", ".spec.volumeGroupSnapshotClassName"),
        ("VolumeGroupSnapshotNamespace", "string", ".spec.volumeGroupSnapshotRef.namespace"),
        ("VolumeGroupSnapshot", "string", ".spec.volumeGroupSnapshotRef.name"),
        AGE,
    ];
    Definition {
        kind: kinds::VOLUME_GROUP_SNAPSHOT_CONTENT,
        short_names: &["vgsc", "vgscs"],
        approved: APPROVED,
        columns: columns.into(),
        versions: versions(true, |newer| {
            object("A group snapshot in a driver. Made by the snapshot-controller, or by an administrator for one that exists already.")
                .field("spec", content_spec(newer))
                .field("status", content_status(newer))
                .required(&["spec"])
        }),
    }
}

fn content_spec(newer: bool) -> Schema {
    let handle = || Schema::string("").silent();
    let volumes = Schema::list("The driver's ids of the volumes of which snapshots are made.", handle());
    let group = Schema::object("The driver's ids of a group snapshot that exists already.")
        .field("volumeGroupSnapshotHandle", Schema::string("The driver's id of the group."))
        .field("volumeSnapshotHandles", Schema::list("The driver's ids of its members.", handle()))
        .required(&["volumeGroupSnapshotHandle", "volumeSnapshotHandles"]);
    let source = Schema::object("Where the group snapshot comes from: exactly one of the fields is set.")
        .field("volumeHandles", volumes.immutable("volumeHandles"))
        .field("groupSnapshotHandles", group.immutable("groupSnapshotHandles"))
        .one_of("volumeHandles", "groupSnapshotHandles");
    let owner = reference("The VolumeGroupSnapshot this belongs to. Its uid is set when the two are bound.")
        .with("x-kubernetes-map-type", "atomic")
        .rule("has(self.name) && has(self.__namespace__)", "set both name and namespace of volumeGroupSnapshotRef")
        .when(newer, |owner| {
            owner
                .rule(
                    "self.name == oldSelf.name && self.__namespace__ == oldSelf.__namespace__",
                    "name and namespace of volumeGroupSnapshotRef cannot be changed; make a new object instead",
                )
                .rule(
                    "!has(oldSelf.uid) || has(self.uid) && self.uid == oldSelf.uid",
                    "uid of volumeGroupSnapshotRef cannot be changed; make a new object instead",
                )
        });
    let class = Schema::string("The class the group snapshot was made with. It may be gone or changed since.");
    Schema::object("What is wanted.")
        .field("volumeGroupSnapshotRef", owner)
        .field("deletionPolicy", deletion_policy(
            "Whether the group snapshot in the driver is deleted (Delete) or kept (Retain) when this object is deleted."))
        .field("driver", fixed(newer, "driver", Schema::string("Name of the CSI driver that has it, as it calls itself.")))
        .field("volumeGroupSnapshotClassName", fixed(newer, "volumeGroupSnapshotClassName", class))
        .field("source", source)
        .required(&["deletionPolicy", "driver", "source", "volumeGroupSnapshotRef"])
}

fn content_status(newer: bool) -> Schema {
    let handle = Schema::string("The driver's id of the group. Absent until there is one.");
    let member = Schema::object("One member of the group.")
        .field("volumeHandle", Schema::string("The driver's id of the volume."))
        .field("snapshotHandle", Schema::string("The driver's id of the volume's snapshot."));
    let status = Schema::object("What is; set by the snapshotter.")
        .field("volumeGroupSnapshotHandle", fixed(newer, "volumeGroupSnapshotHandle", handle))
        .field("creationTime", Schema::time("The moment whose data it holds, by the driver's clock."))
        .field(
            "readyToUse",
            Schema::boolean("Whether volumes can be made from all its members. Absent while nobody knows."),
        )
        .field("error", error());
    if !newer {
        let member = member.required(&["snapshotHandle", "volumeHandle"]);
        return status.field("volumeSnapshotHandlePairList", Schema::list("Its members.", member));
    }
    let size = "The least size in bytes of a volume made from it. Absent while nobody knows it.";
    let member = member
        .field(
            "creationTime",
            Schema::integer("The moment whose data it holds, in nanoseconds since 1970, by the driver's clock."),
        )
        .field("readyToUse", Schema::boolean("Whether volumes can be made from it."))
        .field("restoreSize", Schema::integer(size));
    status.field("volumeSnapshotInfoList", Schema::list("Its members.", member))
}

pub(crate) fn group_snapshot() -> Definition {
    let columns: [Column; 5] = [
        ("ReadyToUse", "boolean", ".status.readyToUse"),
        ("VolumeGroupSnapshotClass", "string", ".spec.volumeGroupSnapshotClassName"),
        ("VolumeGroupSnapshotContent", "string", ".status.boundVolumeGroupSnapshotContentName"),
        ("CreationTime", "date", ".status.creationTime"),
        AGE,
    ];
    Definition {
        kind: kinds::VOLUME_GROUP_SNAPSHOT,
        short_names: &["vgs"],
        approved: APPROVED,
        columns: columns.into(),
        versions: versions(true, |newer| {
            object("The wish for snapshots of several claims, all of one moment, or for a group snapshot that exists already.")
                .field("spec", spec())
                .field("status", status(newer))
                .required(&["spec"])
        }),
    }
}

fn spec() -> Schema {
    let selector = label_selector("PersistentVolumeClaims of this namespace, of whose volumes snapshots are made.");
    let content =
        Schema::string("A VolumeGroupSnapshotContent that stands for a group snapshot the driver has already.");
    let class = "The VolumeGroupSnapshotClass it is made with. Without one, the default class of the volumes' driver is filled in.";
    let named = "volumeGroupSnapshotClassName must not be empty; leave it out for the default class";
    let source = Schema::object("Where the group snapshot comes from: exactly one of the fields is set.")
        .field("selector", selector.immutable("selector"))
        .field("volumeGroupSnapshotContentName", content.immutable("volumeGroupSnapshotContentName"))
        .one_of("selector", "volumeGroupSnapshotContentName");
    Schema::object("What is wanted.")
        .field("source", source)
        .field("volumeGroupSnapshotClassName", Schema::string(class).rule("size(self) > 0", named))
        .required(&["source"])
}

fn status(newer: bool) -> Schema {
    let bound = Schema::string(
        "The VolumeGroupSnapshotContent it is bound to. The two belong together only if that one's volumeGroupSnapshotRef says so too.",
    );
    Schema::object("What is; set by the snapshot-controller.")
        .field("boundVolumeGroupSnapshotContentName", fixed(newer, "boundVolumeGroupSnapshotContentName", bound))
        .field("creationTime", Schema::time("The moment whose data it holds, by the driver's clock."))
        .field(
            "readyToUse",
            Schema::boolean("Whether volumes can be made from all its members. Absent while nobody knows."),
        )
        .field("error", error())
}
