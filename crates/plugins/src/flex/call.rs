//! One call of a driver's program, and what it answers.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::sync::MutexGuard;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::fault::Fault;
use crate::host::VolumeHost;

use super::Flex;

/// More than this is no answer.
const MOST_BYTES: u64 = 1 << 20;

/// The programs of this machine.
#[async_trait]
pub trait Programs: Send + Sync {
    /// Runs a program to its end and gives what it printed, whatever its exit code was; it is ended when its time is over.
    async fn run(&self, program: &Path, arguments: &[String], limit: Duration) -> std::io::Result<Vec<u8>>;
}

/// The programs of the machine this process runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalPrograms;

#[async_trait]
impl Programs for LocalPrograms {
    async fn run(&self, program: &Path, arguments: &[String], limit: Duration) -> std::io::Result<Vec<u8>> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let printed = child.stdout.take();
        let work = async {
            let mut said = Vec::new();
            if let Some(printed) = printed {
                printed.take(MOST_BYTES).read_to_end(&mut said).await?;
            }
            child.wait().await?;
            Ok(said)
        };
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
    }
}

/// What a driver can do; a driver that does not say is taken for one of the first, which could all of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// It attaches volumes.
    pub attach: bool,
    /// Its files may be given the container's label.
    #[serde(rename = "selinuxRelabel")]
    pub se_linux_relabel: bool,
    /// Its files may be given to the pod's group.
    #[serde(rename = "fsGroup")]
    pub fs_group: bool,
    /// Its volumes tell how full they are.
    #[serde(rename = "supportsMetrics")]
    pub supports_metrics: bool,
    /// Its file systems must be grown on the node.
    #[serde(rename = "requiresFSResize")]
    pub requires_fs_resize: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { attach: true, se_linux_relabel: true, fs_group: true, supports_metrics: false, requires_fs_resize: true }
    }
}

/// What a driver answered to a call that it can do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Answer {
    status: String,
    message: String,
    /// Where the device is.
    #[serde(rename = "device")]
    pub device: String,
    /// What it can do, in the answer to `init`.
    pub capabilities: Capabilities,
}

/// The answer in what a program printed; none if it cannot do that.
pub(super) fn read(call: &str, printed: &[u8]) -> Result<Option<Answer>, String> {
    let answer: Answer = serde_json::from_slice(printed).map_err(|error| {
        let text = String::from_utf8_lossy(&printed[..printed.len().min(200)]).into_owned();
        format!("{call}: the driver's answer {text:?} is not the JSON of a FlexVolume driver: {error}")
    })?;
    match answer.status.as_str() {
        "Success" => Ok(Some(answer)),
        "Not supported" => Ok(None),
        status => Err(format!("{call}: {status}: {}", answer.message)),
    }
}

impl Flex {
    /// Calls the driver; none if it cannot do that, and the usual way is to be taken. What it cannot do it is asked once.
    pub(super) async fn call(&self, host: &VolumeHost, call: &str, words: &[&str]) -> Result<Option<Answer>, Fault> {
        if self.unsupported().contains(call) {
            return Ok(None);
        }
        let arguments: Vec<String> = [call].iter().chain(words).map(|word| (*word).to_owned()).collect();
        let limit = host.call_timeout;
        let printed = self.programs.run(&self.program, &arguments, limit).await.map_err(|error| {
            let why = match error.kind() {
                std::io::ErrorKind::TimedOut => format!("did not end within {} s", limit.as_secs()),
                _ => error.to_string(),
            };
            Fault::uncertain(format!("{call} of FlexVolume driver {} ({}): {why}", self.name, self.program.display()))
        })?;
        let answer = read(call, &printed)
            .map_err(|wrong| Fault::uncertain(format!("FlexVolume driver {}: {wrong}", self.name)))?;
        if answer.is_none() {
            self.unsupported().insert(call.to_owned());
        }
        Ok(answer)
    }

    fn unsupported(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.unsupported.lock().expect("no code panics while holding the names of calls")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_success_a_refusal_or_not_supported_and_anything_else_is_quoted() {
        let done = read("attach", br#"{"status":"Success","device":"/dev/x"}"#).unwrap().unwrap();
        assert_eq!(done.device, "/dev/x");
        assert_eq!(read("attach", br#"{"status":"Not supported"}"#), Ok(None));
        let failed = read("mount", br#"{"status":"Failure","message":"no disk"}"#).unwrap_err();
        assert!(failed.contains("mount") && failed.contains("no disk"), "{failed}");
        assert!(read("mount", b"Segmentation fault").unwrap_err().contains("Segmentation"));
    }

    #[test]
    fn what_a_driver_does_not_say_it_can_do_has_the_defaults() {
        let answer = read("init", br#"{"status":"Success","capabilities":{"attach":false}}"#).unwrap().unwrap();
        assert_eq!(answer.capabilities, Capabilities { attach: false, ..Capabilities::default() });
        let old = read("init", br#"{"status":"Success"}"#).unwrap().unwrap();
        assert!(old.capabilities.attach && !old.capabilities.supports_metrics);
    }
}
