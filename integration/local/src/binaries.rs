//! Where the binaries under test are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

const BUILD: &str = "build it with `cargo build --workspace --bins`";

/// The binary of this name from the same build as the running test.
pub fn find(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe().context("cannot tell where this test runs from")?;
    // target/debug/deps/life-0123 -> target/debug
    let folder = test.parent().and_then(Path::parent).context("this test does not run from a target directory")?;
    let binary = folder.join(name);
    let found = binary.try_exists().with_context(|| format!("cannot look at {}", binary.display()))?;
    ensure!(found, "{} is missing; {BUILD}", binary.display());
    Ok(binary)
}

/// Says which of these binaries do not show what the sources say by now.
pub fn note_stale(names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        let binary = find(name)?;
        if let Some(source) = newer_source(&binary) {
            eprintln!("note: {} is older than {}; {BUILD}", binary.display(), source.display());
        }
    }
    Ok(())
}

/// A source file changed since the build, by the list that cargo leaves beside each binary.
fn newer_source(binary: &Path) -> Option<PathBuf> {
    let built = fs::metadata(binary).and_then(|info| info.modified()).ok()?;
    let list = fs::read_to_string(binary.with_extension("d")).ok()?;
    let (_, sources) = list.split_once(": ")?;
    sources.split_whitespace().map(PathBuf::from).find(|source| {
        let changed = fs::metadata(source).and_then(|info| info.modified());
        changed.is_ok_and(|changed| changed > built)
    })
}
