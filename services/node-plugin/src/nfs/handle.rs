//! What volumes and snapshots are called: `server#share#subDir#uuid#onDelete` and `server#share#name#name#source`, as the
//! original has them. An id may come from anybody.

use std::fmt;
use std::path::{Component, Path, PathBuf};

const SEPARATOR: char = '#';
/// Longer than any path that NFS takes.
const MAX_ID: usize = 8192;
/// How the names of what is not whole yet begin.
const UNFINISHED: &str = ".stowage-";

/// What becomes of a volume's directory when the volume is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDelete {
    Delete,
    Retain,
    Archive,
}

impl OnDelete {
    pub fn parse(text: &str) -> Option<Self> {
        let all = [OnDelete::Delete, OnDelete::Retain, OnDelete::Archive];
        all.into_iter().find(|policy| policy.to_string().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for OnDelete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OnDelete::Delete => "delete",
            OnDelete::Retain => "retain",
            OnDelete::Archive => "archive",
        })
    }
}

/// A server and one of its shares, as they are in ids: without slashes at the ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    pub server: String,
    pub share: String,
}

impl Export {
    /// Refuses what could be taken for something else by the mount helper or in an id.
    pub fn new(server: &str, share: &str) -> Option<Self> {
        let (server, share) = (server.trim_matches('/'), share.trim_matches('/'));
        let good = is_server(server) && is_share(share) && !share.contains(SEPARATOR);
        good.then(|| Export { server: server.into(), share: share.into() })
    }

    /// What is mounted.
    pub fn source(&self) -> String {
        format!("{}:/{}", address(&self.server), self.share)
    }
}

/// A name or address of a host.
pub fn is_server(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':' | '[' | ']' | '%');
    (1..=253).contains(&text.len()) && !text.starts_with('-') && text.chars().all(fits)
}

/// A path on a server: no `..`, whichever slash is used, and no characters that show otherwise than they are.
pub fn is_share(text: &str) -> bool {
    let climbs = text.replace('\\', "/").split('/').any(|part| part == "..");
    text.len() < 4096 && !climbs && !text.chars().any(char::is_control)
}

/// An address of six colons or so is put into brackets, as in every source.
pub fn address(server: &str) -> String {
    match server.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{server}]"),
        Err(_) => server.to_owned(),
    }
}

/// The way from the root of a share to one of its directories, of plain names; never to the root itself.
pub fn read_way(text: &str) -> Option<PathBuf> {
    let text = text.trim_matches('/');
    let way: PathBuf = Path::new(text).components().collect();
    let plain = |part: Component<'_>| matches!(part, Component::Normal(name) if name.len() <= 255);
    let good = is_share(text) && !text.contains(SEPARATOR) && !text.is_empty() && way.components().all(plain);
    good.then_some(way)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeId {
    pub export: Export,
    /// Below the share.
    pub way: PathBuf,
    /// The volume's name where its directory has another.
    pub uuid: String,
    /// What its class says; none leaves it to the driver's flag.
    pub on_delete: Option<OnDelete>,
}

impl VolumeId {
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_ID {
            return None;
        }
        let parts: Vec<_> = text.split(SEPARATOR).collect();
        let part = |at: usize| parts.get(at).copied().unwrap_or_default();
        let (server, share, way) = match parts.len() {
            // The first versions of the original had slashes.
            0..=2 => {
                let (server, rest) = text.split_once('/')?;
                let (share, way) = rest.rsplit_once('/')?;
                (server, share, way)
            }
            _ => (part(0), part(1), part(2)),
        };
        let (uuid, policy) = if parts.len() > 2 { (part(3), part(4)) } else { ("", "") };
        let on_delete = if policy.is_empty() { None } else { Some(OnDelete::parse(policy)?) };
        let way = read_way(way)?;
        let named = uuid.is_empty() || is_name(uuid);
        let export = Export::new(server, share).filter(|_| named)?;
        Some(VolumeId { export, way, uuid: uuid.into(), on_delete })
    }

    /// What the cluster calls the volume, or else its directory.
    pub fn name(&self) -> String {
        match self.uuid.is_empty() {
            true => self.way.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            false => self.uuid.clone(),
        }
    }

    /// By what calls for one volume are kept apart.
    pub fn key(&self) -> String {
        let Export { server, share } = &self.export;
        format!("{server}#{share}#{}#{}", self.way.display(), self.uuid)
    }

    /// Where it comes into being before it has its own name.
    pub fn unfinished(&self) -> PathBuf {
        self.way.with_file_name(format!("{UNFINISHED}{}", self.name()))
    }

    /// Whether no other volume can have the same directory.
    pub fn is_alone(&self) -> bool {
        let (way, edge) = (self.way.display().to_string(), |c: char| !c.is_ascii_alphanumeric());
        self.uuid.is_empty()
            || way.match_indices(&self.uuid).any(|(at, name)| {
                let before = at == 0 || way[..at].ends_with(edge);
                let after = at + name.len() == way.len() || way[at + name.len()..].starts_with(edge);
                before && after
            })
    }

    /// Where its directory goes when it is archived.
    pub fn archived(&self) -> PathBuf {
        PathBuf::from(format!("archived-{}", self.way.display()))
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Export { server, share } = &self.export;
        let on_delete = self.on_delete.map(|policy| policy.to_string()).unwrap_or_default();
        write!(f, "{server}#{share}#{}#{}#{on_delete}", self.way.display(), self.uuid)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotId {
    pub export: Export,
    pub name: String,
    /// The source volume's name, which the archive has.
    pub source: String,
}

impl SnapshotId {
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<_> = text.split(SEPARATOR).collect();
        let [server, share, name, _, source] = parts.as_slice() else { return None };
        let one = |text: &str| read_way(text).is_some_and(|way| way.components().count() == 1);
        let good = text.len() <= MAX_ID && is_name(name) && one(source);
        let export = Export::new(server, share).filter(|_| good)?;
        Some(SnapshotId { export, name: (*name).into(), source: (*source).into() })
    }

    pub fn directory(&self) -> PathBuf {
        PathBuf::from(&self.name)
    }

    pub fn unfinished(&self) -> PathBuf {
        PathBuf::from(format!("{UNFINISHED}{}", self.name))
    }

    /// What its archive is called.
    pub fn archive(&self, compressed: bool) -> String {
        format!("{}{}", self.source, if compressed { ".tar.gz" } else { ".tar" })
    }

    pub fn archives(&self) -> [String; 2] {
        [self.archive(true), self.archive(false)]
    }

    pub fn key(&self) -> String {
        format!("snapshot {self}")
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Export { server, share } = &self.export;
        write!(f, "{server}#{share}#{name}#{name}#{}", self.source, name = self.name)
    }
}

/// A name that can be one directory, and not one of those that are not whole yet.
pub fn is_name(text: &str) -> bool {
    let one = read_way(text).is_some_and(|way| way.components().count() == 1 && way == Path::new(text));
    one && text.len() + UNFINISHED.len() <= 255 && !text.starts_with(UNFINISHED)
}

#[cfg(test)]
#[path = "handle/tests.rs"]
mod tests;
