use std::process::Command;

use crate::run_program;

use super::*;

const MIB: u64 = 1 << 20;

struct World {
    dir: tempfile::TempDir,
    image: PathBuf,
    plan: PathBuf,
}

impl World {
    /// An ext4 of `from` bytes with files in it, on an image that is `to` bytes long.
    fn new(options: &[&str], from: u64, to: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (image, plan) = (dir.path().join("image"), dir.path().join("plan"));
        File::create(&image).unwrap().set_len(from).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).args(options).arg(&image));
        let source = dir.path().join("source");
        fs::write(&source, noise(from / 4)).unwrap();
        // Many of them small, so that data lies between metadata.
        let small = dir.path().join("small");
        fs::write(&small, noise(1500)).unwrap();
        // Free blocks are not empty ones: most that are found free later were some file's once.
        let gone = dir.path().join("gone");
        fs::write(&gone, noise(from)).unwrap();
        let filled = format!("write {} gone\nrm gone\n", gone.display());
        let mut script = filled + &format!("write {} large\n", source.display());
        (0..60).for_each(|n| script += &format!("mkdir d{n}\nwrite {} d{n}/small\n", small.display()));
        let script_file = dir.path().join("script");
        fs::write(&script_file, script).unwrap();
        run(Command::new("debugfs").args(["-w", "-f"]).arg(&script_file).arg(&image));
        OpenOptions::new().write(true).open(&image).unwrap().set_len(to).unwrap();
        [source, small, gone, script_file].iter().for_each(|path| fs::remove_file(path).unwrap());
        World { dir, image, plan }
    }

    fn check(&self, from: u64, to: u64) {
        run(Command::new("e2fsck").arg("-fn").arg(&self.image));
        let has = super::super::size(&self.image).unwrap().unwrap();
        assert!(has <= to && has + MIB > to, "{has} of {to} bytes");
        let cat = |path: &str| run(Command::new("debugfs").args(["-R", &format!("cat {path}")]).arg(&self.image));
        assert!(cat("large") == noise(from / 4), "the large file is another one");
        (0..60).for_each(|n| assert!(cat(&format!("d{n}/small")) == noise(1500), "the {n}. small file is another one"));
    }

    fn files(&self) -> usize {
        fs::read_dir(self.dir.path()).unwrap().count()
    }
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = run_program(command).unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Never twice the same piece, and none of zeros.
fn noise(bytes: u64) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes as usize).collect()
}

#[test]
fn a_file_system_fills_its_device_and_every_file_is_as_it_was() {
    let cases: [(&[&str], u64, u64); 8] = [
        (&[], 8 * MIB, 64 * MIB),
        (&[], 40 * MIB, 300 * MIB + 5120),
        (&["-b", "4096"], 64 * MIB, 600 * MIB),
        (&["-O", "^64bit"], 32 * MIB, 48 * MIB),
        (&["-b", "4096"], 256 * MIB, 1200 * MIB),
        (&["-O", "^metadata_csum,uninit_bg"], 32 * MIB, 96 * MIB),
        (&["-O", "^flex_bg"], 32 * MIB, 320 * MIB),
        (&["-O", "^has_journal"], 32 * MIB, 64 * MIB),
    ];
    for (options, from, to) in cases {
        let world = World::new(options, from, to);
        assert!(plan(&world.image, &world.plan).unwrap(), "{options:?}");
        assert_eq!(world.files(), 2, "the image and the plan: no scratch");
        assert!(carry_out(&world.plan, &world.image).unwrap(), "{options:?}");
        world.check(from, to);
        assert!(carry_out(&world.plan, &world.image).unwrap(), "again it is done already");
        fs::remove_file(&world.plan).unwrap();
        assert!(!plan(&world.image, &world.plan).unwrap(), "{options:?}: it fills its device");
        assert_eq!(world.files(), 1);
    }
}

#[test]
fn a_growth_that_was_cut_short_anywhere_is_finished_by_the_next() {
    let world = World::new(&[], 8 * MIB, 24 * MIB);
    assert!(plan(&world.image, &world.plan).unwrap());
    let before = fs::read(&world.image).unwrap();
    assert!(carry_out(&world.plan, &world.image).unwrap());
    world.check(8 * MIB, 24 * MIB);
    let whole = fs::read(&world.image).unwrap();
    let (pieces_file, pieces) = open(&world.plan).unwrap().unwrap();
    assert!(pieces > 20, "{pieces}");
    let step = (pieces / 8) as usize;
    for reached in (0..2 * pieces).step_by(step).chain([1, pieces - 1]) {
        fs::write(&world.image, &before).unwrap();
        let device = OpenOptions::new().write(true).open(&world.image).unwrap();
        for index in 0..pieces - 1 {
            // A kill leaves the first of them, a loss of power any.
            let is_there = if reached < pieces { index < reached } else { (index * 7 + reached) % 3 == 0 };
            if is_there {
                let (at, piece) = entry(&pieces_file, index).unwrap();
                device.write_all_at(&piece, at).unwrap();
            }
        }
        assert!(carry_out(&world.plan, &world.image).unwrap());
        assert!(fs::read(&world.image).unwrap() == whole, "cut short at {reached} of {pieces}");
    }
}

#[test]
fn a_superblock_of_which_one_sector_was_written_becomes_whole() {
    let world = World::new(&[], 8 * MIB, 24 * MIB);
    assert!(plan(&world.image, &world.plan).unwrap());
    let before = fs::read(&world.image).unwrap();
    assert!(carry_out(&world.plan, &world.image).unwrap());
    let whole = fs::read(&world.image).unwrap();
    let at = SUPERBLOCK as usize;
    for sector in [at..at + 512, at + 512..at + PIECE] {
        let mut torn = [&before[..at + PIECE], &whole[at + PIECE..]].concat();
        torn[sector.clone()].copy_from_slice(&whole[sector]);
        assert!(torn[at..] != before[at..] && torn[at..] != whole[at..]);
        fs::write(&world.image, torn).unwrap();
        assert!(carry_out(&world.plan, &world.image).unwrap());
        assert!(fs::read(&world.image).unwrap() == whole);
    }
}

#[test]
fn what_seems_carried_out_is_written_again_since_it_may_be_nowhere_but_in_memory() {
    let world = World::new(&[], 8 * MIB, 24 * MIB);
    assert!(plan(&world.image, &world.plan).unwrap());
    assert!(carry_out(&world.plan, &world.image).unwrap());
    let image = OpenOptions::new().write(true).open(&world.image).unwrap();
    image.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert!(carry_out(&world.plan, &world.image).unwrap());
    assert!(image.metadata().unwrap().modified().unwrap() > std::time::UNIX_EPOCH, "nothing was written");
    world.check(8 * MIB, 24 * MIB);
}

#[test]
fn a_plan_that_is_old_or_not_whole_changes_nothing() {
    let world = World::new(&[], 16 * MIB, 64 * MIB);
    assert!(plan(&world.image, &world.plan).unwrap());
    let whole = fs::read(&world.plan).unwrap();
    let before = fs::read(&world.image).unwrap();
    for length in [0, 10, HEAD, HEAD + ENTRY, HEAD + 3 * ENTRY, whole.len() - ENTRY, whole.len() - 1] {
        fs::write(&world.plan, &whole[..length]).unwrap();
        assert!(!carry_out(&world.plan, &world.image).unwrap(), "{length} of {} bytes", whole.len());
    }
    assert!(fs::read(&world.image).unwrap() == before);

    // Somebody has used it since, which every mount writes down there.
    fs::write(&world.plan, &whole).unwrap();
    run(Command::new("debugfs").args(["-w", "-R", "ssv mnt_count 7"]).arg(&world.image));
    let used = fs::read(&world.image).unwrap();
    assert!(used != before && !carry_out(&world.plan, &world.image).unwrap());
    assert!(fs::read(&world.image).unwrap() == used);
}

#[test]
fn what_a_plan_may_take_is_at_least_what_its_copies_take_and_not_out_of_all_proportion() {
    use std::os::unix::fs::MetadataExt;
    for (options, from, to) in [
        (&[] as &[&str], 8 * MIB, 64 * MIB),
        (&["-b", "4096"], 256 * MIB, 2048 * MIB),
        (&["-i", "1024"], 32 * MIB, 64 * MIB),
    ] {
        let world = World::new(options, from, to);
        let superblock = read_piece(&File::open(&world.image).unwrap(), SUPERBLOCK).unwrap();
        let journal = Superblock::parse(&superblock).unwrap().journal_bytes();
        let dumped = world.dir.path().join("journal");
        let words = format!("dump <8> {}", dumped.display());
        run(Command::new("debugfs").args(["-R", &words]).arg(&world.image));
        assert_eq!(fs::metadata(&dumped).unwrap().len(), journal);
        let copy = world.dir.path().join("copy");
        run(Command::new("e2image").arg("-r").arg(&world.image).arg(&copy));
        let taken = fs::metadata(&copy).unwrap().blocks() * 512;
        let once = scratch(&world.image, true).unwrap();
        assert!(taken <= once && once <= journal + taken + to / 50 + 2 * MIB, "{options:?}: {taken}, {once}");
        assert!(scratch(&world.image, false).unwrap() > once + journal);
    }
}

#[test]
fn a_rest_that_is_smaller_than_what_is_given_away_at_once_is_no_room() {
    let world = World::new(&["-b", "4096", "-O", "bigalloc", "-C", "65536"], 64 * MIB + 8192, 64 * MIB + 8192);
    assert!(super::super::size(&world.image).unwrap().unwrap() < 64 * MIB + 8192);
    assert!(!plan(&world.image, &world.plan).unwrap());
    OpenOptions::new().write(true).open(&world.image).unwrap().set_len(65 * MIB).unwrap();
    assert!(matches!(plan(&world.image, &world.plan).unwrap_err(), Error::GrowUnmounted { .. }));
}

#[test]
fn what_could_only_grow_by_moving_data_is_left_as_it_is_and_says_so() {
    for feature in ["^resize_inode", "^metadata_csum,^uninit_bg"] {
        let world = World::new(&["-O", feature], 32 * MIB, 1024 * MIB);
        let before = fs::read(&world.image).unwrap();
        let refusal = plan(&world.image, &world.plan).unwrap_err();
        assert!(
            matches!(refusal, Error::GrowUnmounted { .. }) && refusal.to_string().contains("SYS_RESOURCE"),
            "{feature}: {refusal}"
        );
        assert!(fs::read(&world.image).unwrap() == before && world.files() == 1);
    }
    assert!(moves("Begin pass 1 (max = 3) Extending the inode table XX Begin pass 2 (max = 9) Relocating blocks"));
    assert!(!moves("resize2fs 1.47.0 Begin pass 1 (max = 3) Extending the inode table XX"));
}
