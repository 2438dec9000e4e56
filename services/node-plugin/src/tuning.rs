//! What ControllerModifyVolume can change about a volume, and how it comes into force.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stowage_mount::{Host, LoopDevice};

use crate::volume::Record;

/// Read-ahead beyond this only fills memory, in KiB.
const MAX_READ_AHEAD: u32 = 65536;
/// What mke2fs and tune2fs allow.
const MAX_RESERVED: u8 = 50;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("mutable parameter {key:?} is unknown; this driver takes readAheadKb, directIo and reservedPercent")]
    Unknown { key: String },
    #[error("mutable parameter {key} is {value:?}; give {wanted}")]
    Value { key: &'static str, value: String, wanted: &'static str },
    #[error("mutable parameter {key} is not for {what}; leave it out")]
    Unfit { key: &'static str, what: &'static str },
}

/// The mutable parameters of a volume; one that is absent leaves things as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tuning {
    /// How much the kernel reads ahead of a sequential reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead_kb: Option<u32>,
    /// Whether the page cache of the pool is bypassed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_io: Option<bool>,
    /// Share of an ext4 file system that only root may fill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_percent: Option<u8>,
}

impl Tuning {
    pub fn read(parameters: &BTreeMap<String, String>) -> Result<Self, Error> {
        let mut read = Tuning::default();
        for (key, value) in parameters {
            let refuse = |key, wanted| Error::Value { key, value: value.clone(), wanted };
            match key.as_str() {
                "readAheadKb" => {
                    let number = value.parse().ok().filter(|number| *number <= MAX_READ_AHEAD);
                    read.read_ahead_kb = Some(number.ok_or_else(|| refuse("readAheadKb", "a number from 0 to 65536"))?);
                }
                "directIo" => {
                    read.direct_io = Some(value.parse().map_err(|_| refuse("directIo", "true or false"))?);
                }
                "reservedPercent" => {
                    let number = value.parse().ok().filter(|number| *number <= MAX_RESERVED);
                    read.reserved_percent =
                        Some(number.ok_or_else(|| refuse("reservedPercent", "a number from 0 to 50"))?);
                }
                _ => return Err(Error::Unknown { key: key.clone() }),
            }
        }
        Ok(read)
    }

    /// Refuses what would have no effect on this volume.
    pub fn check(&self, record: &Record) -> Result<(), Error> {
        if !record.is_image() {
            let keys = [
                ("readAheadKb", self.read_ahead_kb.is_some()),
                ("directIo", self.direct_io.is_some()),
                ("reservedPercent", self.reserved_percent.is_some()),
            ];
            let given = keys.into_iter().find(|(_, given)| *given);
            return given.map_or(Ok(()), |(key, _)| Err(Error::Unfit { key, what: "backend=directory" }));
        }
        match self.reserved_percent.is_some() && record.fs_type != "ext4" {
            true => Err(Error::Unfit { key: "reservedPercent", what: "volumes without ext4" }),
            false => Ok(()),
        }
    }

    /// Each value alone.
    pub fn parts(self) -> [Tuning; 3] {
        let nothing = Tuning::default();
        [
            Tuning { direct_io: self.direct_io, ..nothing },
            Tuning { reserved_percent: self.reserved_percent, ..nothing },
            Tuning { read_ahead_kb: self.read_ahead_kb, ..nothing },
        ]
    }

    /// These values, and where they say nothing, those of `before`.
    pub fn over(self, before: Tuning) -> Tuning {
        Tuning {
            read_ahead_kb: self.read_ahead_kb.or(before.read_ahead_kb),
            direct_io: self.direct_io.or(before.direct_io),
            reserved_percent: self.reserved_percent.or(before.reserved_percent),
        }
    }
}

/// Brings a tuning into force on the device that serves a volume, mounted or not.
pub async fn apply(host: &dyn Host, device: &LoopDevice, tuning: Tuning) -> Result<(), stowage_mount::Error> {
    // In the order in which they may be refused: whatever fails has no part of the later ones behind it.
    if let Some(direct) = tuning.direct_io {
        host.set_direct_io(device, direct).await?;
    }
    if let Some(percent) = tuning.reserved_percent {
        host.reserve_blocks(&device.path, percent).await?;
    }
    if let Some(kilobytes) = tuning.read_ahead_kb {
        host.set_read_ahead(device, kilobytes).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Backend, example};

    fn read(key: &str, value: &str) -> Result<Tuning, Error> {
        Tuning::read(&BTreeMap::from([(key.to_owned(), value.to_owned())]))
    }

    #[test]
    fn what_is_unknown_or_out_of_range_is_refused_by_name() {
        assert!(read("XXX_FakeKey", "1").unwrap_err().to_string().contains("\"XXX_FakeKey\""));
        for (key, value) in
            [("readAheadKb", "-1"), ("readAheadKb", "65537"), ("directIo", "yes"), ("reservedPercent", "51")]
        {
            assert!(read(key, value).unwrap_err().to_string().contains(key), "{key}={value}");
        }
    }

    #[test]
    fn an_absent_value_changes_nothing() {
        let before = Tuning { read_ahead_kb: Some(128), direct_io: Some(true), reserved_percent: None };
        assert_eq!(read("directIo", "false").unwrap().over(before), Tuning { direct_io: Some(false), ..before });
    }

    #[test]
    fn what_would_have_no_effect_is_refused() {
        let reserved = read("reservedPercent", "5").unwrap();
        assert_eq!(reserved.check(&example()), Ok(()));
        let xfs = Record { fs_type: "xfs".into(), ..example() };
        assert!(matches!(reserved.check(&xfs), Err(Error::Unfit { .. })));
        let directory = Record { backend: Backend::Directory, ..example() };
        assert!(matches!(read("directIo", "true").unwrap().check(&directory), Err(Error::Unfit { .. })));
        assert_eq!(Tuning::default().check(&directory), Ok(()));
    }
}
