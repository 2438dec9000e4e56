use stowage_csi::v1::CapacityRange;

/// Sizes are whole blocks of every file system we make.
const BLOCK: u64 = 4096;
/// Below this a file system has no room for data.
pub const MIN_BYTES: u64 = 8 << 20;
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
        "no volume can have between {required} and {limit} bytes: sizes are multiples of {BLOCK} from {MIN_BYTES} to {MAX_BYTES}"
    )]
    OutOfRange { required: u64, limit: u64 },
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

    /// The size of a new volume.
    pub fn choose(&self) -> Result<u64, Error> {
        let wanted = match self.required {
            0 => DEFAULT_BYTES.min(self.limit / BLOCK * BLOCK),
            required => required,
        };
        let rounded = wanted.max(MIN_BYTES).checked_next_multiple_of(BLOCK);
        let fits = |bytes: &u64| *bytes <= MAX_BYTES && self.allow(*bytes);
        rounded.filter(fits).ok_or(Error::OutOfRange { required: self.required, limit: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn choose(required_bytes: i64, limit_bytes: i64) -> Result<u64, Error> {
        Limits::read(Some(&CapacityRange { required_bytes, limit_bytes }))?.choose()
    }

    #[test]
    fn sizes_are_rounded_up_within_the_limit() {
        assert_eq!(choose(0, 0), Ok(1 << 30));
        assert_eq!(Limits::read(None).unwrap().choose(), Ok(1 << 30));
        assert_eq!(choose(1, 0), Ok(MIN_BYTES));
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

    proptest! {
        #[test]
        fn a_chosen_size_is_allowed_and_whole(required in any::<i64>(), limit in any::<i64>()) {
            let range = CapacityRange { required_bytes: required, limit_bytes: limit };
            if let Ok(limits) = Limits::read(Some(&range)) && let Ok(bytes) = limits.choose() {
                prop_assert!(limits.allow(bytes) && bytes % BLOCK == 0 && bytes >= MIN_BYTES);
            }
        }
    }
}
