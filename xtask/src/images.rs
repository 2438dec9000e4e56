//! `cargo xtask images`: one cargo build, then one image per service.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use stowage_services::{Image, SERVICES, names};

use crate::mirror;
use crate::tools::{answers, apt_install, is_installed, is_root, output, run};

/// The cargo profile of what is shipped.
const PROFILE: &str = "dist";
/// What the node images stand on.
const BASE: &str = "node-base";
/// What that stands on.
const DEBIAN: &str = "debian:12-slim";
const SUITE: &str = "bookworm";
const FILE_SYSTEM_PROGRAMS: &str = "e2fsprogs,xfsprogs,btrfs-progs,nfs-common";
/// What Debian's own slim images leave out too.
const NOT_SLIM: [&str; 7] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "var/cache/apt",
    "var/lib/apt/lists",
];

/// An architecture, as the engine, rustc and Debian's cross compilers call it.
struct Arch {
    engine: &'static str,
    target: &'static str,
    linker: &'static str,
    flags: &'static str,
}

/// The addresses that a static binary mends at its start take 5 % of it in the usual form and next to nothing in the packed
/// one, which is also not read into memory; Debian 12's linker packs them for amd64 only. What was compiled twice to the same
/// code is kept once (`icf`): rustc for amd64 brings the linker that can, Debian 12's cannot.
const ARCHS: [Arch; 2] = [
    Arch {
        engine: "amd64",
        target: "x86_64-unknown-linux-gnu",
        linker: "x86_64-linux-gnu-gcc",
        flags: if cfg!(target_arch = "x86_64") {
            "-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs -C link-arg=-Wl,--icf=all"
        } else {
            "-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs"
        },
    },
    Arch {
        engine: "arm64",
        target: "aarch64-unknown-linux-gnu",
        linker: "aarch64-linux-gnu-gcc",
        flags: "-C target-feature=+crt-static",
    },
];

impl Arch {
    fn is_foreign(&self) -> bool {
        self.processor() != std::env::consts::ARCH
    }

    fn processor(&self) -> &'static str {
        self.target.split('-').next().unwrap_or(self.target)
    }

    fn suffix(&self) -> String {
        if self.is_foreign() { format!("-{}", self.engine) } else { String::new() }
    }

    /// Whether programs for it can be run here, which the steps of a Dockerfile are.
    fn runs_here(&self) -> bool {
        let handler = format!("/proc/sys/fs/binfmt_misc/qemu-{}", self.processor());
        !self.is_foreign() || fs::metadata(handler).is_ok()
    }
}

/// What the user asked for.
pub struct Options {
    arch: &'static Arch,
    prefix: String,
    tag: String,
}

impl Options {
    /// Reads `--arch amd64|arm64`, `--prefix NAME` and `--tag TAG`.
    pub fn read(mut words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let host = if cfg!(target_arch = "aarch64") { &ARCHS[1] } else { &ARCHS[0] };
        let mut options = Self { arch: host, prefix: "stowage".to_owned(), tag: env!("CARGO_PKG_VERSION").to_owned() };
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--arch" => {
                    let name = value()?;
                    let known = ARCHS.iter().find(|arch| arch.engine == name);
                    options.arch = known.with_context(|| format!("--arch {name:?}: there are amd64 and arm64"))?;
                }
                "--prefix" => options.prefix = value()?,
                "--tag" => options.tag = value()?,
                other => bail!("images {other:?}: the options are --arch amd64|arm64, --prefix NAME and --tag TAG"),
            }
        }
        Ok(options)
    }

    /// Images of another architecture than this machine's do not take the place of those that run here.
    fn name(&self, service: &str) -> String {
        format!("{}/{service}:{}{}", self.prefix, self.tag, self.arch.suffix())
    }
}

/// Builds everything, or says in one line why it cannot.
pub fn build(options: &Options) -> anyhow::Result<()> {
    if !answers("docker", &["info"]) {
        println!("no images: no container engine answers (docker info)");
        return Ok(());
    }
    let Some(binaries) = compile(options.arch)? else { return Ok(()) };
    let staging = Path::new("target/images").join(options.arch.engine);
    for service in names(|service| service.image != Image::Debian) {
        build_image(options, &staging, &binaries, service, &[])?;
    }
    if prepare_base(options, &staging)? {
        let base = format!("BASE={}", options.name(BASE));
        for service in names(|service| service.image == Image::Debian) {
            build_image(options, &staging, &binaries, service, &["--build-arg", &base])?;
        }
    }
    report(options)
}

/// One static build of all services; `None` where a toolchain for it is missing.
fn compile(arch: &Arch) -> anyhow::Result<Option<PathBuf>> {
    let foreign = arch.is_foreign();
    let library = output(Command::new("rustc").args(["--print", "target-libdir", "--target", arch.target]))?;
    if !Path::new(library.trim()).is_dir() {
        println!("no {} images: rustup target add {}", arch.engine, arch.target);
        return Ok(None);
    }
    if foreign && !is_installed(arch.linker) {
        println!("no {} images: no linker {} in PATH", arch.engine, arch.linker);
        return Ok(None);
    }
    let mut build = Command::new(env!("CARGO"));
    // One setting for all that is shipped, or everything is built twice; static binaries need an explicit target.
    build.env("RUSTFLAGS", arch.flags);
    build.args(["build", "--profile", PROFILE, "--target", arch.target, "--bins"]);
    for service in names(|_| true) {
        build.args(["-p", service]);
    }
    if foreign {
        let variable = format!("CARGO_TARGET_{}_LINKER", arch.target.to_uppercase().replace('-', "_"));
        build.env(variable, arch.linker);
    }
    run(&mut build)?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    Ok(Some(Path::new(&target).join(arch.target).join(PROFILE)))
}

/// A directory with the binary, an empty folder and nothing else is all the engine gets to see.
fn build_image(
    options: &Options,
    staging: &Path,
    binaries: &Path,
    service: &str,
    arguments: &[&str],
) -> anyhow::Result<()> {
    let folder = staging.join(service);
    fs::create_dir_all(folder.join("empty")).with_context(|| format!("cannot create {}", folder.display()))?;
    let (from, to) = (binaries.join(service), folder.join(service));
    fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    engine_build(options, &folder, service, arguments)
}

fn engine_build(options: &Options, folder: &Path, service: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let git = |words: &[&str]| output(Command::new("git").args(words)).unwrap_or_default().trim().to_owned();
    let label = |name: &str, value: &str| format!("org.opencontainers.image.{name}={value}");
    let mut build = Command::new("docker");
    build.args(["build", "--quiet", "--platform", &format!("linux/{}", options.arch.engine)]);
    build.args(["--tag", &options.name(service), "--file", &format!("deploy/images/{service}.Dockerfile")]);
    build.args(["--label", &label("version", &options.tag)]);
    build.args(["--label", &label("revision", &git(&["rev-parse", "HEAD"]))]);
    // The commit's time, not the clock's: the same source gives the same image.
    build.args(["--label", &label("created", &git(&["log", "-1", "--format=%cI"]))]);
    build.args(arguments).arg(folder);
    output(&mut build).map(drop)
}

/// Makes the image that node images stand on; `false` if that cannot be done for this architecture.
fn prepare_base(options: &Options, staging: &Path) -> anyhow::Result<bool> {
    if !options.arch.runs_here() {
        let (arch, processor) = (options.arch.engine, options.arch.processor());
        println!("no {arch} node images: this machine runs no {arch} programs (binfmt_misc has no qemu-{processor})");
        return Ok(false);
    }
    let platform = format!("linux/{}", options.arch.engine);
    let inspect = |format: &str| {
        let output = Command::new("docker").args(["image", "inspect", "--format", format, DEBIAN]).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let before = inspect("{{.Id}}");
    let there = inspect("{{.Architecture}}").as_deref() == Some(options.arch.engine);
    if !there && !answers("docker", &["pull", "--quiet", "--platform", &platform, DEBIAN]) {
        if options.arch.is_foreign() {
            println!("no {} node images: {DEBIAN} cannot be pulled for it", options.arch.engine);
            return Ok(false);
        }
        bootstrap(staging)?;
    }
    let debian = format!("{DEBIAN}{}", options.arch.suffix());
    if options.arch.is_foreign() {
        output(Command::new("docker").args(["tag", DEBIAN, &debian]))?;
        if let Some(ours) = before.filter(|_| !there) {
            output(Command::new("docker").args(["tag", &ours, DEBIAN]))?;
        }
    }
    let folder = staging.join(BASE);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    engine_build(options, &folder, BASE, &["--build-arg", &format!("DEBIAN={debian}")])?;
    Ok(true)
}

/// Debian from its packages, imported under the tag it would have been pulled by.
fn bootstrap(staging: &Path) -> anyhow::Result<()> {
    ensure!(
        is_root(),
        "{DEBIAN} cannot be pulled, and making it with debootstrap needs root; run this as root, or load the image"
    );
    if !is_installed("debootstrap") {
        apt_install(&["debootstrap"])?;
    }
    let mirror = mirror::find(SUITE)?;
    println!("{DEBIAN} cannot be pulled: making it with debootstrap from {}", mirror.uri);
    let root = staging.join("debian");
    remove(&root)?;
    let include = format!("--include={FILE_SYSTEM_PROGRAMS}");
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", &include]);
    if let Some(keyring) = &mirror.keyring {
        make.arg("--keyring").arg(keyring);
    }
    output(make.arg(SUITE).arg(&root).arg(&mirror.uri))?;
    for folder in NOT_SLIM {
        let folder = root.join(folder);
        remove(&folder)?;
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let archive = staging.join("debian.tar");
    run(Command::new("tar").args(["--numeric-owner", "-cf"]).arg(&archive).arg("-C").arg(&root).arg("."))?;
    output(Command::new("docker").args(["import", "--change", "CMD [\"bash\"]"]).arg(&archive).arg(DEBIAN))?;
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
    remove(&root)
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Prints what was built; one that is heavier than it may be is an error.
fn report(options: &Options) -> anyhow::Result<()> {
    println!("image                                       MB");
    let mut heavy = Vec::new();
    for service in SERVICES {
        let name = options.name(service.name);
        let limit = match service.image {
            Image::Scratch { most } => most,
            Image::Debian => None,
        };
        let inspected = output(Command::new("docker").args(["image", "inspect", "--format", "{{.Size}}", &name]));
        let Ok(bytes) = inspected else { continue };
        let size = bytes.trim().parse::<f64>().with_context(|| format!("size of {name}: {bytes:?}"))? / 1e6;
        println!("{name:<40} {size:>5.1}");
        if limit.is_some_and(|limit| size > limit) {
            heavy.push(name);
        }
    }
    ensure!(heavy.is_empty(), "over their limit: {}; what grew them must be found", heavy.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(words: &[&str]) -> anyhow::Result<String> {
        Options::read(words.iter().map(|word| (*word).to_owned())).map(|options| options.name("attacher"))
    }

    #[test]
    fn images_of_another_architecture_have_another_tag() {
        let other = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
        let ours = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        assert_eq!(named(&["--tag", "1.2.3"]).unwrap(), "stowage/attacher:1.2.3");
        assert_eq!(named(&["--tag", "1.2.3", "--arch", ours]).unwrap(), "stowage/attacher:1.2.3");
        assert_eq!(named(&["--tag", "1.2.3", "--arch", other]).unwrap(), format!("stowage/attacher:1.2.3-{other}"));
    }

    #[test]
    fn an_architecture_that_nobody_builds_for_is_refused_with_those_that_are() {
        assert!(named(&["--arch", "m68k"]).unwrap_err().to_string().contains("amd64 and arm64"));
    }
}
