//! Turns a service into a process of its own: logs, admin server, signals, and readiness that goes first when it drains.

use std::future::Future;

use anyhow::Context as _;

use crate::admin::Bound;
use crate::args::LogArgs;
use crate::process::Process;
use crate::shutdown::Shutdown;

/// Starts logging, and counts the process as started.
pub fn start(log: &LogArgs, identity: impl Into<String>) -> anyhow::Result<Process> {
    crate::log::init(log)?;
    log.ignored().iter().for_each(|sentence| tracing::warn!("{sentence}"));
    let process = Process::real(identity);
    process.metrics.started(process.clock.now());
    process.metrics.watch_this_process();
    Ok(process)
}

/// Runs a service until it drains or must stop, with its admin server where it has one.
pub async fn run<E>(
    process: &Process,
    admin: Option<Bound>,
    service: impl Future<Output = Result<(), E>>,
) -> anyhow::Result<()>
where
    E: Into<anyhow::Error>,
{
    let served = async { serve(process, admin, service).await.map_err(Into::into) };
    until_signal(process.shutdown.clone(), served).await
}

/// Works; a signal asks to stop from the first moment on, also while something is still waited for.
pub async fn until_signal(shutdown: Shutdown, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::select! {
        biased;
        listened = shutdown.listen_to_signals() => listened.context("cannot listen to signals"),
        result = work => result,
    }
}

/// Runs a service beside its admin server, which outlives it: a drain that takes long can be watched, and nobody takes it
/// for ready.
pub async fn serve<E>(
    process: &Process,
    admin: Option<Bound>,
    service: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    let ended = Shutdown::new();
    let served = async {
        if let Some(bound) = admin {
            bound.serve(ended.requested()).await;
        }
    };
    let draining = async {
        process.shutdown.requested().await;
        process.readiness.drain();
        std::future::pending().await
    };
    let worked = async {
        let result = tokio::select! {
            biased;
            result = service => result,
            never = draining => never,
        };
        ended.trigger();
        result
    };
    tokio::join!(served, worked).1
}

/// The pod's or machine's name.
pub fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::stop::Stop;

    #[tokio::test]
    async fn a_service_that_drains_is_told_unready_until_it_ends() {
        let process = Process::real("test");
        let bound = process.admin().bind("127.0.0.1:0").await.unwrap();
        let address = bound.local_addr().unwrap();
        let ask = async || {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let service = async {
            assert!(ask().await.ends_with("ok"));
            process.shutdown.trigger();
            let answer = ask().await;
            assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("draining"), "{answer}");
            Ok::<(), Stop>(())
        };
        run(&process, Some(bound), service).await.unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "the admin server outlives the process");
    }

    #[tokio::test]
    async fn a_service_that_must_stop_says_why() {
        let service = async { Err(Stop::Unable { reason: "no driver".into() }) };
        let error = run(&Process::real("test"), None, service).await.unwrap_err();
        assert_eq!(error.to_string(), "no driver");
    }
}
