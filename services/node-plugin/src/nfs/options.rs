//! The original's flags, under its names and with its defaults.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use stowage_csi::Endpoint;
use stowage_csi::server::SocketMode;

use super::handle::OnDelete;
use crate::args::Mode;

/// The name clusters know the original by.
pub const DRIVER_NAME: &str = "nfs.csi.k8s.io";
/// What the original takes for a number of minutes that is none.
const STATS_MINUTES: u64 = 10;

/// Flags of --driver=nfs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "With --driver=nfs")]
pub struct Flags {
    /// Permission bits that the root of a volume gets, octal if it begins with 0; 0 leaves them as they are
    #[arg(long, value_name = "MODE", default_value = "0", value_parser = parse_mode)]
    mount_permissions: u32,
    /// Directory in which shares are mounted for the length of a call
    #[arg(long, value_name = "PATH", default_value = "/tmp", value_parser = crate::args::parse_root)]
    working_mount_dir: PathBuf,
    /// What becomes of the directory of a deleted volume whose class does not say: delete, retain or archive
    #[arg(long, value_name = "POLICY", default_value = "", value_parser = parse_policy)]
    default_ondelete_policy: OnDelete,
    /// How long the usage of a volume is remembered, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 10, allow_negative_numbers = true)]
    vol_stats_cache_expire_in_minutes: i64,
    /// Whether an archived directory makes room for the next of its name
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    remove_archived_volume_path: bool,
    /// Whether snapshots are packed by the program tar
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    use_tar_command_in_snapshot: bool,
    /// Whether snapshots are compressed
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_snapshot_compression: bool,
}

/// What the driver needs to know, checked.
#[derive(Debug, Clone)]
pub struct Options {
    pub driver_name: String,
    pub endpoint: Endpoint,
    pub socket_mode: SocketMode,
    pub node_id: String,
    pub mode: Mode,
    /// The directories below which callers may have volumes mounted; none allows all, as the original does.
    pub target_roots: Vec<PathBuf>,
    /// Permission bits of a volume's root; 0 leaves them as they are.
    pub mount_permissions: u32,
    pub working_mount_dir: PathBuf,
    pub on_delete: OnDelete,
    pub remember_stats: Duration,
    pub remove_archived: bool,
    pub pack_by_program: bool,
    pub compress: bool,
}

impl Flags {
    pub fn options(
        &self,
        driver_name: String,
        endpoint: Endpoint,
        socket_mode: SocketMode,
        node_id: String,
    ) -> Options {
        let minutes = u64::try_from(self.vol_stats_cache_expire_in_minutes).ok().filter(|minutes| *minutes > 0);
        Options {
            driver_name,
            endpoint,
            socket_mode,
            node_id,
            mode: Mode::All,
            target_roots: Vec::new(),
            mount_permissions: self.mount_permissions,
            working_mount_dir: self.working_mount_dir.clone(),
            on_delete: self.default_ondelete_policy,
            remember_stats: Duration::from_secs(minutes.unwrap_or(STATS_MINUTES) * 60),
            remove_archived: self.remove_archived_volume_path,
            pack_by_program: self.use_tar_command_in_snapshot,
            compress: self.enable_snapshot_compression,
        }
    }
}

/// As Go reads numbers: octal with a leading 0 or 0o, hexadecimal with 0x.
fn parse_mode(text: &str) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    let digits = |prefix: &str, base| lower.strip_prefix(prefix).map(|digits| u32::from_str_radix(digits, base));
    let read = digits("0x", 16).or_else(|| digits("0b", 2)).or_else(|| digits("0o", 8));
    let read = read.or_else(|| digits("0", 8).filter(|_| lower.len() > 1)).unwrap_or_else(|| lower.parse());
    let message = || format!("{text:?} must be permission bits such as 0777, at most 07777");
    read.ok().filter(|mode| *mode <= 0o7777).ok_or_else(message)
}

fn parse_policy(text: &str) -> Result<OnDelete, String> {
    match text {
        "" => Ok(OnDelete::Delete),
        text => OnDelete::parse(text).ok_or_else(|| format!("{text:?} must be delete, retain or archive")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_bits_are_read_as_go_reads_numbers() {
        for (text, mode) in [("0", 0), ("0777", 0o777), ("511", 0o777), ("0o2770", 0o2770), ("0x1ff", 0o777)] {
            assert_eq!(parse_mode(text), Ok(mode), "{text}");
        }
        for text in ["", "0888", "rwx", "-1", "07777777", "4096"] {
            assert!(parse_mode(text).unwrap_err().contains("0777"), "{text}");
        }
    }

    #[test]
    fn no_policy_is_the_originals_delete_and_the_case_does_not_matter() {
        assert_eq!(parse_policy(""), Ok(OnDelete::Delete));
        assert_eq!(parse_policy("Retain"), Ok(OnDelete::Retain));
        assert!(parse_policy("keep").unwrap_err().contains("retain"));
    }
}
