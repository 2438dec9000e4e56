//! The mkfs options a storage class may set.
//!
//! mkfs runs as root, and some of its options read or write other files: only those that shape the new file system
//! are let through, each with one value, and no value can be a path.

use stowage_mount::FileSystem;

use super::Error;

/// Words a class may use at all; more is a mistake.
const MAX_WORDS: usize = 32;

/// An option with one value, and the names that must not occur in a comma-separated value.
struct Allowed {
    option: &'static str,
    forbidden: &'static [&'static str],
}

const fn plain(option: &'static str) -> Allowed {
    Allowed { option, forbidden: &[] }
}

const EXT4: &[Allowed] = &[
    plain("-b"),
    plain("-C"),
    Allowed { option: "-E", forbidden: &["offset", "mmp_update_interval", "test_fs"] },
    plain("-g"),
    plain("-G"),
    plain("-i"),
    plain("-I"),
    Allowed { option: "-J", forbidden: &["device", "location"] },
    plain("-m"),
    plain("-N"),
    Allowed { option: "-O", forbidden: &["journal_dev", "mmp"] },
    plain("-T"),
];
const XFS: &[Allowed] = &[
    plain("-b"),
    Allowed { option: "-d", forbidden: &["file", "name", "size"] },
    plain("-i"),
    Allowed { option: "-l", forbidden: &["logdev", "file", "name"] },
    plain("-m"),
    plain("-n"),
];
const BTRFS: &[Allowed] = &[plain("-O"), plain("-n"), plain("-d"), plain("-m"), plain("--csum")];

pub fn read(text: &str, kind: FileSystem) -> Result<Vec<String>, Error> {
    let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
    check(&words, kind)?;
    Ok(words)
}

/// Whether mkfs may be told these words, wherever they come from.
pub fn check(words: &[String], kind: FileSystem) -> Result<(), Error> {
    let allowed = match kind {
        FileSystem::Xfs => XFS,
        FileSystem::Btrfs => BTRFS,
        FileSystem::Ext2 | FileSystem::Ext3 | FileSystem::Ext4 => EXT4,
    };
    let refuse = |word: &str, reason| Err(Error::MkfsOption { word: word.into(), kind, reason });
    if let Some(word) = words.get(MAX_WORDS) {
        return refuse(word, "there are more than 32 words");
    }
    for pair in words.chunks(2) {
        let option = &pair[0];
        let Some(rule) = allowed.iter().find(|rule| rule.option == option) else {
            return refuse(option, "it is not one of the options that only shape the file system");
        };
        let Some(value) = pair.get(1) else { return refuse(option, "its value is missing") };
        if value.starts_with('-') || value.contains(['/', '\\', '\0']) || value.contains(char::is_whitespace) {
            return refuse(value, "a value must not be an option or a path");
        }
        let names = value.split(',').map(|part| part.split('=').next().unwrap_or_default().trim_start_matches('^'));
        if let Some(name) = names.into_iter().find(|name| rule.forbidden.contains(name)) {
            return refuse(name, "it would reach beyond the volume");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_that_shape_the_file_system_are_passed_on() {
        assert_eq!(read("-i 8192  -O ^has_journal,metadata_csum", FileSystem::Ext4).unwrap().len(), 4);
        assert_eq!(read("-m crc=1,reflink=0 -i size=1024", FileSystem::Xfs).unwrap().len(), 4);
        assert_eq!(read("--csum xxhash", FileSystem::Btrfs).unwrap(), ["--csum", "xxhash"]);
    }

    #[test]
    fn options_that_reach_other_files_are_refused_by_name() {
        for (text, kind, says) in [
            ("-d etc", FileSystem::Ext4, "\"-d\""),
            ("/dev/sda", FileSystem::Ext4, "\"/dev/sda\""),
            ("-i 8192 /dev/sda", FileSystem::Ext4, "\"/dev/sda\""),
            ("-E offset=4096", FileSystem::Ext4, "\"offset\""),
            ("-J device=UUID", FileSystem::Ext4, "\"device\""),
            ("-d file=1,name=x", FileSystem::Xfs, "\"file\""),
            ("-l logdev=sda", FileSystem::Xfs, "\"logdev\""),
            ("-p proto", FileSystem::Xfs, "\"-p\""),
            ("-r etc", FileSystem::Btrfs, "\"-r\""),
            ("-m", FileSystem::Ext4, "value is missing"),
            ("-m -F", FileSystem::Ext4, "\"-F\""),
        ] {
            let message = read(text, kind).unwrap_err().to_string();
            assert!(message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn words_that_no_class_could_have_said_are_refused_wherever_they_come_from() {
        let check =
            |words: &[&str]| check(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), FileSystem::Ext4);
        assert_eq!(check(&["-i", "8192"]), Ok(()));
        for words in
            [&["-d", "etc"][..], &["-i", "8192", "/dev/sda"], &["-E", "stride=4, offset=4096"], &["-m"], &["-m"; 34]]
        {
            assert!(check(words).is_err(), "{words:?}");
        }
    }

    proptest! {
        #[test]
        fn no_words_that_pass_hold_a_path_or_a_lone_value(text in "(-[a-zA-Z]|/?[a-z0-9=,^/]{1,6}| ){0,12}") {
            for kind in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
                if let Ok(words) = read(&text, kind) {
                    prop_assert!(words.iter().all(|word| !word.contains('/')));
                    prop_assert!(words.chunks(2).all(|pair| pair[0].starts_with('-') && !pair[1].starts_with('-')));
                }
            }
        }
    }
}
