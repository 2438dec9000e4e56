//! Making volumes in use stand still while they are copied.
//!
//! A frozen file system stays frozen when its freezer dies. So a marker in the pool comes first and goes last: at the
//! next start whatever still has one is thawed.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;

use serde::{Deserialize, Serialize};
use stowage_mount::{Place, Target};

use crate::driver::Shared;
use crate::handle::Handle;
use crate::node::hold;
use crate::pool::{self, Pool};
use crate::staging::{Form, Staged, View};
use crate::volume::{RECORD_VERSION, Record};

/// Who uses a volume at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Use {
    Nobody,
    /// This node has its file system mounted here.
    Mounted(PathBuf),
    /// This node has its device and no file system of ours on it.
    Device(PathBuf),
    /// Another node has it, or may have it.
    Elsewhere {
        node: String,
    },
}

impl Use {
    pub async fn find(shared: &Shared, pool: &Pool, id: &Handle, record: &Record) -> Result<Self, pool::Error> {
        if let Some(staged) = Staged::find(shared, pool, id).await? {
            match (staged.staging.form, staged.device) {
                (Form::FileSystem, _) => return Ok(Use::Mounted(staged.staging.mount_point())),
                (_, Some(device)) => return Ok(Use::Device(device.path)),
                _ => {}
            }
        }
        let view = View::look(shared, pool, id).await.map_err(|source| pool.failed(source))?;
        // On the way to be staged or unstaged: nothing says that it is not written.
        if let Some(device) = view.ours.first() {
            return Ok(Use::Device(device.path.clone()));
        }
        if let Some(node) = elsewhere(record, shared.stages.then_some(&shared.node)) {
            return Ok(Use::Elsewhere { node: node.clone() });
        }
        match view.foreign.first() {
            Some(device) => Ok(Use::Elsewhere { node: format!("that has {}", device.path.display()) }),
            None => Ok(Use::Nobody),
        }
    }
}

/// The node that may have the volume where this process does not see it. A controller stages nothing itself, so a node of its
/// own name is another process, too.
fn elsewhere<'a>(record: &'a Record, here: Option<&String>) -> Option<&'a String> {
    record.attachments.iter().map(|attachment| &attachment.node).find(|node| Some(*node) != here)
}

/// A mounted volume that must stand still.
pub struct Subject<'a> {
    pub pool: &'a Pool,
    pub id: &'a Handle,
    pub mounted_at: PathBuf,
}

/// What is written down before a volume is frozen.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Frozen {
    version: u32,
    path: PathBuf,
}

/// Runs `cut` while none of the volumes can be written, and lets them go on whatever came of it.
pub async fn while_frozen<T, E: From<pool::Error>>(
    shared: &Shared,
    subjects: &[Subject<'_>],
    cut: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut reached = Vec::new();
    let result = async {
        for subject in subjects {
            // Else it could be taken for a leftover.
            shared.recover(subject.pool).await?;
            if subject.pool.is_still_frozen(subject.id) {
                thaw_leftover(shared, subject.pool, subject.id).await?;
                subject.pool.thawed(subject.id);
            }
            let marker = subject.pool.frozen(subject.id, &shared.node);
            let record = Frozen { version: RECORD_VERSION, path: subject.mounted_at.clone() };
            reached.push((subject, None));
            subject.pool.store_file(&marker, &record).await?;
            let (target, place) = find(shared, subject).await?;
            let frozen = shared.host.freeze(&target, &place).await;
            // One that was frozen by somebody else is not ours to thaw.
            let maybe_ours = frozen.as_ref().err().is_none_or(stowage_mount::Error::is_uncertain);
            reached.pop();
            reached.push((subject, maybe_ours.then_some((target, place))));
            frozen.map_err(|source| subject.pool.failed(source))?;
        }
        Ok(unless_panicked(cut).await)
    };
    let result: Result<_, E> = result.await;
    let mut thawed = Ok(());
    for (subject, frozen) in reached.into_iter().rev() {
        if let Err(error) = let_go(shared, subject, frozen).await {
            tracing::error!(volume = %subject.id, %error, "a volume may still be frozen; the next call tries again");
            subject.pool.still_frozen(subject.id);
            thawed = Err(error);
        }
    }
    let value = result?.unwrap_or_else(|panic| resume_unwind(panic))?;
    thawed?;
    Ok(value)
}

/// A panic would go past those who are to let the volumes go on.
async fn unless_panicked<T>(work: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut work = pin!(work);
    let poll =
        |context: &mut std::task::Context<'_>| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(panic)),
        };
    poll_fn(poll).await
}

/// The place of a volume, if it still is where it was staged.
async fn find(shared: &Shared, subject: &Subject<'_>) -> Result<(Target, Place), pool::Error> {
    let failed = |source| subject.pool.failed(source);
    let found = hold(shared, &subject.mounted_at).await.map_err(failed)?;
    let view = View::look(shared, subject.pool, subject.id).await.map_err(failed)?;
    match found {
        (Some(target), Some(place)) if view.our_mount_of(&place).is_some() => Ok((target, place)),
        _ => Err(failed(stowage_mount::Error::Moved { path: subject.mounted_at.clone() })),
    }
}

async fn let_go(shared: &Shared, subject: &Subject<'_>, frozen: Option<(Target, Place)>) -> Result<(), pool::Error> {
    if let Some((target, place)) = frozen {
        shared.host.thaw(&target, &place).await.map_err(|source| subject.pool.failed(source))?;
    }
    subject.pool.remove(&subject.pool.frozen(subject.id, &shared.node)).await
}

/// Thaws what an earlier run of this node's driver had frozen when it was killed. One that cannot be thawed does not keep
/// the others from it.
pub async fn thaw_leftovers(shared: &Shared, pool: &Pool) -> Result<(), pool::Error> {
    for key in pool.frozen_keys(&shared.node).await? {
        let Some(id) = Handle::new(pool.name(), &key, shared.place.as_deref()) else { continue };
        if let Err(error) = thaw_leftover(shared, pool, &id).await {
            tracing::error!(volume = %id, %error, "a volume may still be frozen; the next call tries again");
            pool.still_frozen(&id);
        }
    }
    Ok(())
}

/// Tries again what could not be thawed, unless somebody is at work on it.
pub async fn thaw_again(shared: &Shared, pool: &Pool) {
    for id in pool.all_still_frozen() {
        let Some(_guard) = shared.locks.try_lock(id.key()) else { continue };
        match thaw_leftover(shared, pool, &id).await {
            Ok(()) => pool.thawed(&id),
            Err(error) => tracing::debug!(volume = %id, %error, "still frozen"),
        }
    }
}

async fn thaw_leftover(shared: &Shared, pool: &Pool, id: &Handle) -> Result<(), pool::Error> {
    let marker = pool.frozen(id, &shared.node);
    // Damaged or not: the path in it is only used if the volume is mounted there.
    let path = pool.load_file::<Frozen>(&marker).await.ok().flatten().map(|frozen| frozen.path);
    let view = View::look(shared, pool, id).await.map_err(|source| pool.failed(source))?;
    if let Some(path) = path.filter(|path| view.our_mount(path).is_some()) {
        let (target, place) = find(shared, &Subject { pool, id, mounted_at: path.clone() }).await?;
        shared.host.thaw(&target, &place).await.map_err(|source| pool.failed(source))?;
        tracing::warn!(volume = %id, path = %path.display(), "thawed what an earlier run left frozen");
    }
    pool.remove(&marker).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{Attachment, example};

    #[test]
    fn a_controller_with_the_name_of_a_node_does_not_take_its_volumes_for_unused() {
        let (here, there) = ("a".to_owned(), "b".to_owned());
        let attachment =
            Attachment { node: here.clone(), token: "t".into(), read_only: false, several: None, unmarked: false };
        let record = Record { attachments: vec![attachment], ..example() };
        assert_eq!(elsewhere(&record, Some(&here)), None);
        assert_eq!(elsewhere(&record, Some(&there)), Some(&here));
        assert_eq!(elsewhere(&record, None), Some(&here));
    }

    #[tokio::test]
    async fn a_panic_is_caught_and_a_value_comes_through() {
        assert_eq!(unless_panicked(async { 1 }).await.unwrap(), 1);
        let fell = unless_panicked(async {
            tokio::task::yield_now().await;
            assert_eq!(1, 2, "it falls over");
        });
        assert!(fell.await.is_err());
    }
}
