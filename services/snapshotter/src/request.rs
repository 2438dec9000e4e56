//! From a content and its class to a driver call, or to the reason why there can be none.

use std::collections::BTreeMap;

use stowage_csi::v1::{
    CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, DeleteSnapshotRequest, DeleteVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotRequest, ListSnapshotsRequest,
};
use stowage_model::object::Key;
use stowage_model::template::{self, RESERVED_PREFIX, Tokens};

use crate::content::{Content, Source};
use crate::snapshot::{Case, Class, Facts};
use crate::sort::Sort;

/// The keys of class parameters that are meant for us or the snapshot-controller.
const KNOWN: [&str; 8] = [
    "csi.storage.k8s.io/snapshotter-secret-name",
    "csi.storage.k8s.io/snapshotter-secret-namespace",
    "csi.storage.k8s.io/snapshotter-list-secret-name",
    "csi.storage.k8s.io/snapshotter-list-secret-namespace",
    "csi.storage.k8s.io/group-snapshotter-secret-name",
    "csi.storage.k8s.io/group-snapshotter-secret-namespace",
    "csi.storage.k8s.io/group-snapshotter-get-secret-name",
    "csi.storage.k8s.io/group-snapshotter-get-secret-namespace",
];

/// Why the driver cannot be asked. People read it in the status of the content, which their own object repeats.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error(
        "spec.source must have exactly one of a volume's handle and a snapshot's handle; delete this object and create it anew"
    )]
    ReadSource,
    #[error("spec.{user}Ref.uid is empty, so that the snapshot has no name; let the snapshot-controller make contents", user = lower(.user))]
    NameSnapshot { user: &'static str },
    #[error("spec has no class, and a snapshot is made as its {class} says; name one in the {user} and create it anew")]
    ChooseClass { class: &'static str, user: &'static str },
    #[error("{class} {name:?} does not exist; create it")]
    FindClass { class: &'static str, name: String },
    #[error("{class} {name:?}: parameter {key:?} starts with {RESERVED_PREFIX:?} and is unknown; remove it, or use one of {}", KNOWN.join(", "))]
    ReadParameters { class: &'static str, name: String, key: String },
    #[error("{class} {name:?}: {source}")]
    NameSecret { class: &'static str, name: String, source: template::Error },
    #[error("annotations {name:?} and {namespace:?} must both have a value; remove both if no secret is needed")]
    ReadSecret { name: &'static str, namespace: &'static str },
    #[error(
        "driver {driver:?} has no group snapshots (capability CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT); use another driver"
    )]
    FindGroups { driver: String },
    #[error(
        "no member of the group is known, and the driver deletes a group only with its members; delete it in the driver and remove the finalizer of this object"
    )]
    FindMembers,
}

fn lower(kind: &str) -> String {
    let mut characters = kind.chars();
    characters.next().map_or_else(String::new, |first| first.to_ascii_lowercase().to_string() + characters.as_str())
}

/// A call ready to be made, but for the values of its secret.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub request: Request,
    pub secret: Option<Key>,
    /// Whether nothing of the request is missing: else a driver's final word is not about the snapshot.
    pub is_whole: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    CreateSnapshot(CreateSnapshotRequest),
    ListSnapshots(ListSnapshotsRequest),
    DeleteSnapshot(DeleteSnapshotRequest),
    CreateGroup(CreateVolumeGroupSnapshotRequest),
    GetGroup(GetVolumeGroupSnapshotRequest),
    DeleteGroup(DeleteVolumeGroupSnapshotRequest),
}

impl Case {
    /// The call that makes the snapshot, or says what became of it.
    pub fn create(&self, facts: &Facts) -> Result<Planned, Problem> {
        let content = &self.content;
        let words = content.words();
        let Class::Found { name, parameters } = &self.class else {
            return Err(match &self.class {
                Class::Missing(name) => Problem::FindClass { class: words.class, name: name.clone() },
                _ => Problem::ChooseClass { class: words.class, user: words.user },
            });
        };
        let parameters = for_driver(content, name, parameters)?;
        Ok(Planned { request: make(content, parameters, facts)?, secret: annotated(content)?, is_whole: true })
    }

    /// The same for a content that is going: what is gone since does without. CSI knows a snapshot again by its name and
    /// its volume.
    pub fn create_again(&self, facts: &Facts) -> Result<Planned, Problem> {
        match self.create(facts) {
            Err(
                Problem::FindClass { .. }
                | Problem::ChooseClass { .. }
                | Problem::ReadParameters { .. }
                | Problem::ReadSecret { .. },
            ) => {
                let request = make(&self.content, BTreeMap::new(), facts)?;
                Ok(Planned { request, secret: annotated(&self.content).unwrap_or_default(), is_whole: false })
            }
            other => other,
        }
    }

    /// The call that looks at what the driver has already.
    pub fn look(&self, handle: &str, facts: &Facts) -> Result<Planned, Problem> {
        let content = &self.content;
        // Members have no class; what they need is annotated.
        let secret = if content.is_member { annotated(content)? } else { self.look_secret()? };
        let request = match (content.sort, &content.source) {
            (Sort::Snapshot, _) => Request::ListSnapshots(ListSnapshotsRequest {
                snapshot_id: handle.to_owned(),
                ..ListSnapshotsRequest::default()
            }),
            (Sort::Group, Source::Existing { members, .. }) => Request::GetGroup(GetVolumeGroupSnapshotRequest {
                group_snapshot_id: handle.to_owned(),
                snapshot_ids: Some(members.clone())
                    .filter(|members| !members.is_empty())
                    .ok_or(Problem::FindMembers)?,
                ..GetVolumeGroupSnapshotRequest::default()
            }),
            (Sort::Group, _) => return Err(Problem::ReadSource),
        };
        has_groups(content, facts)?;
        Ok(Planned { request, secret, is_whole: true })
    }

    /// The call that deletes.
    pub fn delete(&self, handle: &str, members: &[String]) -> Result<Planned, Problem> {
        let content = &self.content;
        let request = match content.sort {
            Sort::Snapshot => Request::DeleteSnapshot(DeleteSnapshotRequest {
                snapshot_id: handle.to_owned(),
                ..DeleteSnapshotRequest::default()
            }),
            Sort::Group => {
                let recorded = content.status.as_ref().map(|status| &status.members[..]).unwrap_or_default();
                let given = match &content.source {
                    Source::Existing { members, .. } => &members[..],
                    _ => &[],
                };
                let members = [members, recorded, given].into_iter().find(|members| !members.is_empty());
                Request::DeleteGroup(DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: handle.to_owned(),
                    snapshot_ids: members.ok_or(Problem::FindMembers)?.to_vec(),
                    ..DeleteVolumeGroupSnapshotRequest::default()
                })
            }
        };
        Ok(Planned { request, secret: annotated(content).unwrap_or_default(), is_whole: true })
    }

    fn look_secret(&self) -> Result<Option<Key>, Problem> {
        let words = self.content.words();
        let (name, parameters) = match &self.class {
            Class::Found { name, parameters } => (name, parameters),
            Class::Missing(name) => return Err(Problem::FindClass { class: words.class, name: name.clone() }),
            Class::None | Class::Unlisted => return Ok(None),
        };
        let value_of = |token: &str| (token == words.content_token).then(|| self.content.meta.name.clone());
        let tokens = Tokens { value_of: &value_of, allowed: words.content_token_shown };
        template::secret(parameters, words.look_secret, &tokens, &tokens).map_err(|source| Problem::NameSecret {
            class: words.class,
            name: name.clone(),
            source,
        })
    }
}

fn has_groups(content: &Content, facts: &Facts) -> Result<(), Problem> {
    match content.sort == Sort::Group && !facts.groups {
        true => Err(Problem::FindGroups { driver: facts.driver.clone() }),
        false => Ok(()),
    }
}

fn make(content: &Content, mut parameters: BTreeMap<String, String>, facts: &Facts) -> Result<Request, Problem> {
    let words = content.words();
    has_groups(content, facts)?;
    let Source::Volumes(volumes) = &content.source else { return Err(Problem::ReadSource) };
    if content.user.uid.is_empty() {
        return Err(Problem::NameSnapshot { user: words.user });
    }
    if facts.options.extra_create_metadata {
        let user = words.user.to_ascii_lowercase();
        parameters.insert(format!("{RESERVED_PREFIX}{user}/name"), content.user.name.clone());
        parameters.insert(format!("{RESERVED_PREFIX}{user}/namespace"), content.user.namespace.clone());
        parameters.insert(format!("{RESERVED_PREFIX}{user}content/name"), content.meta.name.clone());
    }
    let uid = &content.user.uid;
    Ok(match (content.sort, &volumes[..]) {
        (Sort::Snapshot, [volume]) => Request::CreateSnapshot(CreateSnapshotRequest {
            source_volume_id: volume.clone(),
            name: facts.options.snapshots.name(uid),
            parameters,
            ..CreateSnapshotRequest::default()
        }),
        (Sort::Snapshot, _) => return Err(Problem::ReadSource),
        (Sort::Group, volumes) => Request::CreateGroup(CreateVolumeGroupSnapshotRequest {
            name: facts.options.groups.name(uid),
            source_volume_ids: volumes.to_vec(),
            parameters,
            ..CreateVolumeGroupSnapshotRequest::default()
        }),
    })
}

/// What the driver is told of the class's parameters.
fn for_driver(
    content: &Content,
    class: &str,
    parameters: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Problem> {
    let reserved = |key: &&String| key.starts_with(RESERVED_PREFIX);
    if let Some(key) = parameters.keys().filter(reserved).find(|key| !KNOWN.contains(&key.as_str())) {
        let (class, name) = (content.words().class, class.to_owned());
        return Err(Problem::ReadParameters { class, name, key: key.clone() });
    }
    let own = parameters.iter().filter(|(key, _)| !reserved(key));
    Ok(own.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The secret that the snapshot-controller wrote down when the content was made: the class may be gone by now.
fn annotated(content: &Content) -> Result<Option<Key>, Problem> {
    let words = content.words();
    match (content.meta.annotation(words.secret_name), content.meta.annotation(words.secret_namespace)) {
        (Some(name), Some(namespace)) if name.is_empty() || namespace.is_empty() => {
            Err(Problem::ReadSecret { name: words.secret_name, namespace: words.secret_namespace })
        }
        (Some(name), Some(namespace)) => Ok(Some(Key::namespaced(namespace, name))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
