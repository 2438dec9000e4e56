use nix::mount::MsFlags;

/// How a file system is mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Words as in `mount -o`; those the kernel knows as flags become flags, those that are for mount(8) alone are left out, the
    /// rest goes to the file system.
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
            |word: &str| is_for_program(word) || flag(word).is_some_and(|(flag, _)| per_mount.contains(flag));
        self.words.iter().map(String::as_str).find(|word| !is_for_mount(word))
    }

    /// The words that only the file system can know, if any: one of them is wrong when the kernel says that an argument is.
    pub fn for_file_system(&self) -> Option<String> {
        Some(self.split().1).filter(|data| !data.is_empty())
    }

    /// The kernel's flags, and what is left for the file system.
    pub(crate) fn split(&self) -> (MsFlags, String) {
        let mut flags = MsFlags::empty();
        let mut data = Vec::new();
        for word in &self.words {
            match flag(word) {
                Some((flag, true)) => flags.insert(flag),
                Some((flag, false)) => flags.remove(flag),
                None if is_for_program(word) => flags.insert(implied(word)),
                None => data.push(word.as_str()),
            }
        }
        (flags, data.join(","))
    }
}

/// Whether the word is for mount(8) and what calls it, and never reaches the kernel.
fn is_for_program(word: &str) -> bool {
    const WORDS: [&str; 13] = [
        "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "nousers", "owner", "noowner",
        "group", "nogroup",
    ];
    const BEGINNINGS: [&str; 4] = ["x-", "X-", "comment=", "user="];
    WORDS.contains(&word) || BEGINNINGS.iter().any(|beginning| word.starts_with(beginning))
}

/// What mount(8) makes of the words that let others mount, unless a later word says otherwise.
fn implied(word: &str) -> MsFlags {
    match word {
        "owner" | "group" => MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        _ if word == "user" || word == "users" || word.starts_with("user=") => {
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC
        }
        _ => MsFlags::empty(),
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
    fn words_for_the_mount_program_never_reach_the_kernel() {
        let words = "_netdev,nofail,noauto,auto,nouser,nousers,noowner,nogroup,x-systemd.automount,x-a=b,X-mount.mkdir,comment=a b";
        let all = MountOptions::new([words, "user_xattr", "discard"]);
        assert_eq!(all.split(), (MsFlags::empty(), "user_xattr,discard".to_owned()));
        assert_eq!(MountOptions::new([words]).for_file_system(), None);
        assert_eq!(MountOptions::new([words]).beyond_mount(), None);
        assert_eq!(all.for_file_system().as_deref(), Some("user_xattr,discard"));
        // They let others mount, and are careful about it.
        let careful = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        for (word, flags) in [
            ("user", careful | MsFlags::MS_NOEXEC),
            ("users,exec", careful),
            ("user=joe", careful | MsFlags::MS_NOEXEC),
            ("owner", careful),
            ("group,dev", MsFlags::MS_NOSUID),
        ] {
            assert_eq!(MountOptions::new([word]).split(), (flags, String::new()), "{word}");
        }
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
