//! Writes the files of a volume at once.

use std::path::Path;

use crate::atomic_writer::{self, Error, FsGroup, Payload, Update, Written, directory_name};
use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::SetUp;

/// Lets the volume's directory hold exactly these files. Its user sees all old ones or all new ones.
pub async fn write(host: &VolumeHost, request: &SetUp<'_>, dir: &Path, payload: Payload) -> Result<(), Fault> {
    let group = request.fs_group.and_then(|group| u32::try_from(group).ok());
    let update = Update {
        payload,
        directory: directory_name(host.context.clock.now(), (host.context.random.fraction() * 1e9) as u32),
        group: group.map(|gid| FsGroup { gid, read_only: true }),
    };
    let name = &request.spec.name;
    match atomic_writer::write(&*host.mounter, dir, update).await {
        Ok(written) => {
            if written == Written::Switched && request.is_remount {
                tracing::debug!(volume = name, "the volume has new files");
            }
            Ok(())
        }
        Err(wrong @ (Error::Path { .. } | Error::Clash { .. })) => {
            Err(Fault::transient(format!("volume {name}: {wrong}")))
        }
        Err(error) => Err(Fault::uncertain(format!("volume {name}: {error}"))),
    }
}
