//! OCI image layouts: a directory with blobs, or a tar archive of one. Nothing in them is trusted: a blob is what its digest
//! says or it is refused, and no name leads out of the layout.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use nix::fcntl::OFlag;

use crate::archive::way_of;
use crate::digest::Digest;
use crate::files::{failed, unless_missing};
use crate::linux::blocking;
use crate::patience::Waiter;
use crate::share::beneath;
use crate::tar::{Entries, Kind};
use crate::{Counting, LinuxMounter, Result, layers};

/// Largest index or manifest that is read: those of real images have some kilobytes.
const MAX_DOCUMENT: u64 = 4 << 20;
/// A layout has three files besides its blobs; one archive of more files than this is something else.
const MAX_FILES: usize = 100_000;

/// An OCI image layout that is held open.
#[derive(Debug, Clone)]
pub struct OciLayout {
    path: PathBuf,
    held: Arc<Held>,
}

#[derive(Debug)]
enum Held {
    Directory(File),
    /// Where in the archive the contents of each file are, and how long they are.
    Archive {
        file: File,
        files: BTreeMap<PathBuf, (u64, u64)>,
    },
}

/// A layer of an image, as its manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// What its blob hashes to.
    pub digest: Digest,
    /// How long its blob is.
    pub size: u64,
    /// Whether the blob is compressed by gzip.
    pub is_gzip: bool,
}

/// The part of the port that unpacks images.
#[async_trait]
pub trait OciLayouts: Send + Sync {
    /// Holds the layout at this path, a directory or a tar archive; `None` if nothing is there.
    async fn oci_layout(&self, path: &Path) -> Result<Option<OciLayout>>;

    /// A document of a layout, such as its index or a manifest.
    async fn read_document(&self, layout: &OciLayout, way: &Path) -> Result<Option<Vec<u8>>>;

    /// Unpacks layers, the lowest first, to a directory of this path unless it is there. It is complete, and on the disk,
    /// when it appears. Ends when the answer is no longer waited for.
    async fn unpack_layers(&self, layout: &OciLayout, layers: &[Layer], target: &Path) -> Result<()>;
}

#[async_trait]
impl OciLayouts for LinuxMounter {
    async fn oci_layout(&self, path: &Path) -> Result<Option<OciLayout>> {
        let path = path.to_owned();
        blocking(move || open(&path).map_err(failed("open the image layout", &path))).await
    }

    async fn read_document(&self, layout: &OciLayout, way: &Path) -> Result<Option<Vec<u8>>> {
        let (layout, way) = (layout.clone(), way.to_owned());
        blocking(move || layout.document(&way).map_err(failed("read", &layout.path.join(&way)))).await
    }

    async fn unpack_layers(&self, layout: &OciLayout, layers: &[Layer], target: &Path) -> Result<()> {
        let (_waiter, waiting) = Waiter::new();
        let (layout, layers, target) = (layout.clone(), layers.to_vec(), target.to_owned());
        blocking(move || layers::unpack(&layout, &layers, &target, &waiting)).await
    }
}

#[async_trait]
impl OciLayouts for Counting {
    async fn oci_layout(&self, path: &Path) -> Result<Option<OciLayout>> {
        self.look()?.oci_layout(path).await
    }

    async fn read_document(&self, layout: &OciLayout, way: &Path) -> Result<Option<Vec<u8>>> {
        self.look()?.read_document(layout, way).await
    }

    async fn unpack_layers(&self, layout: &OciLayout, layers: &[Layer], target: &Path) -> Result<()> {
        self.change("unpack_layers", target, self.inner().unpack_layers(layout, layers, target)).await
    }
}

pub(crate) fn open(path: &Path) -> io::Result<Option<OciLayout>> {
    let Some(file) = unless_missing(File::open(path))? else { return Ok(None) };
    let about = file.metadata()?;
    let held = match (about.is_dir(), about.is_file()) {
        (true, _) => Held::Directory(file),
        (_, true) => {
            let files = contents(&file)?;
            Held::Archive { file, files }
        }
        _ => return Err(io::Error::new(ErrorKind::InvalidInput, "it is neither a directory nor a tar archive")),
    };
    Ok(Some(OciLayout { path: path.to_owned(), held: Arc::new(held) }))
}

/// Where the files of an archive are; the last of one name counts.
fn contents(file: &File) -> io::Result<BTreeMap<PathBuf, (u64, u64)>> {
    let mut entries = Entries::new(BufReader::new(file));
    let mut files = BTreeMap::new();
    while let Some(entry) = entries.next()? {
        if entry.kind == Kind::File {
            files.insert(way_of(&entry.name)?, (entries.position()?, entry.size));
            if files.len() > MAX_FILES {
                return Err(io::Error::other("it holds more files than an image layout has"));
            }
        }
        entries.skip()?;
    }
    Ok(files)
}

/// A part of an open file.
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl OciLayout {
    /// Where it is, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file of the layout and its length.
    pub(crate) fn read(&self, way: &Path) -> io::Result<Option<(Box<dyn Read + '_>, u64)>> {
        match &*self.held {
            Held::Directory(root) => {
                let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
                let Some(file) = unless_missing(beneath(root.as_fd(), way, flags))? else { return Ok(None) };
                let file = File::from(file);
                let about = file.metadata()?;
                match about.is_file() {
                    true => Ok(Some((Box::new(file), about.len()))),
                    false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
                }
            }
            Held::Archive { file, files } => {
                let found = files.get(way);
                Ok(found.map(|&(at, size)| {
                    let section: Box<dyn Read> = Box::new(Section { file, at, end: at.saturating_add(size) });
                    (section, size)
                }))
            }
        }
    }

    fn document(&self, way: &Path) -> io::Result<Option<Vec<u8>>> {
        let Some((source, _)) = self.read(way)? else { return Ok(None) };
        let mut document = Vec::new();
        source.take(MAX_DOCUMENT + 1).read_to_end(&mut document)?;
        match document.len() as u64 > MAX_DOCUMENT {
            true => Err(io::Error::other(format!("it is longer than {MAX_DOCUMENT} bytes"))),
            false => Ok(Some(document)),
        }
    }
}
