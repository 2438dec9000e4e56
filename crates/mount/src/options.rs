use nix::mount::MsFlags;

/// How a file system is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Words as in `mount -o`; those the kernel knows as flags become flags, the rest goes to the file system.
    pub words: Vec<String>,
}

impl MountOptions {
    /// Options from the words of a mount flag list, each of which may itself be a comma-separated list.
    pub fn new<I: IntoIterator<Item = S>, S: AsRef<str>>(words: I) -> Self {
        let split = |word: S| word.as_ref().split(',').map(str::to_owned).collect::<Vec<_>>();
        MountOptions { words: words.into_iter().flat_map(split).filter(|word| !word.is_empty()).collect() }
    }

    /// Whether these options ask for a read-only mount; the last word counts.
    pub fn read_only(&self) -> bool {
        self.split().0.contains(MsFlags::MS_RDONLY)
    }

    /// The first word that is for the file system and not for one mount of it.
    pub fn beyond_mount(&self) -> Option<&str> {
        let times = MsFlags::MS_NOATIME | MsFlags::MS_NODIRATIME | MsFlags::MS_RELATIME | MsFlags::MS_STRICTATIME;
        let per_mount = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | times;
        let is_for_mount =
            |word: &str| word == "defaults" || flag(word).is_some_and(|(flag, _)| per_mount.contains(flag));
        self.words.iter().map(String::as_str).find(|word| !is_for_mount(word))
    }

    /// The kernel's flags, and what is left for the file system.
    pub(crate) fn split(&self) -> (MsFlags, String) {
        let mut flags = MsFlags::empty();
        let mut data = Vec::new();
        for word in &self.words {
            match flag(word) {
                Some((flag, true)) => flags.insert(flag),
                Some((flag, false)) => flags.remove(flag),
                None if word == "defaults" => {}
                None => data.push(word.as_str()),
            }
        }
        (flags, data.join(","))
    }
}

fn flag(word: &str) -> Option<(MsFlags, bool)> {
    Some(match word {
        "ro" => (MsFlags::MS_RDONLY, true),
        "rw" => (MsFlags::MS_RDONLY, false),
        "nosuid" => (MsFlags::MS_NOSUID, true),
        "suid" => (MsFlags::MS_NOSUID, false),
        "nodev" => (MsFlags::MS_NODEV, true),
        "dev" => (MsFlags::MS_NODEV, false),
        "noexec" => (MsFlags::MS_NOEXEC, true),
        "exec" => (MsFlags::MS_NOEXEC, false),
        "sync" => (MsFlags::MS_SYNCHRONOUS, true),
        "async" => (MsFlags::MS_SYNCHRONOUS, false),
        "dirsync" => (MsFlags::MS_DIRSYNC, true),
        "noatime" => (MsFlags::MS_NOATIME, true),
        "atime" => (MsFlags::MS_NOATIME, false),
        "nodiratime" => (MsFlags::MS_NODIRATIME, true),
        "diratime" => (MsFlags::MS_NODIRATIME, false),
        "relatime" => (MsFlags::MS_RELATIME, true),
        "norelatime" => (MsFlags::MS_RELATIME, false),
        "strictatime" => (MsFlags::MS_STRICTATIME, true),
        "lazytime" => (MsFlags::MS_LAZYTIME, true),
        "nolazytime" => (MsFlags::MS_LAZYTIME, false),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_the_kernel_knows_become_flags_and_the_rest_is_for_the_file_system() {
        let (flags, data) = MountOptions::new(["noatime,discard", "ro", "defaults", "data=ordered"]).split();
        assert_eq!(flags, MsFlags::MS_NOATIME | MsFlags::MS_RDONLY);
        assert_eq!(data, "discard,data=ordered");
    }

    #[test]
    fn what_is_for_one_mount_is_told_from_what_is_for_its_file_system() {
        assert_eq!(MountOptions::new(["ro,nosuid", "nodev", "noexec", "noatime", "defaults"]).beyond_mount(), None);
        for word in ["discard", "sync", "data=ordered", "lazytime"] {
            assert_eq!(MountOptions::new(["ro", word]).beyond_mount(), Some(word));
        }
    }

    #[test]
    fn the_last_of_two_contradicting_words_counts() {
        assert!(!MountOptions::new(["ro", "rw"]).read_only());
        assert!(MountOptions::new(["rw", "ro"]).read_only());
    }
}
