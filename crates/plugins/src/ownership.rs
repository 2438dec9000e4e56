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
    let walking = host.mounter.own(&walk, &progress);
    let owned = told_of(walking, |is_first| {
        host.tell(request.pod, takes_long(name, (!is_first).then(|| progress.done())));
    });
    let owned = owned.await.map_err(Fault::after("give the volume's files to the pod's group"))?;
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

/// Ends with the work; meanwhile people are told, and whether it is the first word.
async fn told_of<T>(work: impl Future<Output = T>, mut tell: impl FnMut(bool)) -> T {
    let mut work = pin!(work);
    let mut patience = FIRST_WORD;
    loop {
        match tokio::time::timeout(patience, &mut work).await {
            Ok(ended) => return ended,
            Err(_) => tell(patience == FIRST_WORD),
        }
        patience = NEXT_WORDS;
    }
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::{Instant, sleep};

    use super::*;

    /// A walk of so many seconds, a thousand files in each; what is said about it, and when.
    async fn said_of(seconds: u32) -> Vec<(u64, Note)> {
        let (begin, progress, said) = (Instant::now(), Progress::default(), RefCell::new(Vec::new()));
        let walk = async {
            for _ in 0..seconds {
                sleep(Duration::from_secs(1)).await;
                progress.add(1000);
            }
        };
        told_of(walk, |is_first| {
            let note = takes_long("v", (!is_first).then(|| progress.done()));
            said.borrow_mut().push((begin.elapsed().as_secs(), note));
        })
        .await;
        assert_eq!(begin.elapsed().as_secs(), u64::from(seconds), "the walk is not waited for any longer");
        said.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn row_150_a_walk_is_told_after_half_a_minute_and_then_each_minute_with_how_far_it_has_come() {
        assert_eq!(said_of(29).await, []);
        let said = said_of(160).await;
        let times: Vec<u64> = said.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [30, 90, 150]);
        assert!(said.iter().all(|(_, note)| note.reason == "VolumePermissionChangeInProgress"), "{said:?}");
        let counts: Vec<bool> = said.iter().map(|(_, note)| note.message.contains("processed")).collect();
        assert_eq!(counts, [false, true, true], "{said:?}");
        assert!(said[0].1.message.contains("OnRootMismatch"), "{said:?}");
        // What ends at the same moment may or may not be counted yet.
        let has = |at: usize, most: u64| {
            [most - 1, most].iter().any(|n| said[at].1.message.contains(&format!("processed {n}000 files")))
        };
        assert!(has(1, 90) && has(2, 150), "{said:?}");
    }
}
