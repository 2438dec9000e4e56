//! Finds images among the layouts of this machine, and unpacks them once.

use std::path::{Path, PathBuf};

use stowage_mount::{Digest, Host, OciLayout};

use crate::fault::Fault;
use crate::host::VolumeHost;

use super::manifest::{self, Descriptor};
use super::reference::Reference;

/// The images of one node.
pub struct Images<'a> {
    pub host: &'a VolumeHost,
    pub devices: &'a dyn Host,
    /// Where layouts are.
    pub dir: PathBuf,
    /// Where they are unpacked to, by the digest of their manifest.
    pub store: PathBuf,
}

/// A manifest that was read and is what its digest says.
pub struct Chosen {
    digest: Digest,
    document: Vec<u8>,
}

/// What a reference stood for.
pub struct Note {
    pub digest: Digest,
    /// Missing in notes of earlier versions.
    pub reference: Option<Reference>,
}

impl Note {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let digest = words.next()?.parse().ok()?;
        Some(Self { digest, reference: words.next().and_then(|reference| reference.parse().ok()) })
    }
}

impl Images<'_> {
    pub fn unpacked(&self, digest: &Digest) -> PathBuf {
        self.store.join("unpacked").join(digest.hex())
    }

    /// A note of what a reference stood for when it was last looked for. Its name is as long as a name may be.
    fn note(&self, reference: &Reference) -> PathBuf {
        self.store.join("references").join(Digest::of(reference.to_string().as_bytes()).hex())
    }

    /// The image that a reference stood for, if it is still unpacked.
    pub async fn known(&self, reference: &Reference) -> Result<Option<Digest>, Fault> {
        let failed = || Fault::before("look for an image that was unpacked before");
        let Some(Note { digest, .. }) = self.read_note(&self.note(reference)).await? else { return Ok(None) };
        let there = self.host.mounter.stat(&self.unpacked(&digest)).await.map_err(failed())?;
        Ok(there.map(|_| digest))
    }

    /// A note; `None` if there is none that can be read.
    pub async fn read_note(&self, path: &Path) -> Result<Option<Note>, Fault> {
        let read = self.host.mounter.read_file(path).await;
        let text = read.map_err(Fault::before("look for an image that was unpacked before"))?;
        Ok(text.and_then(|text| Note::parse(&String::from_utf8_lossy(&text))))
    }

    /// Looks for the image and unpacks it unless it is.
    pub async fn bring(&self, reference: &Reference) -> Result<Digest, Fault> {
        let (layout, chosen) = self.find(reference).await?;
        let place = layout.path().display().to_string();
        let layers = manifest::layers(&chosen.document)
            .map_err(|wrong| Fault::transient(format!("image {reference} in {place}: {wrong}")))?;
        let target = self.unpacked(&chosen.digest);
        for dir in [self.store.join("unpacked"), self.store.join("references")] {
            self.host.mounter.create_dir(&dir).await.map_err(Fault::before("make the store of images"))?;
        }
        let unpacked = self.devices.unpack_layers(&layout, &layers, &target).await;
        unpacked.map_err(Fault::before(&format!("unpack image {reference}")))?;
        let note = format!("{} {reference}", chosen.digest);
        let written = self.host.mounter.write_file(&self.note(reference), note.as_bytes()).await;
        written.map_err(Fault::before("note which image was unpacked"))?;
        Ok(chosen.digest)
    }

    async fn find(&self, reference: &Reference) -> Result<(OciLayout, Chosen), Fault> {
        let mut other_names: Vec<String> = Vec::new();
        let found = self.look(reference, &mut other_names).await?;
        found.ok_or_else(|| self.would_be_pulled(reference, &other_names))
    }

    /// The same; `None` if no layout has it, and what they have instead.
    pub async fn look(
        &self,
        reference: &Reference,
        other_names: &mut Vec<String>,
    ) -> Result<Option<(OciLayout, Chosen)>, Fault> {
        for place in reference.places() {
            let path = self.dir.join(place);
            let opened = self.devices.oci_layout(&path).await;
            let Some(layout) = opened.map_err(Fault::before("look for the image"))? else { continue };
            let told = |wrong: String| Fault::transient(format!("image {reference} in {}: {wrong}", path.display()));
            let Some(document) = self.document(&layout, Path::new("index.json")).await? else {
                // A directory of layouts whose names go on, as of a registry or a team.
                continue;
            };
            let index = manifest::index(&document).map_err(told)?;
            if let Some(found) = self.choose(&layout, &index, reference).await? {
                let chosen = self.manifest(&layout, found).await?;
                return Ok(Some((layout, chosen)));
            }
            other_names.extend(index.names().into_iter().map(str::to_owned));
        }
        Ok(None)
    }

    /// The descriptor that a reference means; a digest may also be that of an image inside a list.
    async fn choose(
        &self,
        layout: &OciLayout,
        index: &manifest::Index,
        reference: &Reference,
    ) -> Result<Option<Descriptor>, Fault> {
        if let Some(found) = index.named(reference) {
            return Ok(Some(found.clone()));
        }
        let Some(digest) = &reference.digest else { return Ok(None) };
        for list in index.lists() {
            let inner = self.blob(layout, list).await?;
            let inner = manifest::index(&inner.document).map_err(Fault::transient)?;
            if let Some(found) = inner.exactly(digest) {
                return Ok(Some(found.clone()));
            }
        }
        Ok(None)
    }

    async fn manifest(&self, layout: &OciLayout, found: Descriptor) -> Result<Chosen, Fault> {
        let chosen = self.blob(layout, &found).await?;
        if !found.is_index() {
            return Ok(chosen);
        }
        let told = |wrong: String| Fault::transient(format!("image layout {}: {wrong}", layout.path().display()));
        let list = manifest::index(&chosen.document).map_err(told)?;
        let ours = list.for_this_machine().map_err(told)?;
        match ours.is_index() {
            // One list in another is what tools write; more is nobody's.
            true => Err(told("it is a list of lists of lists of images".to_owned())),
            false => self.blob(layout, ours).await,
        }
    }

    async fn blob(&self, layout: &OciLayout, descriptor: &Descriptor) -> Result<Chosen, Fault> {
        let told = |wrong: String| Fault::transient(format!("image layout {}: {wrong}", layout.path().display()));
        let digest = descriptor.digest().map_err(told)?;
        let Some(document) = self.document(layout, &digest.blob()).await? else {
            return Err(told(format!("{digest} is named in it and not there; copy the image anew")));
        };
        match digest.is_of(&document) {
            true => Ok(Chosen { digest, document }),
            false => Err(told(format!("the contents of {digest} are not what it says; copy the image anew"))),
        }
    }

    async fn document(&self, layout: &OciLayout, way: &Path) -> Result<Option<Vec<u8>>, Fault> {
        self.devices.read_document(layout, way).await.map_err(Fault::before("read the image"))
    }

    fn would_be_pulled(&self, reference: &Reference, other_names: &[String]) -> Fault {
        let (dir, name) = (self.dir.display(), &reference.repository);
        let there = match other_names {
            [] => String::new(),
            names => format!(" (there it has only: {})", names.join(", ")),
        };
        Fault::transient(format!(
            "image {reference} would have to be pulled, and this node pulls nothing{there}; put its OCI layout at \
             {dir}/{name} or {dir}/{name}.tar, as in: skopeo copy docker://{reference} oci-archive:{dir}/{name}.tar:{}",
            reference.tag()
        ))
    }
}
