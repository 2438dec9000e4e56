use stowage_csi::v1::CapacityRange;
use stowage_mount::FileSystem;

/// Sizes are whole blocks of every file system we make.
const BLOCK: u64 = 4096;
/// Below this no volume is worth its record.
pub const MIN_BYTES: u64 = 1 << 20;
/// ext4 with 4 KiB blocks keeps images on ext4 pools below 16 TiB; one block less than that.
pub const MAX_BYTES: u64 = (16 << 40) - BLOCK;
/// What a claim without a size gets.
const DEFAULT_BYTES: u64 = 1 << 30;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("capacity_range.{field} is {value}; give a number that is not negative")]
    Negative { field: &'static str, value: i64 },
    #[error("capacity_range.required_bytes {required} is above limit_bytes {limit}; raise the limit")]
    Contradictory { required: u64, limit: u64 },
    #[error(
        "no such volume can have between {required} and {limit} bytes: sizes are multiples of {BLOCK} from {least} to {MAX_BYTES}"
    )]
    OutOfRange { required: u64, limit: u64, least: u64 },
}

/// The smallest volume on which this file system can be made (none: a raw device) and has room for data.
pub fn least(kind: Option<FileSystem>) -> u64 {
    match kind {
        None => MIN_BYTES,
        Some(FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4) => 8 << 20,
        // mkfs.xfs refuses less than 300 MiB.
        Some(FileSystem::Xfs) => 300 << 20,
        // mkfs.btrfs refuses less than about 109 MiB with duplicated metadata.
        Some(FileSystem::Btrfs) => 128 << 20,
    }
}

/// The limits a volume's size must keep: at least the first, at most the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    required: u64,
    limit: u64,
}

impl Limits {
    pub fn read(range: Option<&CapacityRange>) -> Result<Self, Error> {
        let range = range.copied().unwrap_or_default();
        let read = |field, value: i64| u64::try_from(value).map_err(|_| Error::Negative { field, value });
        let required = read("required_bytes", range.required_bytes)?;
        let limit = match read("limit_bytes", range.limit_bytes)? {
            0 => u64::MAX,
            limit => limit,
        };
        match required <= limit {
            true => Ok(Limits { required, limit }),
            false => Err(Error::Contradictory { required, limit }),
        }
    }

    /// Whether an existing volume of this size is what was asked for.
    pub fn allow(&self, bytes: u64) -> bool {
        (self.required..=self.limit).contains(&bytes)
    }

    /// The size of a new volume that must have at least so many bytes.
    pub fn choose(&self, least: u64) -> Result<u64, Error> {
        let wanted = match self.required {
            0 => DEFAULT_BYTES.min(self.limit / BLOCK * BLOCK),
            required => required,
        };
        self.round(wanted.max(least), least)
    }

    /// The size of a volume that is copied from one of `source` bytes: no smaller, and no larger unless asked for.
    pub fn choose_for_copy(&self, source: u64) -> Result<u64, Error> {
        self.round(self.required.max(source), source)
    }

    /// The size that an existing volume of `bytes` shall have.
    pub fn choose_for_growth(&self, bytes: u64) -> Result<u64, Error> {
        // A larger volume is as good, even above the limit: sizes never shrink.
        if bytes >= self.required {
            return Ok(bytes);
        }
        self.round(self.required, bytes)
    }

    fn round(&self, wanted: u64, least: u64) -> Result<u64, Error> {
        let fits = |bytes: &u64| *bytes <= MAX_BYTES && self.allow(*bytes);
        let refuse = || Error::OutOfRange { required: self.required, limit: self.limit, least };
        wanted.checked_next_multiple_of(BLOCK).filter(fits).ok_or_else(refuse)
    }

    /// Whether any size at all was asked for.
    pub fn is_empty(&self) -> bool {
        self.required == 0 && self.limit == u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEAST: u64 = 8 << 20;

    fn limits(required_bytes: i64, limit_bytes: i64) -> Result<Limits, Error> {
        Limits::read(Some(&CapacityRange { required_bytes, limit_bytes }))
    }

    fn choose(required_bytes: i64, limit_bytes: i64) -> Result<u64, Error> {
        limits(required_bytes, limit_bytes)?.choose(LEAST)
    }

    #[test]
    fn sizes_are_rounded_up_within_the_limit() {
        assert_eq!(choose(0, 0), Ok(1 << 30));
        assert_eq!(Limits::read(None).unwrap().choose(LEAST), Ok(1 << 30));
        assert_eq!(choose(1, 0), Ok(LEAST));
        assert_eq!(choose((10 << 20) + 1, 0), Ok((10 << 20) + 4096));
        assert_eq!(choose(10 << 20, 10 << 20), Ok(10 << 20));
        assert_eq!(choose(0, (10 << 20) + 5), Ok(10 << 20));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(matches!(choose(-1, 0), Err(Error::Negative { field: "required_bytes", value: -1 })));
        assert!(matches!(choose(0, -5), Err(Error::Negative { field: "limit_bytes", .. })));
        assert!(matches!(choose(2 << 30, 1 << 30), Err(Error::Contradictory { .. })));
        assert!(matches!(choose(i64::MAX, 0), Err(Error::OutOfRange { .. })));
        assert!(matches!(choose((10 << 20) + 1, (10 << 20) + 1), Err(Error::OutOfRange { .. })));
        assert!(matches!(choose(0, 4096), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn a_copy_is_as_large_as_its_source_or_larger_and_a_volume_never_shrinks() {
        let source = 16 << 20;
        assert_eq!(limits(0, 0).unwrap().choose_for_copy(source), Ok(source));
        assert_eq!(limits(20 << 20, 0).unwrap().choose_for_copy(source), Ok(20 << 20));
        assert!(matches!(limits(0, 8 << 20).unwrap().choose_for_copy(source), Err(Error::OutOfRange { .. })));
        assert_eq!(limits(8 << 20, 8 << 20).unwrap().choose_for_growth(source), Ok(source));
        assert_eq!(limits(20 << 20, 0).unwrap().choose_for_growth(source), Ok(20 << 20));
    }

    proptest! {
        #[test]
        fn a_chosen_size_is_allowed_and_whole(required in any::<i64>(), limit in any::<i64>()) {
            let range = CapacityRange { required_bytes: required, limit_bytes: limit };
            if let Ok(limits) = Limits::read(Some(&range)) && let Ok(bytes) = limits.choose(LEAST) {
                prop_assert!(limits.allow(bytes) && bytes % BLOCK == 0 && bytes >= LEAST);
            }
        }
    }
}
