//! The embedded server, as `apiserver --data-dir ... --authorization-mode=RBAC` runs it.

use std::path::Path;

use apiserver::{Access, Authorization, Options, bind_with};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct Embedded {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), apiserver::Error>>,
}

impl Embedded {
    /// Starts a server with its data in `home`; returns it and an administrator's kubeconfig.
    pub async fn start(home: &Path) -> (Self, String) {
        let options =
            Options { listen: "127.0.0.1:0".parse().unwrap(), data_dir: Some(home.join("data")), kubeconfig_out: None };
        let access = Access { authorization: Authorization::Rbac, ..Access::default() };
        let bound = bind_with(options, access).await.unwrap();
        let kubeconfig = bound.kubeconfig.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(bound.run(async {
            let _either_way = stopped.await;
        }));
        (Self { stop, task }, kubeconfig)
    }

    pub async fn stop(self) {
        let _asked = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}
