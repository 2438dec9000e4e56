//! What the superblock of an ext file system tells about its growth.

/// Where it is on the device, in bytes.
pub(super) const SUPERBLOCK: u64 = 1024;

/// Where an ext file system finds what it needs to fill its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It fills the device already, but for a rest that is too small for a group of blocks.
    None,
    /// Nothing that is there has to move.
    InPlace,
    /// Data would have to move first, or it is not known that none has to.
    Elsewhere(&'static str),
}

const HAS_JOURNAL: u32 = 0x4;
const RESIZE_INODE: u32 = 0x10;
const SPARSE_SUPER2: u32 = 0x200;
const META_BG: u32 = 0x10;
const WIDE: u32 = 0x80;
const BIGALLOC: u32 = 0x200;
/// uninit_bg and metadata_csum: a group says whether its bitmaps and inodes were ever written.
const CHECKSUMS: u32 = 0x10 | 0x400;
const INODES_UNWRITTEN: u16 = 0x1;
const BLOCKS_UNWRITTEN: u16 = 0x2;
const INODES_ZEROED: u16 = 0x4;
/// A group that would have less for data is not made (resize2fs).
const LEAST_OF_A_GROUP: u64 = 50;

/// What the table of groups says of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    block_bitmap: u64,
    inode_bitmap: u64,
    flags: u16,
}

impl Group {
    /// The blocks of its bitmaps that are read as they stand, and were not in the group as it was.
    pub(super) fn newly_read(&self, before: Option<Self>) -> impl Iterator<Item = u64> {
        let bitmaps = [(BLOCKS_UNWRITTEN, self.block_bitmap), (INODES_UNWRITTEN, self.inode_bitmap)];
        let flags = self.flags;
        let was_read = move |flag| before.is_some_and(|before| before.flags & flag == 0);
        bitmaps.into_iter().filter(move |(flag, _)| flags & flag == 0 && !was_read(*flag)).map(|(_, block)| block)
    }

    /// Whether its inodes are read as they stand, which are zeros then.
    pub(super) fn has_inodes(&self) -> bool {
        self.flags & INODES_UNWRITTEN == 0 || self.flags & INODES_ZEROED != 0
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Superblock {
    block_bytes: u64,
    blocks: u64,
    first_block: u64,
    blocks_per_group: u64,
    /// Blocks of each group that hold its inodes.
    inode_blocks: u64,
    /// Blocks that it gives away at once: more than one with bigalloc, and it has no part of that.
    cluster: u64,
    inodes_in_use: u64,
    inode_bytes: u64,
    journal_bytes: u64,
    descriptor_bytes: u64,
    /// Blocks kept for more descriptors.
    reserved: u64,
    compatible: u32,
    incompatible: u32,
    read_only_compatible: u32,
}

impl Superblock {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
        let short = |at: usize| bytes.get(at..at + 2).and_then(|word| word.try_into().ok()).map(u16::from_le_bytes);
        if short(0x38)? != 0xEF53 {
            return None;
        }
        let (compatible, incompatible) = (word(0x5C)?, word(0x60)?);
        let wide = incompatible & WIDE != 0;
        let high = if wide { u64::from(word(0x150)?) } else { 0 };
        let block_bytes = 1024u64.checked_shl(word(0x18)?).filter(|bytes| (1024..=65536).contains(bytes))?;
        let blocks_per_group = u64::from(word(0x20)?);
        if blocks_per_group == 0 {
            return None;
        }
        let read_only_compatible = word(0x64)?;
        let cluster = match read_only_compatible & BIGALLOC {
            0 => 1,
            _ => 1024u64.checked_shl(word(0x1C)?).filter(|bytes| *bytes >= block_bytes)? / block_bytes,
        };
        // Its inode is kept here as well: its size is the last of these words, and what of it is above 32 bits the last but one.
        let journal_bytes = match compatible & HAS_JOURNAL != 0 && bytes.get(0xFD) == Some(&1) {
            true => u64::from(word(0x148)?) << 32 | u64::from(word(0x14C)?),
            false => 0,
        };
        Some(Superblock {
            block_bytes,
            cluster,
            inodes_in_use: u64::from(word(0x0)?).saturating_sub(word(0x10)?.into()),
            inode_bytes: short(0x58)?.into(),
            journal_bytes,
            blocks: high << 32 | u64::from(word(0x4)?),
            first_block: word(0x14)?.into(),
            blocks_per_group,
            inode_blocks: u64::from(word(0x28)?) * u64::from(short(0x58)?) / block_bytes,
            descriptor_bytes: if wide { u64::from(short(0xFE)?).max(64) } else { 32 },
            reserved: short(0xCE)?.into(),
            compatible,
            incompatible,
            read_only_compatible,
        })
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    #[cfg(test)]
    pub(super) fn journal_bytes(&self) -> u64 {
        self.journal_bytes
    }

    pub(super) fn groups(&self) -> u64 {
        self.groups_of(self.blocks)
    }

    /// Where the descriptor of a group is, in bytes, and how long it is; only without meta_bg.
    pub(super) fn descriptor(&self, group: u64) -> (u64, usize) {
        let table = (self.first_block + 1) * self.block_bytes;
        (table + group * self.descriptor_bytes, self.descriptor_bytes as usize)
    }

    pub(super) fn group(&self, descriptor: &[u8]) -> Option<Group> {
        let word = |at: usize| descriptor.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
        let high = |at: usize| if self.incompatible & WIDE == 0 { Some(0) } else { word(at) };
        let block = |low: usize, up: usize| Some(u64::from(high(up)?) << 32 | u64::from(word(low)?));
        let flags = descriptor.get(0x12..0x14).and_then(|short| short.try_into().ok()).map(u16::from_le_bytes)?;
        Some(Group { block_bitmap: block(0x0, 0x20)?, inode_bitmap: block(0x4, 0x24)?, flags })
    }

    fn groups_of(&self, blocks: u64) -> u64 {
        blocks.saturating_sub(self.first_block).div_ceil(self.blocks_per_group)
    }

    /// How many blocks the descriptors of all groups take.
    fn descriptor_blocks(&self, blocks: u64) -> u64 {
        let groups = self.groups_of(blocks);
        groups.saturating_mul(self.descriptor_bytes).div_ceil(self.block_bytes)
    }

    /// What so many copies of all metadata take, and what a growth adds to them: estimated, and rather too much. The journal
    /// is most of it, for it is metadata to e2image.
    pub(super) fn scratch(&self, bytes: u64, copies: u64) -> u64 {
        /// Directories and maps of blocks are beside the inodes, and inodes that are free again among them.
        const SLACK: u64 = 4;
        /// Beyond what can be counted.
        const LEAST: u64 = 1 << 20;
        let of_groups = |blocks| self.groups_of(blocks).saturating_mul(2 * self.block_bytes + self.descriptor_bytes);
        let inodes = self.inodes_in_use.saturating_mul(self.inode_bytes * SLACK);
        let sum = |parts: [u64; 4]| parts.into_iter().fold(0u64, u64::saturating_add);
        let copy = sum([self.journal_bytes, of_groups(self.blocks), inodes, LEAST]);
        // Both in the second copy and in the plan.
        let new = of_groups(bytes / self.block_bytes).saturating_sub(of_groups(self.blocks)).saturating_mul(2);
        copy.saturating_mul(copies).saturating_add(new)
    }

    pub(super) fn room(&self, bytes: u64) -> Room {
        let blocks = bytes / self.block_bytes;
        let more = blocks.saturating_sub(self.blocks);
        let ends_with_a_group = self.blocks.saturating_sub(self.first_block).is_multiple_of(self.blocks_per_group);
        // Its two bitmaps and its inodes come first.
        if more < self.cluster || ends_with_a_group && more < 2 + self.inode_blocks + LEAST_OF_A_GROUP {
            return Room::None;
        }
        if self.incompatible & WIDE == 0 && blocks > u32::MAX.into() {
            return Room::Elsewhere("its numbers of blocks have 32 bits");
        }
        if self.read_only_compatible & BIGALLOC != 0 || self.compatible & SPARSE_SUPER2 != 0 {
            return Room::Elsewhere("it has a feature (bigalloc, sparse_super2) with which resize2fs moves data");
        }
        if self.read_only_compatible & CHECKSUMS == 0 {
            return Room::Elsewhere("its groups do not say which inodes were ever written, and all would have to be");
        }
        if self.incompatible & META_BG != 0 {
            return Room::Elsewhere("its table of groups is scattered (meta_bg)");
        }
        let needed = self.descriptor_blocks(blocks).saturating_sub(self.descriptor_blocks(self.blocks));
        let kept = self.compatible & RESIZE_INODE != 0;
        match needed == 0 || kept && needed <= self.reserved {
            true => Room::InPlace,
            false => Room::Elsewhere("its table of groups has no room for as many as that"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 64 MiB in blocks of 1 KiB, as mkfs.ext4 makes it.
    fn small() -> Superblock {
        Superblock {
            block_bytes: 1024,
            blocks: 65536,
            first_block: 1,
            blocks_per_group: 8192,
            inode_blocks: 512,
            cluster: 1,
            inodes_in_use: 11,
            inode_bytes: 256,
            journal_bytes: 4 << 20,
            descriptor_bytes: 64,
            reserved: 256,
            compatible: RESIZE_INODE,
            incompatible: WIDE,
            read_only_compatible: 0x400,
        }
    }

    #[test]
    fn what_is_kept_for_descriptors_decides_how_far_it_grows() {
        const GROUP: u64 = 8 << 20;
        assert_eq!(small().room(64 << 20), Room::None);
        assert_eq!(small().room((64 << 20) + 1023), Room::None);
        assert_eq!(small().room(96 << 20), Room::InPlace);
        // 16 descriptors in a block, of which there is one.
        assert_eq!(small().room(257 * 16 * GROUP), Room::InPlace);
        assert!(matches!(small().room(258 * 16 * GROUP), Room::Elsewhere(_)));
        for other in [
            Superblock { compatible: 0, ..small() },
            Superblock { incompatible: WIDE | META_BG, ..small() },
            Superblock { compatible: RESIZE_INODE | SPARSE_SUPER2, ..small() },
            Superblock { read_only_compatible: BIGALLOC | 0x400, ..small() },
            Superblock { read_only_compatible: 0, ..small() },
        ] {
            assert!(matches!(other.room(17 * GROUP), Room::Elsewhere(_)), "{other:?}");
        }
        // Also where the last block of the table has room: it is not where `descriptor` looks.
        let scattered = Superblock { incompatible: WIDE | META_BG, blocks: 17 * 8192, ..small() };
        assert!(matches!(scattered.room(18 * GROUP), Room::Elsewhere(_)));
        let narrow = Superblock { incompatible: 0, block_bytes: 1024, ..small() };
        assert!(matches!(narrow.room(4 << 40), Room::Elsewhere(_)));
    }

    #[test]
    fn a_rest_that_makes_no_group_is_no_growth() {
        let whole = Superblock { first_block: 0, ..small() };
        assert_eq!(whole.room((65536 + 2 + 512 + 49) << 10), Room::None);
        assert_eq!(whole.room((65536 + 2 + 512 + 50) << 10), Room::InPlace);
        assert_eq!(small().room(65537 << 10), Room::InPlace);
        // As mkfs rounds it down.
        let clusters = Superblock { cluster: 16, read_only_compatible: BIGALLOC | 0x400, ..small() };
        assert_eq!(clusters.room((65536 + 15) << 10), Room::None);
        assert!(matches!(clusters.room((65536 + 16) << 10), Room::Elsewhere(_)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..1024), size in any::<u64>()) {
            if let Some(magic) = bytes.get_mut(0x38..0x3A) {
                magic.copy_from_slice(&[0x53, 0xEF]);
            }
            if let Some(unit) = bytes.get_mut(0x18..0x1C) {
                unit.copy_from_slice(&[2, 0, 0, 0]);
            }
            if let Some(superblock) = Superblock::parse(&bytes) {
                superblock.room(size);
                superblock.scratch(size, 2);
                superblock.descriptor(superblock.groups().min(1 << 32));
                superblock.group(&bytes);
            }
        }
    }
}
