//! What is tried, one after the other, until an export is mounted: each address of its server, with each version.

use std::io;
use std::net::IpAddr;

use futures::future::BoxFuture;

use stowage_mount::MountOptions;

use crate::format::wrong_option;

const PORT: u16 = 2049;

/// The versions that are tried where no option names one, as mount.nfs does.
const VERSIONS: [&str; 4] = ["vers=4.2", "vers=4.1", "vers=4.0", "vers=3"];

/// The addresses of a server: the kernel wants one, and names are resolved by whoever asks it to mount.
pub(super) async fn addresses(server: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = server.parse() {
        return Ok(vec![address]);
    }
    let mut found: Vec<IpAddr> = Vec::new();
    for socket in tokio::net::lookup_host((server, PORT)).await? {
        if !found.contains(&socket.ip()) {
            found.push(socket.ip());
        }
    }
    match found.is_empty() {
        true => Err(io::Error::other("the answer is empty")),
        false => Ok(found),
    }
}

/// How an export is to be mounted.
pub(super) struct Attempts<'a> {
    /// Words as in `mount -o`.
    pub words: Vec<&'a str>,
}

impl Attempts<'_> {
    /// Mounts by `call`, which gets the options of one attempt; says of each address why it could not be.
    pub async fn mount<'m>(
        &self,
        addresses: &[IpAddr],
        call: impl Fn(MountOptions) -> BoxFuture<'m, stowage_mount::Result<()>>,
    ) -> Result<(), String> {
        let mut failures: Vec<(IpAddr, stowage_mount::Error)> = Vec::new();
        for address in addresses {
            let Err(error) = self.mount_from(*address, &call).await else { return Ok(()) };
            // No other address gives this kernel what it lacks.
            let goes_on = error.os_error() != Some(nix::libc::ENODEV);
            failures.push((*address, error));
            if !goes_on {
                break;
            }
        }
        Err(self.told(&failures))
    }

    async fn mount_from<'m>(
        &self,
        address: IpAddr,
        call: &impl Fn(MountOptions) -> BoxFuture<'m, stowage_mount::Result<()>>,
    ) -> stowage_mount::Result<()> {
        let versions = self.versions();
        let (last, others) = versions.split_last().expect("there is at least one attempt");
        for version in others {
            match call(self.options(address, *version)).await {
                Err(error) if is_of_version(&error) => {}
                other => return other,
            }
        }
        call(self.options(address, *last)).await
    }

    /// The words of one attempt.
    fn options(&self, address: IpAddr, version: Option<&str>) -> MountOptions {
        let mut options = MountOptions::new(self.words.iter().copied().chain(version));
        // Before version 4, locks need a daemon of this machine that containers do not bring along.
        let is_three = options.words.iter().any(|word| ["vers=3", "nfsvers=3", "v3"].contains(&word.as_str()));
        if is_three && !options.words.iter().any(|word| word == "lock" || word == "nolock") {
            options.words.push("nolock".to_owned());
        }
        options.words.push(format!("addr={address}"));
        options
    }

    fn versions(&self) -> Vec<Option<&'static str>> {
        let is_version = |word: &String| ["vers=", "nfsvers=", "v4", "v3"].iter().any(|start| word.starts_with(start));
        match MountOptions::new(&self.words).words.iter().any(is_version) {
            true => vec![None],
            false => VERSIONS.into_iter().map(Some).collect(),
        }
    }

    fn told(&self, failures: &[(IpAddr, stowage_mount::Error)]) -> String {
        let said = match failures {
            [(_, only)] => only.to_string(),
            several => {
                let each = several.iter().map(|(address, error)| format!("from {address}: {error}"));
                each.collect::<Vec<_>>().join("; ")
            }
        };
        let Some((_, last)) = failures.last() else { return "the server has no address".to_owned() };
        let hint = match last.os_error() {
            Some(nix::libc::ENODEV) => {
                "; this kernel has no nfs: load it (modprobe nfs), or install the kernel's modules".to_owned()
            }
            Some(nix::libc::EACCES | nix::libc::EPERM) => {
                "; check that the server exports the path to this node".to_owned()
            }
            Some(nix::libc::ENOENT) => "; check nfs.path on the server".to_owned(),
            _ => wrong_option(last, &MountOptions::new(&self.words)),
        };
        format!("{said}{hint}")
    }
}

fn is_of_version(error: &stowage_mount::Error) -> bool {
    [nix::libc::EPROTONOSUPPORT, nix::libc::EINVAL].map(Some).contains(&error.os_error())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::FutureExt;

    use super::*;

    const FIRST: &str = "fd00::1";
    const SECOND: &str = "192.0.2.1";

    /// What is tried, by a server that answers so.
    async fn played(words: &[&str], answer: fn(&[String]) -> i32) -> (Vec<Vec<String>>, Result<(), String>) {
        let tried = Mutex::new(Vec::new());
        let addresses = [FIRST, SECOND].map(|address| address.parse().unwrap());
        let call = |options: MountOptions| {
            let code = answer(&options.words);
            tried.lock().unwrap().push(options.words);
            let failed = || stowage_mount::Error::Mount {
                from: "server:/x".into(),
                target: "/t".into(),
                fs_type: "nfs".into(),
                source: io::Error::from_raw_os_error(code),
            };
            let answer = if code == 0 { Ok(()) } else { Err(failed()) };
            async move { answer }.boxed()
        };
        let ended = Attempts { words: words.to_vec() }.mount(&addresses, call).await;
        (tried.into_inner().unwrap(), ended)
    }

    fn has(words: &[String], word: &str) -> bool {
        words.iter().any(|other| other == word)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_is_not_the_last() {
        let silent_first = |words: &[String]| match has(words, "addr=fd00::1") {
            true => nix::libc::EHOSTUNREACH,
            false => 0,
        };
        let (tried, ended) = played(&["hard,timeo=5", "ro"], silent_first).await;
        assert_eq!(ended, Ok(()));
        let of = |address: &str| ["hard", "timeo=5", "ro", "vers=4.2", address].map(str::to_owned).to_vec();
        assert_eq!(tried, [of("addr=fd00::1"), of("addr=192.0.2.1")]);
    }

    #[tokio::test]
    async fn of_addresses_that_all_fail_each_is_told_with_its_failure() {
        let both = |words: &[String]| match has(words, "addr=fd00::1") {
            true => nix::libc::EHOSTUNREACH,
            false => nix::libc::EACCES,
        };
        let message = played(&[], both).await.1.unwrap_err();
        let (first, second) = (message.find("from fd00::1: ").unwrap(), message.find("from 192.0.2.1: ").unwrap());
        let (unreachable, denied) = (message.find("os error 113").unwrap(), message.find("os error 13").unwrap());
        assert!(first < unreachable && unreachable < second && second < denied, "{message}");
        assert!(message.ends_with("check that the server exports the path to this node"), "{message}");
    }

    #[tokio::test]
    async fn a_kernel_without_nfs_is_asked_once_and_told_what_to_install() {
        let (tried, ended) = played(&[], |_| nix::libc::ENODEV).await;
        assert_eq!(tried.len(), 1);
        assert!(ended.unwrap_err().contains("modprobe nfs"));
    }

    #[tokio::test]
    async fn older_versions_are_tried_down_to_three_which_mounts_without_locks() {
        let only_three = |words: &[String]| if has(words, "vers=3") { 0 } else { nix::libc::EPROTONOSUPPORT };
        let (tried, ended) = played(&[], only_three).await;
        assert_eq!(ended, Ok(()));
        let versions: Vec<&str> = tried.iter().map(|words| words[0].as_str()).collect();
        assert_eq!(versions, VERSIONS);
        assert_eq!(tried[3], ["vers=3", "nolock", "addr=fd00::1"]);
    }

    #[tokio::test]
    async fn a_version_that_is_asked_for_is_the_only_one_that_is_tried_and_a_wrong_word_is_named() {
        let (tried, ended) = played(&["nfsvers=4.1", "nofail,wrong=1"], |_| nix::libc::EINVAL).await;
        assert_eq!(tried.len(), 2, "one for each address");
        assert!(ended.unwrap_err().ends_with("for the file system: nfsvers=4.1,wrong=1"));
        let (tried, _) = played(&["v3"], |_| 0).await;
        assert_eq!(tried, [["v3", "nolock", "addr=fd00::1"]]);
    }
}
