//! Access modes, and what they are called on the CSI side.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::Deserialize;
use thiserror::Error;

text_enum! {
    /// How a volume may be used, in the canonical order of the Kubernetes API.
    pub enum AccessMode {
        /// Read and written by one node.
        #[default]
        ReadWriteOnce = "ReadWriteOnce",
        /// Read by many nodes.
        ReadOnlyMany = "ReadOnlyMany",
        /// Read and written by many nodes.
        ReadWriteMany = "ReadWriteMany",
        /// Read and written by one pod.
        ReadWriteOncePod = "ReadWriteOncePod",
    }
}

impl AccessMode {
    /// Those that Kubernetes has.
    pub const KNOWN: [Self; 4] = [Self::ReadWriteOnce, Self::ReadOnlyMany, Self::ReadWriteMany, Self::ReadWriteOncePod];

    const ALL: [Self; 5] =
        [Self::ReadWriteOnce, Self::ReadOnlyMany, Self::ReadWriteMany, Self::ReadWriteOncePod, Self::Unknown];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of access modes: duplicates and order do not matter, but for [`AccessModes::as_given`].
#[derive(Clone, Copy, Default)]
pub struct AccessModes {
    set: u8,
    /// The modes as they were given, each once, the first in the highest digits.
    order: u16,
}

impl AccessModes {
    /// Digits of the order that one mode takes.
    const DIGITS: u32 = 3;

    /// How many modes there are.
    pub const fn len(self) -> usize {
        self.set.count_ones() as usize
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.set == 0
    }

    /// Whether the mode is one of them.
    pub const fn contains(self, mode: AccessMode) -> bool {
        self.set & mode.bit() != 0
    }

    /// Whether all of the other's modes are among these.
    pub const fn contains_all(self, other: Self) -> bool {
        self.set & other.set == other.set
    }

    /// The modes in the order in which their object has them, each once.
    pub fn as_given(self) -> impl Iterator<Item = AccessMode> {
        let digits = (0..self.len() as u32).rev().map(move |place| self.order >> (place * Self::DIGITS) & 0b111);
        digits.filter_map(|digit| AccessMode::ALL.into_iter().find(|mode| *mode as u16 == digit))
    }

    fn with(self, mode: AccessMode) -> Self {
        match self.contains(mode) {
            true => self,
            false => Self { set: self.set | mode.bit(), order: self.order << Self::DIGITS | mode as u16 },
        }
    }

    /// The modes in canonical order.
    pub fn iter(self) -> impl Iterator<Item = AccessMode> {
        AccessMode::ALL.into_iter().filter(move |mode| self.contains(*mode))
    }

    /// The modes in canonical order, as Kubernetes writes them.
    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(AccessMode::as_str).collect()
    }

    /// Whether the volume can be in use on several nodes at a time, so that attaching it twice is no conflict.
    pub const fn allow_many_nodes(self) -> bool {
        self.contains(AccessMode::ReadOnlyMany) || self.contains(AccessMode::ReadWriteMany)
    }
}

impl PartialEq for AccessModes {
    fn eq(&self, other: &Self) -> bool {
        self.set == other.set
    }
}

impl Eq for AccessModes {}

impl PartialOrd for AccessModes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for AccessModes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.set.cmp(&other.set)
    }
}

impl Hash for AccessModes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.set.hash(state);
    }
}

impl FromIterator<AccessMode> for AccessModes {
    fn from_iter<I: IntoIterator<Item = AccessMode>>(modes: I) -> Self {
        modes.into_iter().fold(Self::default(), Self::with)
    }
}

impl<const N: usize> From<[AccessMode; N]> for AccessModes {
    fn from(modes: [AccessMode; N]) -> Self {
        modes.into_iter().collect()
    }
}

impl<'de> Deserialize<'de> for AccessModes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<AccessMode>::deserialize(deserializer)?.into_iter().collect())
    }
}

impl fmt::Display for AccessModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

impl fmt::Debug for AccessModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl AccessMode {
    /// The mode that a CSI capability of this number was asked for with; that of one node stands for ReadWriteOnce, though a
    /// driver that tells no pods apart is asked the same for ReadWriteOncePod.
    pub const fn of_csi(number: i32) -> Option<Self> {
        match number {
            1 | 7 => Some(Self::ReadWriteOnce),
            3 => Some(Self::ReadOnlyMany),
            5 => Some(Self::ReadWriteMany),
            6 => Some(Self::ReadWriteOncePod),
            _ => None,
        }
    }
}

/// The access mode of a CSI volume capability, with the contract's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CsiAccessMode {
    /// `SINGLE_NODE_WRITER`
    SingleNodeWriter = 1,
    /// `MULTI_NODE_READER_ONLY`
    MultiNodeReaderOnly = 3,
    /// `MULTI_NODE_MULTI_WRITER`
    MultiNodeMultiWriter = 5,
    /// `SINGLE_NODE_SINGLE_WRITER`
    SingleNodeSingleWriter = 6,
    /// `SINGLE_NODE_MULTI_WRITER`
    SingleNodeMultiWriter = 7,
}

impl CsiAccessMode {
    /// The number in the CSI contract.
    pub const fn number(self) -> i32 {
        self as i32
    }
}

/// Why access modes have no CSI counterpart.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// There is no mode.
    #[error(
        "spec.accessModes is empty; name at least one of ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod"
    )]
    FindMode,
    /// A mode is not known.
    #[error(
        "spec.accessModes holds a mode that is none of ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod"
    )]
    KnowMode,
    /// ReadWriteOncePod with another mode.
    #[error("spec.accessModes {modes} combines ReadWriteOncePod with another mode; it must be the only one")]
    CombineOncePod {
        /// All the modes.
        modes: AccessModes,
    },
    /// ReadOnlyMany with ReadWriteOnce cannot become one capability.
    #[error("spec.accessModes {modes} cannot be one CSI capability; use ReadWriteMany or only one of them")]
    FoldModes {
        /// All the modes.
        modes: AccessModes,
    },
}

/// The CSI mode of one Kubernetes mode. `finer` says whether the driver has `SINGLE_NODE_MULTI_WRITER`.
pub fn to_csi(mode: AccessMode, finer: bool) -> Result<CsiAccessMode, Error> {
    Ok(match (mode, finer) {
        (AccessMode::ReadWriteMany, _) => CsiAccessMode::MultiNodeMultiWriter,
        (AccessMode::ReadOnlyMany, _) => CsiAccessMode::MultiNodeReaderOnly,
        (AccessMode::ReadWriteOnce, false) => CsiAccessMode::SingleNodeWriter,
        (AccessMode::ReadWriteOnce, true) => CsiAccessMode::SingleNodeMultiWriter,
        (AccessMode::ReadWriteOncePod, false) => CsiAccessMode::SingleNodeWriter,
        (AccessMode::ReadWriteOncePod, true) => CsiAccessMode::SingleNodeSingleWriter,
        (AccessMode::Unknown, _) => return Err(Error::KnowMode),
    })
}

/// One CSI mode per Kubernetes mode, as the provisioner asks for them: in the claim's order, for drivers that look at the first.
pub fn each_to_csi(modes: AccessModes, finer: bool) -> Result<Vec<CsiAccessMode>, Error> {
    check(modes)?;
    modes.as_given().map(|mode| to_csi(mode, finer)).collect()
}

/// All modes folded into one CSI mode, as attacher, resizer and nodes ask for it.
pub fn fold_to_csi(modes: AccessModes, finer: bool) -> Result<CsiAccessMode, Error> {
    check(modes)?;
    if modes.contains(AccessMode::ReadWriteMany) {
        return to_csi(AccessMode::ReadWriteMany, finer);
    }
    if modes.len() > 1 {
        return Err(Error::FoldModes { modes });
    }
    modes.iter().next().map_or(Err(Error::FindMode), |mode| to_csi(mode, finer))
}

fn check(modes: AccessModes) -> Result<(), Error> {
    if modes.is_empty() {
        Err(Error::FindMode)
    } else if modes.contains(AccessMode::Unknown) {
        Err(Error::KnowMode)
    } else if modes.contains(AccessMode::ReadWriteOncePod) && modes.len() > 1 {
        Err(Error::CombineOncePod { modes })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::AccessMode::*;
    use super::*;

    #[test]
    fn the_four_modes_map_as_the_sidecars_map_them() {
        for (mode, plain, finer) in [
            (ReadWriteMany, CsiAccessMode::MultiNodeMultiWriter, CsiAccessMode::MultiNodeMultiWriter),
            (ReadOnlyMany, CsiAccessMode::MultiNodeReaderOnly, CsiAccessMode::MultiNodeReaderOnly),
            (ReadWriteOnce, CsiAccessMode::SingleNodeWriter, CsiAccessMode::SingleNodeMultiWriter),
            (ReadWriteOncePod, CsiAccessMode::SingleNodeWriter, CsiAccessMode::SingleNodeSingleWriter),
        ] {
            assert_eq!(to_csi(mode, false), Ok(plain));
            assert_eq!(to_csi(mode, true), Ok(finer));
            assert_eq!(fold_to_csi([mode].into(), true), Ok(finer));
            assert_eq!(AccessMode::of_csi(finer.number()), Some(mode));
        }
    }

    #[test]
    fn read_write_many_wins_when_modes_are_folded() {
        let modes = [ReadWriteOnce, ReadOnlyMany, ReadWriteMany].into();
        assert_eq!(fold_to_csi(modes, false), Ok(CsiAccessMode::MultiNodeMultiWriter));
    }

    #[test]
    fn read_only_many_with_read_write_once_is_two_capabilities_but_never_one() {
        let modes = AccessModes::from([ReadWriteOnce, ReadOnlyMany]);
        let each = each_to_csi(modes, false).unwrap();
        assert_eq!(each, [CsiAccessMode::SingleNodeWriter, CsiAccessMode::MultiNodeReaderOnly]);
        assert_eq!(fold_to_csi(modes, false), Err(Error::FoldModes { modes }));
    }

    #[test]
    fn read_write_once_pod_stands_alone() {
        let modes = AccessModes::from([ReadWriteOncePod, ReadWriteMany]);
        assert_eq!(fold_to_csi(modes, true), Err(Error::CombineOncePod { modes }));
        assert_eq!(each_to_csi(modes, true), Err(Error::CombineOncePod { modes }));
    }

    #[test]
    fn no_mode_and_an_unknown_mode_are_errors() {
        assert_eq!(fold_to_csi(AccessModes::default(), false), Err(Error::FindMode));
        assert_eq!(each_to_csi([Unknown].into(), false), Err(Error::KnowMode));
    }

    #[test]
    fn duplicates_and_order_do_not_matter() {
        let modes: AccessModes = serde_json::from_str(r#"["ReadWriteMany","ReadWriteOnce","ReadWriteMany"]"#).unwrap();
        assert_eq!(modes.names(), ["ReadWriteOnce", "ReadWriteMany"]);
        assert_eq!(modes.to_string(), "ReadWriteOnce,ReadWriteMany");
    }

    #[test]
    fn the_order_in_which_modes_are_given_is_kept_for_who_asks_for_it() {
        let read = |text| serde_json::from_str::<AccessModes>(text).unwrap();
        let given = read(r#"["ReadWriteMany","ReadWriteOnce","ReadWriteMany","ReadOnlyMany"]"#);
        assert_eq!(given.as_given().collect::<Vec<_>>(), [ReadWriteMany, ReadWriteOnce, ReadOnlyMany]);
        let all: AccessModes = AccessMode::ALL.into_iter().rev().collect();
        assert!(all.as_given().eq(AccessMode::ALL.into_iter().rev()));
        assert_eq!(each_to_csi(given, false).unwrap()[0], CsiAccessMode::MultiNodeMultiWriter);
        let canonical: AccessModes = given.iter().collect();
        assert_eq!((given, given.cmp(&canonical)), (canonical, Ordering::Equal));
    }

    #[test]
    fn a_volume_with_two_modes_contains_what_the_reference_table_says() {
        let volume = AccessModes::from([ReadWriteOnce, ReadWriteMany]);
        assert!(volume.contains_all([ReadWriteMany].into()));
        assert!(volume.contains_all([ReadWriteMany, ReadWriteOnce].into()));
        assert!(!volume.contains_all([ReadOnlyMany].into()));
        assert!(!volume.contains_all([ReadWriteMany, ReadOnlyMany].into()));
    }
}
