//! Carries out one act on a group or its members.

use futures::future::join_all;
use serde_json::{Value, json};

use stowage_model::object::ObjectRef;
use stowage_runtime::api::{Deletion, Part, Patch, Target};
use stowage_runtime::engine::Error;
use stowage_runtime::events::Note;

use super::{DELETE_MEMBER, GROUP_BIND, GROUP_CONTENT, GROUP_DELETE, GROUP_FINALIZER, GROUP_STATUS};
use crate::controller::Controller;
use crate::decide::{GroupAction, Missing};
use crate::watches::Key;

impl Controller {
    pub(super) async fn carry_out_group(&self, key: &Key, action: GroupAction) -> Result<(), Error> {
        let (api, caches) = (&self.context.api, &self.caches);
        match action {
            GroupAction::Prepare { target, operations } | GroupAction::Release { target, operations } => {
                let written = api.patch(&caches.groups, &target, Part::Main, Patch::Json(operations)).await;
                written.map(drop).map_err(Error::write(GROUP_FINALIZER))
            }
            GroupAction::CreateContent { group, body, is_fresh } => {
                self.create_group_content(&group, body, is_fresh).await
            }
            GroupAction::Bind { target, body } => {
                let written = api.patch(&caches.group_contents, &target, Part::Main, Patch::Merge(body)).await;
                written.map(drop).map_err(Error::write(GROUP_BIND))
            }
            GroupAction::WriteStatus { target, status, tell, about, finished } => {
                let body = Patch::Merge(json!({ "status": status }));
                let written = api.patch(&caches.groups, &target, Part::Status, body).await;
                written.map_err(Error::write(GROUP_STATUS))?;
                let now = self.context.clock.now();
                finished.into_iter().for_each(|operation| self.metrics.finish(key, operation, now));
                tell.into_iter().for_each(|note| self.tell(key, &about, note));
                Ok(())
            }
            GroupAction::MakeMembers { group, missing } => {
                self.confirm_wanted(&group, false).await?;
                let made = join_all(missing.into_iter().map(|missing| self.make_member(missing))).await;
                made.into_iter().collect()
            }
            GroupAction::WriteMemberStatus { target, status } => {
                let body = Patch::Merge(json!({ "status": status }));
                let written = api.patch(&caches.contents, &target, Part::Status, body).await;
                written.map(drop).map_err(Error::write("write the status of a member's VolumeSnapshotContent"))
            }
            GroupAction::Mark { target, body } => {
                let written = api.patch(&caches.group_contents, &target, Part::Main, Patch::Merge(body)).await;
                written.map(drop).map_err(Error::write(GROUP_DELETE))
            }
            GroupAction::Guard { target, operations } => {
                let written = api.patch(&caches.group_contents, &target, Part::Main, Patch::Json(operations)).await;
                written.map(drop).map_err(Error::write("write the VolumeGroupSnapshotContent's finalizer"))
            }
            GroupAction::DeleteContent { target, group } => {
                self.confirm_deletion(&group).await?;
                let deleted = api.delete(&caches.group_contents, &target, Deletion::default()).await;
                deleted.map_err(Error::write(GROUP_DELETE))
            }
            GroupAction::ConfirmContentGone { content } => {
                let read = api.refresh(&caches.group_contents, &content).await;
                let found = read.map_err(Error::read("the VolumeGroupSnapshotContent"))?;
                if found.is_some() { Err(Error::Stale("the VolumeGroupSnapshotContent")) } else { Ok(()) }
            }
            GroupAction::DeleteMember { target } => self.delete_member(&target).await,
        }
    }

    async fn create_group_content(&self, group: &ObjectRef, body: Value, is_fresh: bool) -> Result<(), Error> {
        self.confirm_wanted(group, is_fresh).await?;
        let created = self.context.api.create(&self.caches.group_contents, body).await;
        let content = created.map_err(Error::write(GROUP_CONTENT))?;
        let message = format!("driver {:?} is asked to make the group snapshot", content.spec.driver);
        self.recorder.record(group, Note::normal("CreatingGroupSnapshot", message));
        Ok(())
    }

    async fn make_member(&self, missing: Missing) -> Result<(), Error> {
        let (api, caches) = (&self.context.api, &self.caches);
        match missing {
            Missing::Snapshot(body) => {
                let created = api.create(&caches.snapshots, body).await;
                created.map(drop).map_err(Error::write("create a member's VolumeSnapshot"))
            }
            Missing::Content(body) => {
                let created = api.create(&caches.contents, body).await;
                created.map(drop).map_err(Error::write("create a member's VolumeSnapshotContent"))
            }
        }
    }

    /// What is made for a group that is gone belongs to nobody.
    async fn confirm_wanted(&self, group: &ObjectRef, is_fresh: bool) -> Result<(), Error> {
        let wanted = if is_fresh {
            self.caches.groups.get(&group.key)
        } else {
            let read = self.context.api.refresh(&self.caches.groups, &group.key).await;
            read.map_err(Error::read("the VolumeGroupSnapshot"))?
        };
        if !wanted.is_some_and(|wanted| wanted.meta.uid == group.uid && !wanted.meta.is_deleting()) {
            return Err(Error::Stale("the VolumeGroupSnapshot"));
        }
        self.check_lease()
    }

    /// What is deleted with the content cannot be brought back.
    async fn confirm_deletion(&self, group: &ObjectRef) -> Result<(), Error> {
        let read = self.context.api.refresh(&self.caches.groups, &group.key).await;
        let fresh = read.map_err(Error::read("the VolumeGroupSnapshot"))?;
        if !fresh.is_some_and(|fresh| fresh.meta.uid == group.uid && fresh.meta.is_deleting()) {
            return Err(Error::Stale("the VolumeGroupSnapshot"));
        }
        self.check_lease()
    }

    async fn delete_member(&self, target: &Target) -> Result<(), Error> {
        let deleted = self.context.api.delete(&self.caches.snapshots, target, Deletion::default()).await;
        deleted.map_err(Error::write(DELETE_MEMBER))
    }
}
