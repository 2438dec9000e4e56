//! What mkfs and mount are told beside what the class says.

use stowage_mount::{FileSystem, MountOptions};

use crate::volume::Record;

/// On a thick ext4 nothing is left to the kernel to be zeroed later: that may make holes in the image.
pub fn mkfs_words(kind: FileSystem, record: &Record) -> Vec<String> {
    let at_once = ["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"].map(str::to_owned);
    let at_once = (kind == FileSystem::Ext4 && !record.thin).then_some(at_once);
    at_once.into_iter().flatten().chain(record.mkfs_options.iter().cloned()).collect()
}

/// Whoever writes a volume could put a device or a program of another user into it: no use is made of either unless the class
/// asks for it. The last word counts.
pub fn careful(flags: &[String]) -> MountOptions {
    MountOptions::new(["nosuid", "nodev"].into_iter().chain(flags.iter().map(String::as_str)))
}

/// Freed blocks of a thin volume go back to the pool unless the class says otherwise.
pub fn options(flags: &[String], record: &Record) -> MountOptions {
    let mut options = careful(flags);
    let said = options.words.iter().any(|word| matches!(word.split('=').next(), Some("discard" | "nodiscard")));
    if record.thin && !said {
        options.words.push("discard".into());
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::example;

    #[test]
    fn a_thick_ext4_is_zeroed_when_it_is_made_unless_its_class_says_otherwise() {
        let words = |kind, thin| {
            let mkfs_options = vec!["-E".to_owned(), "stride=4".to_owned()];
            mkfs_words(kind, &Record { thin, mkfs_options, ..example() }).join(" ")
        };
        let thick = words(FileSystem::Ext4, false);
        assert!(thick.contains("lazy_itable_init=0") && thick.ends_with("-E stride=4"), "{thick}");
        assert_eq!(words(FileSystem::Ext4, true), "-E stride=4");
        assert_eq!(words(FileSystem::Xfs, false), "-E stride=4");
    }

    #[test]
    fn a_thin_volume_discards_unless_it_is_told_how() {
        let words = |flags: &[&str], thin| {
            let flags: Vec<_> = flags.iter().map(|flag| flag.to_string()).collect();
            options(&flags, &Record { thin, ..example() }).words
        };
        assert_eq!(words(&["noatime"], true), ["nosuid", "nodev", "noatime", "discard"]);
        assert_eq!(words(&["noatime,nodiscard"], true), ["nosuid", "nodev", "noatime", "nodiscard"]);
        assert_eq!(words(&["discard=async"], true), ["nosuid", "nodev", "discard=async"]);
        assert_eq!(words(&[], false), ["nosuid", "nodev"]);
    }
}
