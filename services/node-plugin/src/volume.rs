use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use crate::handle::{Handle as VolumeId, digest};
use crate::tuning::Tuning;

/// The version of the records this driver writes: a newer one is refused, never guessed at; an older one is migrated.
/// 1: image volumes with one attachment. 2: directory and block volumes, sources, tuning, several attachments. 3: an
/// attachment holds only while its mark is there.
pub const RECORD_VERSION: u32 = 3;

/// The sectors of new volumes: what direct I/O to a file with shared blocks needs on any file system.
pub const SECTOR_BYTES: u32 = 4096;

/// What the mark of a copy holds that is no larger than its source: its file system is as good as its source's where it
/// cannot grow. One that is larger has an empty mark, and so has one that an older driver made.
pub const AS_LARGE: &[u8] = b"as large as its source\n";

/// What a volume is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Backend {
    /// A file that becomes a block device; its size is enforced.
    #[default]
    Image,
    /// A folder of the pool's own file system; its size is not enforced.
    Directory,
}

/// What the pool remembers about a volume. Written by the controller only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub version: u32,
    /// The name CreateVolume was called with.
    pub name: String,
    pub capacity_bytes: u64,
    /// Empty for block and directory volumes.
    pub fs_type: String,
    pub backend: Backend,
    /// Whether the device itself is the volume, without a file system of ours.
    pub block: bool,
    /// The sector size its device must always have: its file system was made for it.
    pub sector_bytes: u32,
    /// Whether the image takes space only for what was written.
    pub thin: bool,
    pub mkfs_options: Vec<String>,
    #[serde(default)]
    pub tuning: Tuning,
    /// The key of the volume whose blocks this one may share: its own, unless it was copied.
    pub family: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// In a record that was loaded only those that hold.
    #[serde(default)]
    pub attachments: Vec<Attachment>,
}

/// What a volume was copied from, by handle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    Snapshot(String),
    Volume(String),
}

/// Which node may use a volume, and how it proves that it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    pub node: String,
    pub token: String,
    /// Whether it was attached for reading only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Whether others may have the volume as well; unknown of attachments that an older driver made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub several: Option<bool>,
    /// Whether it was made before there were marks: it holds for as long as it is in the record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmarked: bool,
}

/// What must lie beside the record for an attachment to hold. To take it away is to detach, which so needs no space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub version: u32,
    pub token: String,
}

impl Record {
    pub fn is_image(&self) -> bool {
        self.backend == Backend::Image
    }
}

/// Turns the fields of an older volume record into those of this version.
pub fn migrate(fields: &mut Map<String, Value>, from: u32) {
    if from < 2 {
        let attachment = fields.remove("attachment").filter(|attachment| !attachment.is_null());
        let family = fields.get("name").and_then(Value::as_str).map(VolumeId::key_of);
        let added = [
            ("backend", json!("image")),
            ("block", json!(false)),
            ("sectorBytes", json!(512)),
            ("thin", json!(true)),
            ("mkfsOptions", json!([])),
            ("family", json!(family)),
            ("attachments", Value::Array(attachment.into_iter().collect())),
        ];
        fields.extend(added.map(|(name, value)| (name.to_owned(), value)));
    }
    if from < 3 {
        let attachments = fields.get_mut("attachments").and_then(Value::as_array_mut).into_iter().flatten();
        for attachment in attachments.filter_map(Value::as_object_mut) {
            attachment.insert("unmarked".into(), json!(true));
        }
    }
}

/// One good record, to be spoiled one field per test.
#[cfg(test)]
pub fn example() -> Record {
    Record {
        version: RECORD_VERSION,
        name: "v".into(),
        capacity_bytes: 8 << 20,
        fs_type: "ext4".into(),
        backend: Backend::Image,
        block: false,
        sector_bytes: SECTOR_BYTES,
        thin: true,
        mkfs_options: Vec::new(),
        tuning: Tuning::default(),
        family: VolumeId::key_of("v"),
        source: None,
        attachments: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_version_1_becomes_the_same_volume_of_today() {
        let old = json!({
            "version": 1, "name": "v", "capacityBytes": 8 << 20, "fsType": "ext4",
            "attachment": { "node": "a", "token": "t" }
        });
        let Value::Object(mut fields) = old else { unreachable!() };
        migrate(&mut fields, 1);
        fields.insert("version".into(), json!(RECORD_VERSION));
        let record: Record = serde_json::from_value(Value::Object(fields)).unwrap();
        let attachments =
            vec![Attachment { node: "a".into(), token: "t".into(), read_only: false, several: None, unmarked: true }];
        assert_eq!(record, Record { attachments, sector_bytes: 512, ..example() });
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let record = Record { source: Some(Source::Snapshot("main.x".into())), ..example() };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
