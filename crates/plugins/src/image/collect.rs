//! Removes images that nobody needs any more.
//!
//! One stays while a pod has it mounted, and while it is what a reference stands for whose layout is on this machine. Another
//! is put aside first and looked at once more: who mounted it before is seen then, and who wants it later does not find it and
//! unpacks it anew. A crash leaves it where it was, or aside, where it is found again.

use std::collections::BTreeSet;
use std::path::Path;

use tokio::sync::oneshot;

use stowage_mount::{DirEntry, Folder};

use crate::fault::Fault;
use crate::mounted;

use super::find::Images;

/// Ends the name of an image that is about to be removed.
const ASIDE: &str = ".gone";

impl Images<'_> {
    /// Removes what nobody needs; says of what could not be removed why, and goes on.
    pub async fn collect(&self) -> Result<(), Fault> {
        let needed = self.needed().await?;
        let mut names = self.names_in(&self.store.join("unpacked")).await?;
        // What was put aside before first: its place may be wanted.
        names.sort_by_key(|name| !name.ends_with(ASIDE));
        for name in names.iter().filter(|name| !name.starts_with('.') && !needed.contains(*name)) {
            if let Err(error) = self.remove_unless_used(name).await {
                tracing::warn!(image = name, %error, "an image that nobody needs stays for now");
            }
        }
        Ok(())
    }

    async fn remove_unless_used(&self, name: &str) -> Result<(), Fault> {
        let unpacked = self.store.join("unpacked");
        if self.is_used(&unpacked.join(name)).await? {
            return Ok(());
        }
        let aside = match name.strip_suffix(ASIDE) {
            Some(_) => name.to_owned(),
            None => {
                let aside = format!("{name}{ASIDE}");
                self.rename(&unpacked, name, &aside).await?;
                aside
            }
        };
        let place = unpacked.join(&aside);
        match self.is_used(&place).await? {
            // Somebody was faster. If it was unpacked again meanwhile, this one goes when it is let go.
            true => self.rename(&unpacked, &aside, name).await,
            false => self.host.mounter.remove_all(&place).await.map_err(Fault::after("remove an image")),
        }
    }

    async fn is_used(&self, place: &Path) -> Result<bool, Fault> {
        Ok(!mounted::references(self.host, place).await?.is_empty())
    }

    /// The images that references stand for; notes of such as have neither layout nor image any more go.
    async fn needed(&self) -> Result<BTreeSet<String>, Fault> {
        let failed = || Fault::before("look for images that are needed");
        let notes = self.store.join("references");
        let mut needed = BTreeSet::new();
        for name in self.names_in(&notes).await? {
            let path = notes.join(name);
            let Some(note) = self.read_note(&path).await? else { continue };
            // One that cannot be looked for now may be there.
            let has_layout = match &note.reference {
                Some(reference) => !matches!(self.look(reference, &mut Vec::new()).await, Ok(None)),
                None => true,
            };
            if has_layout {
                needed.insert(note.digest.hex().to_owned());
            } else if self.host.mounter.stat(&self.unpacked(&note.digest)).await.map_err(failed())?.is_none() {
                self.host.mounter.remove_file(&path).await.map_err(failed())?;
            }
        }
        Ok(needed)
    }

    async fn names_in(&self, directory: &Path) -> Result<Vec<String>, Fault> {
        let entries = self.host.mounter.list_dir(directory).await.map_err(Fault::before("list the store of images"))?;
        let name = |entry: DirEntry| entry.name.into_string().ok();
        Ok(entries.unwrap_or_default().into_iter().filter_map(name).collect())
    }

    async fn rename(&self, directory: &Path, from: &str, to: &str) -> Result<(), Fault> {
        let (answer, answered) = oneshot::channel();
        let (from, to) = (from.to_owned(), to.to_owned());
        let work = move |folder: &dyn Folder| _ = answer.send(folder.rename(&from, &to));
        let failed = || Fault::after("put an image aside");
        self.host.mounter.in_folder(directory, Box::new(work)).await.map_err(failed())?;
        match answered.await {
            Ok(renamed) => renamed.map_err(failed()),
            Err(_) => Err(Fault::uncertain("an image could not be put aside".to_owned())),
        }
    }
}
