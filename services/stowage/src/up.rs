//! `stowage up`: the stack until Ctrl-C.

use anyhow::bail;

use stowage_runtime::shutdown::Shutdown;

use crate::args::Up;
use crate::check;
use crate::clean;
use crate::root::Root;
use crate::stack::{Options, Stack};

/// Runs the stack until it is told to stop, then drains it.
pub async fn run(options: Up) -> anyhow::Result<()> {
    let obstacles = check::obstacles();
    if !obstacles.is_empty() {
        bail!("this machine cannot mount volumes yet:\n  {}", obstacles.join("\n  "));
    }
    stowage_runtime::log::init(&options.log)?;
    let shutdown = Shutdown::new();
    let signals = shutdown.clone().listen_to_signals();
    let work = async {
        let root = Root::take(&options.root)?;
        let path = root.path().to_owned();
        let mut stack = Stack::start(
            root,
            Options {
                listen: options.listen,
                kubeconfig_out: options.kubeconfig_out,
                nodes: (1..=options.nodes).map(|number| format!("node-{number}")).collect(),
                csi_endpoint: options.csi_endpoint,
                durable: true,
                remembers_calls: false,
            },
        )
        .await?;
        println!("API server: https://{}", stack.address);
        println!("driver:     {}", stack.driver);
        println!("try:        KUBECONFIG={} kubectl get nodes,storageclasses", stack.kubeconfig.display());
        println!("Ctrl-C drains and stops");
        tokio::select! {
            biased;
            () = shutdown.requested() => {}
            error = stack.failed() => return Err(error.context(format!(
                "mounts were left as they are: `stowage up` takes them over, `stowage clean --root {}` removes them",
                path.display()
            ))),
        }
        println!("draining: pods are deleted and unmounted, claims and volumes are kept");
        stack.stop().await?;
        clean::nothing_left(&path).await?;
        println!("stopped; nothing is mounted");
        Ok(())
    };
    tokio::select! {
        biased;
        result = work => result,
        result = signals => Ok(result?),
    }
}
