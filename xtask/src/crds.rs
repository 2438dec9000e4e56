//! `cargo xtask crds`: writes the CustomResourceDefinitions into `deploy/crds`.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

pub fn write() -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in stowage_crds::files() {
        let file = folder.join(&name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("deploy/crds/{name}");
    }
    Ok(())
}
