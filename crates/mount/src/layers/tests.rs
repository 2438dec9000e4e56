use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};

use flate2::Compression;
use flate2::write::GzEncoder;
use nix::sys::time::TimeSpec;
use proptest::prelude::*;

use super::*;
use crate::digest::Digest;
use crate::oci;
use crate::patience::Waiter;
use crate::tar::{BLOCK, padding, write_end, write_header};

/// A layout, a store beside it, and something that must stay as it is.
struct Machine {
    dir: tempfile::TempDir,
}

type Brings<'a> = (&'a str, Kind, &'a str);

fn tar(entries: &[Brings<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for &(name, kind, text) in entries {
        let is_file = kind == Kind::File;
        let attributes = Attributes {
            mode: if kind == Kind::Directory { 0o750 } else { 0o640 },
            owner: 12,
            group: 34,
            accessed: TimeSpec::new(1000, 0),
            modified: TimeSpec::new(1000, 0),
        };
        let (leads, size) = if is_file { (Vec::new(), text.len() as u64) } else { (text.into(), 0) };
        write_header(&mut out, &Entry { name: name.into(), leads, kind, size, attributes }).unwrap();
        if is_file {
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(&[0; BLOCK][..padding(size)]);
        }
    }
    write_end(&mut out).unwrap();
    out
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["layout/blobs/sha256", "store", "victim"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("victim/precious"), "precious").unwrap();
        Machine { dir }
    }

    fn blob(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        fs::write(self.dir.path().join("layout").join(digest.blob()), bytes).unwrap();
        digest
    }

    fn layer(&self, entries: &[Brings<'_>]) -> Layer {
        let bytes = tar(entries);
        Layer { digest: self.blob(&bytes), size: bytes.len() as u64, is_gzip: false }
    }

    fn unpack(&self, layers: &[Layer]) -> Result<PathBuf> {
        self.unpack_from("layout", layers)
    }

    fn unpack_from(&self, layout: &str, layers: &[Layer]) -> Result<PathBuf> {
        let layout = oci::open(&self.dir.path().join(layout)).unwrap().unwrap();
        let target = self.dir.path().join("store/image");
        let (_waiter, waiting) = Waiter::new();
        unpack(&layout, layers, &target, &waiting).map(|()| target)
    }

    fn assert_nothing_was_touched(&self) {
        assert_eq!(fs::read_dir(self.dir.path().join("store")).unwrap().count(), 0, "something is left in the store");
        self.assert_victim_is_well();
    }

    fn assert_victim_is_well(&self) {
        let victim = self.dir.path().join("victim");
        assert_eq!(fs::read_to_string(victim.join("precious")).unwrap(), "precious");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
        assert_eq!(fs::metadata(victim.join("precious")).unwrap().nlink(), 1);
    }
}

fn seen(root: &Path) -> Vec<String> {
    let mut waiting = vec![root.to_owned()];
    let mut seen = Vec::new();
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap().map(std::result::Result::unwrap) {
            seen.push(entry.path().strip_prefix(root).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    seen.sort();
    seen
}

#[test]
fn layers_are_laid_one_over_the_other_with_owners_modes_and_links() {
    let machine = Machine::new();
    let layers = [
        machine.layer(&[
            ("usr/", Kind::Directory, ""),
            ("usr/lib/a", Kind::File, "low"),
            ("lib", Kind::Link, "/usr/lib"),
            ("gone/deep/er", Kind::File, ""),
            ("opaque/old", Kind::File, ""),
            ("dir/inner", Kind::File, ""),
            ("file", Kind::File, ""),
        ]),
        machine.layer(&[
            // Through the link of the layer below, as a program in the image would go.
            ("lib/b", Kind::File, "high"),
            ("./usr/lib/same", Kind::HardLink, "lib/a"),
            (".wh.gone", Kind::File, ""),
            (".wh.never-was", Kind::File, ""),
            ("nowhere/.wh.x", Kind::File, ""),
            ("opaque/new", Kind::File, ""),
            ("opaque/.wh..wh..opq", Kind::File, ""),
            (".wh..wh.plnk", Kind::File, ""),
            ("dir", Kind::File, "now a file"),
            ("file/", Kind::Directory, ""),
            ("pipe", Kind::Pipe, ""),
        ]),
    ];
    let root = machine.unpack(&layers).unwrap();
    let expected = "dir file lib opaque opaque/new pipe usr usr/lib usr/lib/a usr/lib/b usr/lib/same"
        .split(' ')
        .collect::<Vec<_>>();
    assert_eq!(seen(&root), expected);
    let about = |way: &str| fs::symlink_metadata(root.join(way)).unwrap();
    assert_eq!(fs::read_to_string(root.join("usr/lib/b")).unwrap(), "high");
    assert_eq!(about("usr/lib/same").ino(), about("usr/lib/a").ino());
    assert_eq!(fs::read_link(root.join("lib")).unwrap(), Path::new("/usr/lib"));
    let usr = about("usr");
    assert_eq!((usr.mode() & 0o7777, usr.mtime()), (0o750, 1000));
    assert_eq!(about("usr/lib").mode() & 0o7777, 0o755, "a directory that no layer describes");
    if nix::unistd::geteuid().is_root() {
        assert_eq!((usr.uid(), usr.gid()), (12, 34));
        assert_eq!((about("lib").uid(), about("dir").gid()), (12, 34));
    }
}

#[test]
fn what_a_layer_brings_is_not_taken_away_by_its_own_whiteouts_in_either_order() {
    let machine = Machine::new();
    let low = machine.layer(&[("a/low", Kind::File, ""), ("b/low", Kind::File, ""), ("c", Kind::File, "low")]);
    let high = machine.layer(&[
        ("a/high", Kind::File, ""),
        ("a/.wh..wh..opq", Kind::File, ""),
        ("b/.wh..wh..opq", Kind::File, ""),
        ("b/high", Kind::File, ""),
        ("c", Kind::File, "high"),
        (".wh.c", Kind::File, ""),
    ]);
    let root = machine.unpack(&[low, high]).unwrap();
    assert_eq!(seen(&root), ["a", "a/high", "b", "b/high", "c"]);
    assert_eq!(fs::read_to_string(root.join("c")).unwrap(), "high");
}

#[test]
fn no_entry_leads_out_of_the_image() {
    let machine = Machine::new();
    let victim = machine.dir.path().join("victim").display().to_string();
    let through = format!("out{victim}/mine");
    let precious = format!("{victim}/precious");
    let (under, over) = (format!("out{precious}"), format!("{victim}/absolute"));
    let inside = [
        ("out", Kind::Link, "/"),
        ("up", Kind::Link, "../../../../../../.."),
        (&through, Kind::File, "inside"),
        (&over, Kind::File, "inside"),
        ("up/high", Kind::File, "inside"),
        ("loop", Kind::Link, "loop"),
        ("loop/x", Kind::File, "inside"),
    ];
    let root = machine.unpack(&[machine.layer(&inside)]).unwrap();
    machine.assert_victim_is_well();
    for way in [format!("{victim}/mine"), over.clone(), "/high".to_owned(), "/loop/x".to_owned()] {
        assert_eq!(fs::read_to_string(root.join(&way[1..])).unwrap(), "inside", "{way}");
    }
    fs::remove_dir_all(&root).unwrap();

    let whiteout = format!("out{victim}/.wh.precious");
    let opaque = format!("out{victim}/.wh..wh..opq");
    let taken = machine.layer(&[(&whiteout, Kind::File, ""), (&opaque, Kind::File, "")]);
    let root = machine.unpack(&[machine.layer(&inside[..1]), taken]).unwrap();
    machine.assert_victim_is_well();
    fs::remove_dir_all(root).unwrap();

    for hostile in [
        ("../victim/mine", Kind::File, "x"),
        ("a/../../victim/mine", Kind::File, "x"),
        ("..", Kind::Directory, ""),
        ("", Kind::File, "x"),
        ("link", Kind::HardLink, "../victim/precious"),
        ("link", Kind::HardLink, &precious),
        ("link", Kind::HardLink, &under),
        ("a/.wh...", Kind::File, ""),
        (".wh..", Kind::File, ""),
        (".wh.", Kind::File, ""),
    ] {
        assert!(machine.unpack(&[machine.layer(&inside[..1]), machine.layer(&[hostile])]).is_err(), "{}", hostile.0);
        machine.assert_nothing_was_touched();
    }
    let long = "a/".repeat(4000);
    assert!(machine.unpack(&[machine.layer(&[(&long, Kind::Directory, "")])]).is_err());
    machine.assert_nothing_was_touched();
}

#[test]
fn devices_are_not_made() {
    let machine = Machine::new();
    let mut bytes = tar(&[("sda", Kind::Pipe, ""), ("file", Kind::File, "x")]);
    // A block device, with the sum of its header set right.
    let more = u32::from(b'3') as i64 - i64::from(b'6');
    bytes[156] = b'3';
    let sum = i64::from_str_radix(std::str::from_utf8(&bytes[148..154]).unwrap(), 8).unwrap() + more;
    bytes[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    let layer = Layer { digest: machine.blob(&bytes), size: bytes.len() as u64, is_gzip: false };
    assert_eq!(seen(&machine.unpack(&[layer]).unwrap()), ["file"]);
}

#[test]
fn a_blob_that_is_not_what_its_manifest_says_is_refused_and_nothing_is_left() {
    let machine = Machine::new();
    let good = machine.layer(&[("a", Kind::File, "good")]);
    let packed = gzip(&tar(&[("a", Kind::File, "packed")]));
    let other = tar(&[("a", Kind::File, "evil")]);
    let changed = machine.layer(&[("a", Kind::File, "kind")]);
    fs::write(machine.dir.path().join("layout").join(changed.digest.blob()), &other).unwrap();
    let torn = &packed[..packed.len() - 9];
    let torn = Layer { digest: machine.blob(torn), size: torn.len() as u64, is_gzip: true };
    let cut = tar(&[("a", Kind::File, "cut")]);
    let cut = Layer { digest: machine.blob(&cut[..600]), size: 600, is_gzip: false };
    let absent = Layer { digest: Digest::of(b"absent"), size: 6, is_gzip: false };
    let longer = Layer { size: good.size + 1, ..good.clone() };
    let unpacked = Layer { is_gzip: true, ..good.clone() };
    for (bad, why) in [
        (changed, "digest"),
        (torn, ""),
        (cut, "whole tar"),
        (absent, "does not hold"),
        (longer, "manifest"),
        (unpacked, ""),
    ] {
        let error = machine.unpack(&[good.clone(), bad]).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("blobs/sha256/"), "{error}");
        machine.assert_nothing_was_touched();
    }
    machine.unpack(&[good]).unwrap();
}

#[test]
fn a_layout_in_a_tar_archive_serves_as_well_and_layers_may_be_compressed() {
    let machine = Machine::new();
    let packed = gzip(&tar(&[("a", Kind::File, &"long ".repeat(100_000))]));
    let layer = Layer { digest: machine.blob(&packed), size: packed.len() as u64, is_gzip: true };
    let archive = fs::File::create(machine.dir.path().join("layout.tar")).unwrap();
    let program = std::process::Command::new("tar")
        .args(["-cf", "-", "."])
        .current_dir(machine.dir.path().join("layout"))
        .stdout(archive)
        .status();
    assert!(program.unwrap().success());
    let root = machine.unpack_from("layout.tar", std::slice::from_ref(&layer)).unwrap();
    assert_eq!(fs::read_to_string(root.join("a")).unwrap().len(), 500_000);
    let layout = oci::open(&machine.dir.path().join("layout.tar")).unwrap().unwrap();
    assert!(layout.read(Path::new("blobs/sha256/none")).unwrap().is_none());
    assert!(oci::open(&machine.dir.path().join("nothing")).unwrap().is_none());
    fs::write(machine.dir.path().join("text.tar"), "no archive at all".repeat(100)).unwrap();
    assert!(oci::open(&machine.dir.path().join("text.tar")).is_err());
}

#[test]
fn what_a_killed_process_left_is_replaced_and_what_is_complete_stays() {
    let machine = Machine::new();
    let layer = machine.layer(&[("a", Kind::File, "x")]);
    let left = machine.dir.path().join("store/.image.unpacking");
    fs::create_dir_all(left.join("half/done")).unwrap();
    symlink("/", left.join("root")).unwrap();
    let root = machine.unpack(std::slice::from_ref(&layer)).unwrap();
    assert_eq!(seen(&root), ["a"]);
    assert!(!left.try_exists().unwrap());
    let before = fs::metadata(&root).unwrap().ino();
    fs::remove_dir_all(machine.dir.path().join("layout/blobs/sha256")).unwrap();
    machine.unpack(&[layer]).unwrap();
    assert_eq!(fs::metadata(&root).unwrap().ino(), before, "a complete image is not unpacked again");
}

proptest! {
    // Each case syncs a file system.
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_bytes_a_layer_has_nothing_outside_is_touched(
        noise in proptest::collection::vec((0usize..4096, any::<u8>()), 0..40),
        fix_sums in any::<bool>(),
    ) {
        let machine = Machine::new();
        let victim = machine.dir.path().join("victim").display().to_string();
        let (through, whiteout) = (format!("l{victim}/mine"), format!("l{victim}/.wh.precious"));
        let mut bytes = tar(&[
            ("l", Kind::Link, "/"),
            (&through, Kind::File, "evil"),
            (&whiteout, Kind::File, ""),
            ("h", Kind::HardLink, &format!("{victim}/precious")),
            ("up", Kind::Link, "../../victim"),
            ("up/mine", Kind::File, "evil"),
        ]);
        for (at, byte) in noise {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if fix_sums {
            for block in bytes.chunks_exact_mut(BLOCK).filter(|block| block.iter().any(|byte| *byte != 0)) {
                block[148..156].copy_from_slice(b"        ");
                let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        let layer = Layer { digest: machine.blob(&bytes), size: bytes.len() as u64, is_gzip: false };
        let _ = machine.unpack(&[layer]);
        machine.assert_victim_is_well();
    }
}

#[test]
fn two_who_unpack_the_same_image_at_once_both_have_it() {
    let machine = Machine::new();
    let names: Vec<String> = (0..200).map(|number| format!("d/{number}")).collect();
    let entries: Vec<Brings<'_>> = names.iter().map(|name| (name.as_str(), Kind::File, "x")).collect();
    let layer = machine.layer(&entries);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let root = machine.unpack(std::slice::from_ref(&layer)).unwrap();
                assert_eq!(fs::read_dir(root.join("d")).unwrap().count(), 200);
            });
        }
    });
}
