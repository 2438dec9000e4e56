use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use stowage_csi::v1;

use crate::handle::Handle;
use crate::volume::{RECORD_VERSION, Record};

/// A moment as the wire tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    seconds: i64,
    nanos: i32,
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { seconds: since.as_secs().try_into().unwrap_or(i64::MAX), nanos: since.subsec_nanos() as i32 }
    }
}

impl From<Moment> for prost_types::Timestamp {
    fn from(moment: Moment) -> Self {
        prost_types::Timestamp { seconds: moment.seconds, nanos: moment.nanos }
    }
}

/// What the pool remembers about a snapshot. Written before its image is cut and again when it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub version: u32,
    /// The name CreateSnapshot was called with; that of the group for a member of one.
    pub name: String,
    /// The handle of the volume it was taken of, which may be gone.
    pub source: String,
    pub size_bytes: u64,
    pub family: String,
    pub fs_type: String,
    pub block: bool,
    pub sector_bytes: u32,
    /// When it was cut; until then it is nothing that could be used. Always there: a record that has lost it is damaged, and
    /// not one of something unfinished.
    #[serde(deserialize_with = "Option::deserialize")]
    pub cut: Option<Moment>,
    /// The handle of the group it lives and dies with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl Snapshot {
    /// A snapshot of this volume that is still to be cut.
    pub fn of(source: &Handle, record: &Record, name: &str, group: Option<&Handle>) -> Self {
        Snapshot {
            version: RECORD_VERSION,
            name: name.into(),
            source: source.to_string(),
            size_bytes: record.capacity_bytes,
            family: record.family.clone(),
            fs_type: record.fs_type.clone(),
            block: record.block,
            sector_bytes: record.sector_bytes,
            cut: None,
            group: group.map(Handle::to_string),
        }
    }

    pub fn describe(&self, id: &Handle) -> v1::Snapshot {
        v1::Snapshot {
            size_bytes: self.size_bytes.try_into().unwrap_or(i64::MAX),
            snapshot_id: id.to_string(),
            source_volume_id: self.source.clone(),
            creation_time: self.cut.map(Into::into),
            ready_to_use: self.cut.is_some(),
            group_snapshot_id: self.group.clone().unwrap_or_default(),
        }
    }
}

/// What the pool of a group's first volume remembers about snapshots of several volumes at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    pub version: u32,
    pub name: String,
    pub members: Vec<Member>,
    /// When all members were cut; the group exists from the moment this is written. Always there, as that of a snapshot.
    #[serde(deserialize_with = "Option::deserialize")]
    pub cut: Option<Moment>,
}

/// One volume of a group and its snapshot, by handle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub volume: String,
    pub snapshot: String,
}
