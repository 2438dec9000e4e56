//! A device for one pod: the bound file, the lock and the link that keep it in place, as the kubelet has them.

use std::path::{Path, PathBuf};

use stowage_mount::Access;
use stowage_plugins::Fault;
use stowage_plugins::plugin::{BlockMapper, SetUp, TearDown};
use stowage_runtime::events::Note;

use crate::controller::Controller;

impl Controller {
    /// Binds the device into the directory that counts its users, locks it there, and links to it from the pod's. Says
    /// where the device itself is.
    pub(super) async fn map_device(
        &self,
        request: &SetUp<'_>,
        mapper: &dyn BlockMapper,
        plugin: &str,
        published: &Path,
    ) -> Result<PathBuf, Fault> {
        let (mounter, uid) = (&self.host.mounter, request.pod.meta.uid.as_str());
        // A driver may publish a link to the device.
        let device = mounter.canonical(published).await.map_err(Fault::after("find the device"))?;
        let device = device
            .ok_or_else(|| Fault::uncertain(format!("the driver published nothing at {}", published.display())))?;
        let users = mapper.global_map_path(&self.host, &request.spec.name);
        mounter.create_dir(&users).await.map_err(Fault::after("make the device's directory"))?;
        let bound = users.join(uid);
        // After a restart the device is bound already, and then what is there is no file.
        if !self.is_mounted(&bound).await? {
            mounter.make_file(&bound, 0o750).await.map_err(Fault::after("make the file for the device"))?;
            mounter.bind(&device, &bound, Access::ReadWrite).await.map_err(Fault::after("bind the device"))?;
        }
        mounter.lock_device(&bound).await.map_err(Fault::after("lock the device"))?;
        let link = self.host.layout.pod_device(uid, plugin, &request.spec.name);
        let parent = link.parent().unwrap_or(&link);
        mounter.create_dir(parent).await.map_err(Fault::after("make the pod's directory of devices"))?;
        mounter.symlink(&device, &link).await.map_err(Fault::after("link to the device"))?;
        let spec = request.spec;
        for (what, path) in [("globalMapPath", &users), ("volumeMapPath", &parent.to_owned())] {
            let message = format!("MapVolume.MapPodDevice succeeded for volume {spec} {what} {:?}", path.display());
            self.host.tell(request.pod, Note::normal("SuccessfulMountVolume", message));
        }
        Ok(device)
    }

    /// Undoes what [`Controller::map_device`] did; what is gone already is success.
    pub(super) async fn unmap_device(
        &self,
        request: &TearDown<'_>,
        mapper: &dyn BlockMapper,
        plugin: &str,
    ) -> Result<(), Fault> {
        let mounter = &self.host.mounter;
        let bound = mapper.global_map_path(&self.host, request.name).join(request.pod_uid);
        mounter.unlock_device(&bound).await.map_err(Fault::after("unlock the device"))?;
        let link = self.host.layout.pod_device(request.pod_uid, plugin, request.name);
        mounter.remove_file(&link).await.map_err(Fault::after("remove the link to the device"))?;
        if self.is_mounted(&bound).await? {
            self.unmount(&bound).await?;
        }
        mounter.remove_file(&bound).await.map_err(Fault::after("remove the file of the device"))
    }

    /// A device leaves the node only when no pod has it.
    pub(super) async fn check_unmapped(&self, users: &Path) -> Result<(), Fault> {
        let left = self.host.mounter.list_dir(users).await.map_err(Fault::after("list the device's users"))?;
        match left.unwrap_or_default().first() {
            None => Ok(()),
            Some(entry) => {
                Err(Fault::uncertain(format!("the device is still bound at {}", users.join(&entry.name).display())))
            }
        }
    }

    pub(super) async fn is_mounted(&self, path: &Path) -> Result<bool, Fault> {
        let table = self.host.mounter.mounts().await.map_err(Fault::after("read the mount table"))?;
        let spelled = self.host.mounter.resolve(path).await.map_err(Fault::after("resolve the path"))?;
        Ok(spelled.is_some_and(|spelled| table.at(&spelled).is_some()))
    }

    /// Unmounts; where that is not possible it says who holds the mount.
    pub(super) async fn unmount(&self, path: &Path) -> Result<(), Fault> {
        let Err(error) = self.host.mounter.unmount(path).await else { return Ok(()) };
        let held = stowage_mount::Held::Mount(path.to_owned());
        let holders = match self.host.mounter.holders(&held).await {
            Ok(holders) if !holders.found.is_empty() => format!("; held by {holders}"),
            _ => String::new(),
        };
        Err(Fault::uncertain(format!("unmount {}: {error}{holders}", path.display())))
    }

    /// Parts of the volume that are bound for containers go before the volume does.
    pub(super) async fn clean_sub_paths(&self, uid: &str, name: &str) -> Result<(), Fault> {
        let dir = self.host.layout.volume_sub_paths(uid, name);
        self.host.mounter.clean_sub_paths(&dir).await.map_err(Fault::after("unmount parts of the volume"))
    }
}
