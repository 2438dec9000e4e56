//! The records of a pool: small JSON files, each replaced as a whole.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Map, Value};
use stowage_mount::FileKind;

use super::{Error, Pool};
use crate::args::is_node_id;
use crate::handle::Handle;
use crate::snapshot::{self, Snapshot};
use crate::volume::{self, Attachment, Mark, RECORD_VERSION, Record, VolumeId};

impl Pool {
    pub async fn load(&self, id: &VolumeId) -> Result<Option<Record>, Error> {
        let path = self.file(id.key(), "json");
        let Some(mut record) = self.load_with::<Record>(&path, volume::migrate).await? else { return Ok(None) };
        for attachment in std::mem::take(&mut record.attachments) {
            if !is_node_id(&attachment.node) {
                let source = serde_json::Error::custom("it names an attachment that no node could have");
                return Err(Error::ParseRecord { path, source });
            }
            if attachment.unmarked || self.is_marked(id, &attachment).await? {
                record.attachments.push(attachment);
            }
        }
        Ok(Some(record))
    }

    async fn is_marked(&self, id: &VolumeId, attachment: &Attachment) -> Result<bool, Error> {
        let mark = self.load_file::<Mark>(&self.attached(id, &attachment.node)).await?;
        Ok(mark.is_some_and(|mark| mark.token == attachment.token))
    }

    /// The mark last: until it is there the attachment does not hold, whatever a kill leaves.
    pub async fn attach(&self, id: &VolumeId, record: &mut Record, attachment: Attachment) -> Result<(), Error> {
        let (path, token) = (self.attached(id, &attachment.node), attachment.token.clone());
        record.attachments.push(attachment);
        self.store(id, record).await?;
        self.store_file(&path, &Mark { version: RECORD_VERSION, token }).await
    }

    /// Works without a free block or inode, unless an older driver has made the attachment; `record` has it no more.
    pub async fn detach(&self, id: &VolumeId, record: &Record, attachment: &Attachment) -> Result<(), Error> {
        match attachment.unmarked {
            true => self.store(id, record).await,
            false => self.remove(&self.attached(id, &attachment.node)).await,
        }
    }

    pub async fn store(&self, id: &VolumeId, record: &Record) -> Result<(), Error> {
        self.store_file(&self.file(id.key(), "json"), record).await
    }

    pub async fn forget(&self, id: &VolumeId) -> Result<(), Error> {
        self.remove(&self.file(id.key(), "json")).await
    }

    fn snapshot_record(&self, id: &Handle) -> PathBuf {
        self.snapshots().join(format!("{}.json", id.key()))
    }

    pub async fn load_snapshot(&self, id: &Handle) -> Result<Option<Snapshot>, Error> {
        self.load_file(&self.snapshot_record(id)).await
    }

    pub async fn store_snapshot(&self, id: &Handle, record: &Snapshot) -> Result<(), Error> {
        self.store_file(&self.snapshot_record(id), record).await
    }

    /// The image first: whatever a kill leaves has a record.
    pub async fn forget_snapshot(&self, id: &Handle) -> Result<(), Error> {
        self.remove(&self.snapshot_image(id)).await?;
        self.remove(&self.snapshot_record(id)).await
    }

    fn group_record(&self, id: &Handle) -> PathBuf {
        self.groups().join(format!("{}.json", id.key()))
    }

    pub async fn load_group(&self, id: &Handle) -> Result<Option<snapshot::Group>, Error> {
        self.load_file(&self.group_record(id)).await
    }

    pub async fn store_group(&self, id: &Handle, record: &snapshot::Group) -> Result<(), Error> {
        self.store_file(&self.group_record(id), record).await
    }

    pub async fn forget_group(&self, id: &Handle) -> Result<(), Error> {
        self.remove(&self.group_record(id)).await
    }

    pub async fn remove(&self, path: &Path) -> Result<(), Error> {
        self.host.remove_file(path).await.map_err(|source| self.failed(source))
    }

    pub async fn forget_alone(&self, id: &VolumeId, node: &str) -> Result<(), Error> {
        let mark = self.alone(id, node);
        match self.exists(&mark).await? {
            true => self.remove(&mark).await,
            // A read-only pool refuses to remove even what is not there.
            false => Ok(()),
        }
    }

    pub async fn exists(&self, path: &Path) -> Result<bool, Error> {
        Ok(self.kind_of(path).await?.is_some())
    }

    pub async fn kind_of(&self, path: &Path) -> Result<Option<FileKind>, Error> {
        Ok(self.host.stat(path).await.map_err(|source| self.failed(source))?.map(|info| info.kind))
    }

    /// Reads any of our records whose fields are the same in all versions.
    pub async fn load_file<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, Error> {
        self.load_with(path, |_, _| {}).await
    }

    async fn load_with<T: DeserializeOwned>(
        &self,
        path: &Path,
        migrate: fn(&mut Map<String, Value>, u32),
    ) -> Result<Option<T>, Error> {
        let contents = self.host.read_file(path).await.map_err(|source| self.failed(source))?;
        contents.map(|contents| parse(path, &contents, migrate)).transpose()
    }

    pub async fn store_file<T: Serialize>(&self, path: &Path, record: &T) -> Result<(), Error> {
        let damaged = |source| Error::ParseRecord { path: path.into(), source };
        let contents = serde_json::to_vec_pretty(record).map_err(damaged)?;
        self.host.write_file(path, &contents).await.map_err(|source| self.failed(source))
    }

    /// What may lie beside the data and the record of a volume. By the nodes that have ever been here and not by a look
    /// at all files, of which there are many more.
    pub async fn marks_of(&self, id: &VolumeId, node: &str) -> Result<Vec<PathBuf>, Error> {
        let mut marks = vec![self.fresh(id), self.formatting(id), self.growing(id)];
        marks.extend(self.marks_on(id, node));
        for name in self.names(&self.root.join("nodes")).await? {
            let Some(other) = name.strip_suffix(".json") else { continue };
            marks.push(self.attached(id, other));
            if other != node {
                marks.extend(self.marks_on(id, other));
            }
        }
        Ok(marks)
    }

    fn marks_on(&self, id: &VolumeId, node: &str) -> [PathBuf; 3] {
        [self.staged(id, node), self.frozen(id, node), self.alone(id, node)]
    }

    /// The volumes that this node had frozen when it last wrote.
    pub async fn frozen_keys(&self, node: &str) -> Result<Vec<String>, Error> {
        let ending = format!(".frozen.{node}");
        let names = self.names(&self.volumes()).await?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(&ending)).map(Into::into).collect())
    }

    /// The keys of all volumes that have a record, in order.
    pub async fn keys(&self) -> Result<Vec<String>, Error> {
        self.keys_in(&self.volumes()).await
    }

    /// The keys of all snapshots that have a record, in order.
    pub async fn snapshot_keys(&self) -> Result<Vec<String>, Error> {
        self.keys_in(&self.snapshots()).await
    }

    /// The keys of all groups that have a record, in order.
    pub async fn group_keys(&self) -> Result<Vec<String>, Error> {
        self.keys_in(&self.groups()).await
    }

    async fn keys_in(&self, folder: &Path) -> Result<Vec<String>, Error> {
        let key = |name: String| Some(Handle::new(&self.name, name.strip_suffix(".json")?, None)?.key().to_owned());
        Ok(self.names(folder).await?.into_iter().filter_map(key).collect())
    }

    pub(super) async fn names(&self, folder: &Path) -> Result<Vec<String>, Error> {
        let entries = self.host.list_dir(folder).await.map_err(|source| self.failed(source))?;
        Ok(entries.unwrap_or_default().into_iter().filter_map(|entry| entry.name.into_string().ok()).collect())
    }
}

/// The version is looked at before the rest is understood.
fn parse<T: DeserializeOwned>(
    path: &Path,
    contents: &[u8],
    migrate: fn(&mut Map<String, Value>, u32),
) -> Result<T, Error> {
    let damaged = |source| Error::ParseRecord { path: path.into(), source };
    let mut fields: Map<String, Value> = serde_json::from_slice(contents).map_err(damaged)?;
    let version = fields.get("version").and_then(Value::as_u64).unwrap_or_default();
    match u32::try_from(version) {
        Ok(version) if version <= RECORD_VERSION => {
            // Version 0 is none at all: what is missing then is said by name below.
            if version > 0 {
                migrate(&mut fields, version);
                fields.insert("version".into(), RECORD_VERSION.into());
            }
        }
        _ => return Err(Error::UnderstandRecord { path: path.into(), version }),
    }
    serde_json::from_value(Value::Object(fields)).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::volume::example;

    fn read(contents: &[u8]) -> Result<Record, Error> {
        parse(Path::new("/pool/volumes/x.json"), contents, volume::migrate)
    }

    #[test]
    fn a_newer_record_is_refused_with_a_sentence_and_an_older_one_is_migrated() {
        let newer = read(br#"{ "version": 4, "shape": "unheard of" }"#).unwrap_err().to_string();
        assert!(newer.contains("version 4, this driver knows 3; use a newer driver"), "{newer}");
        let enormous = read(format!(r#"{{ "version": {} }}"#, u64::MAX).as_bytes());
        assert!(matches!(enormous, Err(Error::UnderstandRecord { version: u64::MAX, .. })));
        let older = read(br#"{ "version": 1, "name": "v", "capacityBytes": 8388608, "fsType": "ext4" }"#).unwrap();
        assert_eq!(older, Record { sector_bytes: 512, ..example() });
    }

    #[test]
    fn a_record_without_a_version_or_cut_short_is_damaged() {
        let whole = serde_json::to_vec(&example()).unwrap();
        for length in 0..whole.len() {
            assert!(matches!(read(&whole[..length]), Err(Error::ParseRecord { .. })), "{length}");
        }
        assert!(matches!(read(br#"{ "name": "v" }"#), Err(Error::ParseRecord { .. })));
        assert_eq!(read(&whole).unwrap(), example());
    }

    proptest! {
        #[test]
        fn no_bytes_whatever_make_the_reader_fall_over(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_record_with_any_bytes_changed_is_read_or_refused(at in 0usize..200, byte in any::<u8>()) {
            let mut whole = serde_json::to_vec(&example()).unwrap();
            let at = at % whole.len();
            whole[at] = byte;
            let _ = read(&whole);
        }

        #[test]
        fn any_fields_of_any_kind_are_read_or_refused(
            names in prop::collection::vec("version|name|capacityBytes|fsType|backend|thin|attachment|attachments|family|tuning|source", 0..8),
            values in prop::collection::vec("null|true|-1|1|2|3|1e400|\"x\"|\\[\\]|\\{\\}|\"image\"|\\[\\{\"node\":1\\}\\]", 8),
        ) {
            let fields: Vec<_> = names.iter().zip(&values).map(|(name, value)| format!("\"{name}\":{value}")).collect();
            let _ = read(format!("{{{}}}", fields.join(",")).as_bytes());
        }
    }
}
