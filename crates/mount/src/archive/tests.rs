use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use nix::sys::time::TimeSpec;
use proptest::prelude::*;

use super::*;
use crate::run_program;
use crate::share::example;

const NOW: TimeSpec = TimeSpec::new(1_700_000_000, 5);

fn attributes() -> Attributes {
    Attributes { mode: 0o644, owner: 0, group: 0, accessed: NOW, modified: NOW }
}

fn entry(name: &str, kind: Kind, leads: &str, contents: &str) -> Vec<u8> {
    let (name, leads) = (name.as_bytes().to_vec(), leads.as_bytes().to_vec());
    let mut out = Vec::new();
    let size = contents.len() as u64;
    write_header(&mut out, &Entry { name, leads, kind, size, attributes: attributes() }).unwrap();
    out.extend(contents.as_bytes());
    out.extend(vec![0; padding(size)]);
    out
}

/// Unpacks an archive of these entries beside a directory that is not to be touched.
fn unpack_entries(entries: &[Vec<u8>]) -> (tempfile::TempDir, Result<()>) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["out", "victim"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("victim/file"), "precious").unwrap();
    let mut archive = entries.concat();
    write_end(&mut archive).unwrap();
    fs::write(dir.path().join("a.tar"), archive).unwrap();
    let share = example(dir.path());
    let answer = unpack(&share, Path::new("a.tar"), &share, Path::new("out"));
    (dir, answer)
}

/// A tree with one of everything.
fn plant(root: &Path) {
    let long = format!("{}/{}", "d".repeat(90), "e".repeat(90));
    fs::create_dir_all(root.join(&long)).unwrap();
    fs::write(root.join(&long).join("f".repeat(90)), "deep").unwrap();
    fs::write(root.join("größe"), "12345").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("large"), vec![7; 700_000]).unwrap();
    fs::set_permissions(root.join("large"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(root.join("large"), root.join("same")).unwrap();
    symlink("/etc/passwd", root.join("absolute")).unwrap();
    symlink("x".repeat(300), root.join("far")).unwrap();
    fs::create_dir(root.join("closed")).unwrap();
    fs::write(root.join("closed/in"), "in").unwrap();
    fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o1500)).unwrap();
    nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRUSR).unwrap();
    drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap());
}

/// Everything that matters of each file, by its way.
fn tree(root: &Path) -> Vec<String> {
    let mut walk = Walk::new(File::open(root).unwrap().into()).unwrap();
    let mut seen = Vec::new();
    while let Some(step) = walk.next().unwrap() {
        let name = match step {
            Step::File { name, .. } | Step::Leave { name, .. } => walk.way(&name),
            Step::Enter { .. } => continue,
        };
        let path = root.join(&name);
        let about = fs::symlink_metadata(&path).unwrap();
        let contents = match about.file_type() {
            kind if kind.is_file() => {
                format!("{:?}", fs::read(&path).unwrap().iter().map(|b| u64::from(*b)).sum::<u64>())
            }
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
            _ => String::new(),
        };
        let owner = (about.uid(), about.gid());
        let time = (about.mtime(), about.mtime_nsec());
        seen.push(format!("{} {:o} {owner:?} {time:?} {contents}", name.display(), about.mode()));
    }
    seen
}

#[test]
fn what_is_packed_comes_back_as_it_was_whoever_packed_it() {
    for (compress, packer) in
        [(true, Packer::Own), (false, Packer::Own), (true, Packer::Program), (false, Packer::Program)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        plant(&from);
        let share = example(dir.path());
        let archive = Path::new("a.tar.gz");
        pack(&share, Path::new("from"), &share, archive, compress, packer).unwrap();
        assert_eq!(fs::read(dir.path().join("a.tar.gz")).unwrap().starts_with(&GZIP), compress);
        assert!(is_whole(&share, archive).unwrap());
        unpack(&share, archive, &share, Path::new("to")).unwrap();
        fs::remove_file(from.join("socket")).unwrap();
        let strip = |lines: Vec<String>| match packer {
            Packer::Own => lines,
            // GNU tar keeps whole seconds unless it is told otherwise.
            Packer::Program => lines.into_iter().map(|line| line.split(", ").next().unwrap().to_owned()).collect(),
        };
        assert_eq!(strip(tree(&to)), strip(tree(&from)), "{compress} {packer:?}");
        // Over what is there, as after a kill.
        unpack(&share, archive, &share, Path::new("to")).unwrap();
        assert_eq!(strip(tree(&to)), strip(tree(&from)), "{compress} {packer:?}");
    }
}

#[test]
fn the_tar_program_reads_what_is_packed_here() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["from", "to"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    plant(&dir.path().join("from"));
    let share = example(dir.path());
    pack(&share, Path::new("from"), &share, Path::new("a.tar.gz"), true, Packer::Own).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzpf").arg(dir.path().join("a.tar.gz")).arg("-C").arg(dir.path().join("to"));
    let output = run_program(&mut tar).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::remove_file(dir.path().join("from/socket")).unwrap();
    assert_eq!(tree(&dir.path().join("to")), tree(&dir.path().join("from")));
}

#[test]
fn nothing_in_an_archive_leads_out_of_where_it_is_unpacked() {
    let attacks: [&[Vec<u8>]; 8] = [
        &[entry("../victim/file", Kind::File, "", "evil")],
        &[entry("a/../../victim/file", Kind::File, "", "evil")],
        &[entry("/tmp/stowage-evil", Kind::File, "", "evil")],
        &[entry("..", Kind::Directory, "", "")],
        &[entry("mine", Kind::HardLink, "../victim/file", ""), entry("mine", Kind::File, "", "evil")],
        &[entry("mine", Kind::HardLink, "/etc/passwd", "")],
        &[entry("l", Kind::Link, "../victim", ""), entry("mine", Kind::HardLink, "l/file", "")],
        &[entry("", Kind::File, "", "evil")],
    ];
    for attack in attacks {
        let (dir, answer) = unpack_entries(attack);
        answer.unwrap_err();
        assert_eq!(fs::read_to_string(dir.path().join("victim/file")).unwrap(), "precious");
        assert!(!Path::new("/tmp/stowage-evil").try_exists().unwrap());
    }
    // A link that an earlier entry made is replaced when a later one goes through it.
    let through = [entry("l", Kind::Link, "../victim", ""), entry("l/file", Kind::File, "", "evil")];
    let again = [entry("l", Kind::Link, "../victim/file", ""), entry("l", Kind::File, "", "evil")];
    let directory = [entry("l", Kind::Link, "../victim", ""), entry("l", Kind::Directory, "", "")];
    for attack in [&through[..], &again, &directory] {
        let (dir, answer) = unpack_entries(attack);
        answer.unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("victim/file")).unwrap(), "precious");
        assert!(!dir.path().join("out/l").is_symlink());
        assert_eq!(fs::metadata(dir.path().join("victim")).unwrap().mode() & 0o777, 0o755);
    }
}

#[test]
fn no_devices_come_of_an_archive() {
    let mut device = entry("disk", Kind::Pipe, "", "");
    // Its last block; the first ones tell its time to the nanosecond.
    let start = device.len() - BLOCK;
    let header = &mut device[start..];
    header[156] = b'4';
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let (dir, answer) = unpack_entries(&[device, entry("file", Kind::File, "", "x")]);
    answer.unwrap();
    let names = crate::share_walk::names_in(File::open(dir.path().join("out")).unwrap().as_fd()).unwrap();
    assert_eq!(names, ["file"]);
}

#[test]
fn an_archive_that_was_cut_off_is_not_whole() {
    for compress in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("from")).unwrap();
        plant(&dir.path().join("from"));
        let share = example(dir.path());
        pack(&share, Path::new("from"), &share, Path::new("a"), compress, Packer::Own).unwrap();
        let whole = fs::read(dir.path().join("a")).unwrap();
        for length in [0, 1, 100, 511, 512, whole.len() / 2, whole.len() - 1025, whole.len() - 9] {
            // Without a second block of zeros it is whole all the same.
            let whole_enough = !compress && length == whole.len() - 9;
            fs::write(dir.path().join("a"), &whole[..length]).unwrap();
            assert_eq!(is_whole(&share, Path::new("a")).unwrap(), whole_enough, "{compress} {length}");
        }
    }
}

#[test]
fn an_archive_that_cannot_be_read_is_an_error_and_not_taken_for_an_unfinished_one() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("from")).unwrap();
    plant(&dir.path().join("from"));
    let share = example(dir.path());
    for compress in [true, false] {
        pack(&share, Path::new("from"), &share, Path::new("a"), compress, Packer::Own).unwrap();
        let mut spoiled = fs::read(dir.path().join("a")).unwrap();
        // The sum of the first header, or the sum at the end of what is compressed.
        let at = if compress { spoiled.len() - 6 } else { 150 };
        spoiled[at] ^= 1;
        fs::write(dir.path().join("a"), spoiled).unwrap();
        is_whole(&share, Path::new("a")).unwrap_err();
    }
    fs::write(dir.path().join("a"), "a letter to my aunt ".repeat(100)).unwrap();
    is_whole(&share, Path::new("a")).unwrap_err();
}

#[test]
fn times_before_1970_come_back_whoever_packed_them() {
    let seconds = |path: &Path| fs::symlink_metadata(path).map(|about| (about.mtime(), about.mtime_nsec())).unwrap();
    for packer in [Packer::Own, Packer::Program] {
        let dir = tempfile::tempdir().unwrap();
        for name in ["from", "to"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let nanoseconds = if packer == Packer::Own { 750_000_000 } else { 0 };
        let old = [("whole", -315_619_200, 0), ("part", -1, nanoseconds), ("zero", 0, nanoseconds)];
        for (name, second, nanosecond) in old {
            let file = File::create(dir.path().join("from").join(name)).unwrap();
            let time = TimeSpec::new(second, nanosecond);
            nix::sys::stat::futimens(&file, &time, &time).unwrap();
        }
        let share = example(dir.path());
        pack(&share, Path::new("from"), &share, Path::new("a"), false, packer).unwrap();
        assert!(is_whole(&share, Path::new("a")).unwrap());
        unpack(&share, Path::new("a"), &share, Path::new("to")).unwrap();
        for (name, second, nanosecond) in old {
            assert_eq!(seconds(&dir.path().join("to").join(name)), (second, nanosecond), "{name} {packer:?}");
        }
    }
}

#[test]
fn what_lies_deeper_than_a_path_can_be_long_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["from", "to"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let mut way: OwnedFd = File::open(dir.path().join("from")).unwrap().into();
    for _ in 0..1200 {
        nix::sys::stat::mkdirat(&way, "deep", Mode::S_IRWXU).unwrap();
        way = open_directory(way.as_fd(), "deep".as_ref()).unwrap();
    }
    let mut file = create(way.as_fd(), "file".as_ref()).unwrap();
    file.write_all(b"bottom").unwrap();
    linkat(&way, "file", &way, "again", AtFlags::empty()).unwrap();
    let share = example(dir.path());
    let packed = |from: &str| {
        pack(&share, Path::new(from), &share, Path::new("a"), false, Packer::Own).unwrap();
        fs::read(dir.path().join("a")).unwrap()
    };
    let first = packed("from");
    unpack(&share, Path::new("a"), &share, Path::new("to")).unwrap();
    assert!(first == packed("to"), "what was unpacked is not what was packed");
    for name in ["from", "to"] {
        crate::share::remove(&share, Path::new(name)).unwrap();
    }
}

proptest! {
    #[test]
    fn whatever_bytes_an_archive_has_nothing_outside_is_touched(
        noise in proptest::collection::vec((0usize..2048, any::<u8>()), 0..40),
        fix_sums in any::<bool>(),
    ) {
        let mut bytes = [
            entry("l", Kind::Link, "../victim", ""),
            entry("l/file", Kind::File, "", "evil"),
            entry(&"n".repeat(150), Kind::File, "", "x"),
        ].concat();
        for (at, byte) in noise {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if fix_sums {
            for block in bytes.chunks_exact_mut(BLOCK) {
                block[148..156].copy_from_slice(b"        ");
                let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        let (dir, _) = unpack_entries(&[bytes]);
        prop_assert_eq!(fs::read_to_string(dir.path().join("victim/file")).unwrap(), "precious");
        prop_assert_eq!(fs::read_dir(dir.path().join("victim")).unwrap().count(), 1);
    }
}
