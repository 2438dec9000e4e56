//! Where this machine gets its Debian packages from: asked of apt, so that whoever set it up has the word.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::tools::output;

/// One line for each list of packages apt has been set up with.
const FORMAT: &str = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(LABEL)|$(SOURCESENTRY)";
/// What debootstrap can fetch from.
const SCHEMES: [&str; 4] = ["http://", "https://", "file:", "copy:"];

/// An archive of Debian packages, and the keys it is signed with where that was said.
#[derive(Debug, PartialEq, Eq)]
pub struct Mirror {
    pub uri: String,
    pub keyring: Option<PathBuf>,
}

/// The archive that has this release.
pub fn find(suite: &str) -> anyhow::Result<Mirror> {
    let words = ["indextargets", "--format", FORMAT, "Created-By: Packages"];
    let lists = output(Command::new("apt-get").args(words)).context("cannot ask apt for its archives")?;
    let archive = choose(&lists, suite).with_context(|| {
        format!(
            "apt is set up with no archive of Debian, so there is nowhere to get {suite} from; add one to \
             /etc/apt/sources.list.d, run apt-get update, and try again"
        )
    })?;
    let keyring = match &archive.entry {
        // Sources that cannot be read say nothing about keys; debootstrap then uses those of Debian.
        Some(entry) => signed_by(&fs::read_to_string(entry).unwrap_or_default(), archive.uri),
        None => None,
    };
    Ok(Mirror { uri: archive.uri.to_owned(), keyring })
}

#[derive(Debug, PartialEq, Eq)]
struct Archive<'a> {
    uri: &'a str,
    /// The file that names it.
    entry: Option<&'a Path>,
}

/// One that has the release, or else one of Debian's own for another: they have all releases side by side.
fn choose<'a>(lists: &'a str, suite: &str) -> Option<Archive<'a>> {
    let rows: Vec<Vec<_>> = lists.lines().map(|line| line.split('|').collect()).collect();
    let fits = |wanted: &dyn Fn(&str, &str, &str) -> bool| {
        rows.iter().find_map(|row| match row[..] {
            [uri, release, "main", origin, label, entry]
                if SCHEMES.iter().any(|scheme| uri.starts_with(scheme)) && wanted(release, origin, label) =>
            {
                let entry = entry.rsplit_once(':').map(|(file, _)| Path::new(file));
                Some(Archive { uri: uri.trim_end_matches('/'), entry })
            }
            _ => None,
        })
    };
    fits(&|release, _, _| release == suite)
        .or_else(|| fits(&|_, origin, label| origin == "Debian" && label == "Debian"))
}

/// The file of keys that a source names for this archive, in either of the two formats of sources.list(5).
fn signed_by(sources: &str, uri: &str) -> Option<PathBuf> {
    let names = |words: &str| words.split_whitespace().any(|word| word.trim_end_matches('/') == uri);
    let of_line = sources.lines().filter(|line| line.trim_start().starts_with("deb ")).find_map(|line| {
        let (options, rest) = line.split_once('[')?.1.split_once(']')?;
        let key = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="))?;
        names(rest).then_some(key)
    });
    let of_stanza = || {
        sources.split("\n\n").find_map(|stanza| {
            let field = |name: &str| {
                let lines = stanza.lines().filter_map(|line| line.split_once(':'));
                lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
            };
            field("URIs").filter(|uris| names(uris)).and_then(|_| field("Signed-By"))
        })
    };
    // It may also be a fingerprint, several files or a key itself, which debootstrap cannot be told.
    of_line.or_else(of_stanza).filter(|key| key.starts_with('/') && !key.contains([' ', ','])).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECURITY: &str =
        "http://a.example/debian-security/|bookworm-security|main|Debian|Debian-Security|/etc/apt/sources.list:2\n";
    const OTHERS: &str = "https://b.example/apt/|stable|main|Others|Others|/etc/apt/sources.list.d/b.list:1\n";

    fn chosen(lists: &str) -> Option<&str> {
        choose(lists, "bookworm").map(|archive| archive.uri)
    }

    #[test]
    fn the_archive_that_has_the_release_is_taken_and_neither_security_nor_others() {
        let ours = "http://c.example/debian/|bookworm|main|Ours|Ours|/etc/apt/sources.list.d/c.sources:1\n";
        let lists = format!("{SECURITY}{OTHERS}{ours}");
        let archive = choose(&lists, "bookworm").unwrap();
        assert_eq!(archive.uri, "http://c.example/debian");
        assert_eq!(archive.entry, Some(Path::new("/etc/apt/sources.list.d/c.sources")));
    }

    #[test]
    fn debians_own_archive_of_another_release_has_this_one_too() {
        let newer = "http://d.example/debian/|trixie|main|Debian|Debian|/etc/apt/sources.list:1\n";
        assert_eq!(chosen(&format!("{SECURITY}{OTHERS}{newer}")), Some("http://d.example/debian"));
    }

    #[test]
    fn where_there_is_no_archive_of_debian_none_is_made_up() {
        let ubuntu = "http://e.example/ubuntu/|noble|main|Ubuntu|Ubuntu|/etc/apt/sources.list.d/u.sources:1\n";
        let strange = "mirror+file:/etc/mirrors/|bookworm|main|Debian|Debian|/etc/apt/sources.list:1\n";
        for lists in ["", "nonsense\n||\n", SECURITY, OTHERS, ubuntu, strange] {
            assert_eq!(chosen(lists), None, "{lists}");
        }
    }

    #[test]
    fn keys_are_found_in_both_formats_and_only_those_of_the_archive() {
        let uri = "http://c.example/debian";
        let line = "# deb [signed-by=/no] http://c.example/debian x main\n\
                    deb [signed-by=/other.gpg] http://b.example/apt stable main\n\
                    deb [arch=amd64 signed-by=/line.gpg] http://c.example/debian/ bookworm main\n";
        let stanzas = "Types: deb\nURIs: http://b.example/apt\nSuites: stable\nSigned-By: /other.gpg\n\n\
                       Types: deb\n# a word\nURIs: http://c.example/debian\nSuites: bookworm\nSigned-By: /stanza.gpg\n";
        assert_eq!(signed_by(line, uri), Some("/line.gpg".into()));
        assert_eq!(signed_by(stanzas, uri), Some("/stanza.gpg".into()));
        let embedded = "URIs: http://c.example/debian\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n";
        for silent in ["", "deb http://c.example/debian bookworm main\n", embedded] {
            assert_eq!(signed_by(silent, uri), None, "{silent}");
        }
    }
}
