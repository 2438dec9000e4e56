//! Gives a volume's files to the pod's group, and says so when that takes long.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use stowage_model::pod::FsGroupChangePolicy;
use stowage_mount::{ChangePolicy, OwnershipWalk, Progress};
use stowage_runtime::events::Note;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::SetUp;

const TAKES_LONG: &str = "VolumePermissionChangeInProgress";

/// When people are first told that their files are walked, and how often after that.
const FIRST_WORD: Duration = Duration::from_secs(30);
const NEXT_WORDS: Duration = Duration::from_secs(60);

pub(crate) async fn give(host: &VolumeHost, request: &SetUp<'_>, path: &Path, group: i64) -> Result<(), Fault> {
    let name = &request.spec.name;
    let Ok(gid) = u32::try_from(group) else {
        return Err(Fault::refused(format!("volume {name}: fsGroup {group} is no group")));
    };
    let policy = match request.fs_group_change_policy {
        FsGroupChangePolicy::OnRootMismatch => ChangePolicy::OnRootMismatch,
        FsGroupChangePolicy::Always | FsGroupChangePolicy::Unknown => ChangePolicy::Always,
    };
    let walk = OwnershipWalk { root: path.to_owned(), gid, read_only: request.spec.read_only, policy };
    let progress = Progress::default();
    let mut walking = pin!(host.mounter.own(&walk, &progress));
    let mut patience = FIRST_WORD;
    let owned = loop {
        match tokio::time::timeout(patience, &mut walking).await {
            Ok(ended) => break ended.map_err(Fault::after("give the volume's files to the pod's group"))?,
            Err(_) => host.tell(request.pod, takes_long(name, (patience == NEXT_WORDS).then(|| progress.done()))),
        }
        patience = NEXT_WORDS;
    };
    if let Some(first) = owned.first_refused {
        tracing::warn!(
            volume = name,
            refused = owned.refused,
            first,
            "some files could not be given to the pod's group"
        );
    }
    Ok(())
}

fn takes_long(name: &str, done: Option<u64>) -> Note {
    let so_far = done.map(|files| format!(", processed {files} files")).unwrap_or_default();
    Note::warning(
        TAKES_LONG,
        format!(
            "Setting volume ownership for {name} is taking longer than expected{so_far}; consider fsGroupChangePolicy \
             OnRootMismatch"
        ),
    )
}
