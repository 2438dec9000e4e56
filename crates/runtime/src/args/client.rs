//! How to reach the Kubernetes API.

use std::path::Path;
use std::sync::Once;

use anyhow::{Context as _, bail};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::limit::RateLimit;
use super::{connection, proxy};

/// Services in one process share a server, and people read each warning once.
static UNVERIFIED: Once = Once::new();
static DIRECT: Once = Once::new();

/// Flags of a Kubernetes client.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Kubernetes API")]
pub struct ClientArgs {
    /// Kubeconfig file; without it the pod's service account is used, else $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// URL of the API server, overriding the kubeconfig's
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Requests per second to the API server; unlike the original there is no limit unless this is set
    #[arg(long, value_name = "QPS", allow_negative_numbers = true)]
    pub kube_api_qps: Option<f32>,
    /// Requests that may exceed --kube-api-qps for a moment; counts only together with it, by default as in the original
    #[arg(long, value_name = "COUNT")]
    pub kube_api_burst: Option<u32>,
}

impl ClientArgs {
    /// A client for the service's work, limited if the user asked for it; `burst` is the original's default.
    pub async fn client(&self, burst: u32) -> anyhow::Result<Client> {
        connection::client(self.config().await?, self.limit(burst)).context("cannot make a Kubernetes client")
    }

    fn limit(&self, burst: u32) -> Option<RateLimit> {
        // As in client-go, zero or less means no limit.
        let qps = self.kube_api_qps.filter(|qps| *qps > 0.0)?;
        Some(RateLimit::new(qps, self.kube_api_burst.unwrap_or(burst)))
    }

    /// What was asked for in vain, one sentence.
    pub fn ignored(&self) -> Option<String> {
        let burst = self.kube_api_burst.filter(|_| self.limit(0).is_none())?;
        Some(format!(
            "--kube-api-burst={burst} has no effect without --kube-api-qps: there is no limit unless that is set"
        ))
    }

    /// A client that is never limited, so that work cannot starve lease renewals.
    pub async fn unlimited_client(&self) -> anyhow::Result<Client> {
        connection::client(self.config().await?, None).context("cannot make a Kubernetes client")
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let file = self.kubeconfig.as_deref().filter(|file| !file.is_empty());
        let master = self.master.as_deref().filter(|url| !url.is_empty());
        let url = master
            .map(|url| url.parse::<http::Uri>().with_context(|| format!("--master {url:?} is not a URL")))
            .transpose()?;
        let mut config = match (file, &url) {
            (Some(file), _) => from_file(Path::new(file)).await?,
            (None, Some(url)) => Config::new(url.clone()),
            (None, None) => found().await?,
        };
        if let Some(url) = url {
            config.cluster_url = url;
        }
        // Throttled requests are sent again by `Api`, which counts them, obeys the limit and knows what was not answered.
        config.default_retry = false;
        if config.accept_invalid_certs {
            UNVERIFIED.call_once(|| {
                let server = config.cluster_url.to_string();
                tracing::warn!(
                    server,
                    "the API server's certificate is not verified (insecure-skip-tls-verify): whoever sits in between can \
                     read and change everything; put certificate-authority into the kubeconfig instead"
                );
            });
        }
        Ok(config)
    }
}

async fn from_file(file: &Path) -> anyhow::Result<Config> {
    let way_out = || {
        format!(
            "cannot use the kubeconfig {} given by --kubeconfig or $KUBECONFIG; name a readable kubeconfig with a current \
             context, or leave the flag out to run inside a cluster",
            file.display()
        )
    };
    let kubeconfig = Kubeconfig::read_from(file).with_context(way_out)?;
    from_kubeconfig(kubeconfig).await.with_context(way_out)
}

/// kube takes a proxy of the environment for one that the kubeconfig asks for; only what is in the file has to be obeyed.
async fn from_kubeconfig(kubeconfig: Kubeconfig) -> Result<Config, KubeconfigError> {
    let is_asked_for = proxy::is_asked_for(&kubeconfig);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    if !is_asked_for && let Some(proxy) = config.proxy_url.take() {
        let exempt = ["NO_PROXY", "no_proxy"].into_iter().find_map(|name| std::env::var(name).ok());
        let server = config.cluster_url.host().unwrap_or_default();
        if !proxy::is_exempt(server, exempt.as_deref().unwrap_or_default()) {
            DIRECT.call_once(|| {
                let (proxy, server) = (proxy.host().unwrap_or_default(), config.cluster_url.to_string());
                tracing::warn!(
                    proxy,
                    server,
                    "the proxy that the environment names is not used, the API server is called directly; name the server \
                     in NO_PROXY if that is meant"
                );
            });
        }
    }
    Ok(config)
}

async fn found() -> anyhow::Result<Config> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Config::incluster().context(
            "this is a pod (KUBERNETES_SERVICE_HOST is set) but its service account cannot be used; \
             mount the service account token, or pass --kubeconfig FILE",
        );
    }
    let found = async { from_kubeconfig(Kubeconfig::read()?).await };
    match found.await {
        Ok(config) => Ok(config),
        Err(error) => bail!(
            "found no cluster: not in a pod, and neither $KUBECONFIG nor ~/.kube/config is usable; \
             pass --kubeconfig FILE ({error})"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named_with_the_way_out() {
        let args = ClientArgs { kubeconfig: Some("/nowhere/kubeconfig".into()), ..ClientArgs::default() };
        let error = args.config().await.unwrap_err().to_string();
        assert!(error.contains("/nowhere/kubeconfig") && error.contains("leave the flag out"), "{error}");
    }

    #[test]
    fn the_burst_is_the_services_own_unless_the_user_sets_it() {
        let burst = |args: &ClientArgs| args.limit(30).map(|limit| limit.burst());
        let mut args = ClientArgs { kube_api_qps: Some(20.0), ..ClientArgs::default() };
        assert_eq!(burst(&args), Some(30));
        args.kube_api_burst = Some(7);
        assert_eq!(burst(&args), Some(7));
        args.kube_api_qps = None;
        assert_eq!(burst(&args), None);
    }

    #[test]
    fn a_burst_without_a_rate_is_named_with_what_would_give_it_effect() {
        let with =
            |kube_api_qps| ClientArgs { kube_api_qps, kube_api_burst: Some(30), ..ClientArgs::default() }.ignored();
        for without_limit in [with(None), with(Some(0.0))] {
            let said = without_limit.unwrap_or_default();
            assert!(said.starts_with("--kube-api-burst=30 has no effect without --kube-api-qps"), "{said}");
        }
        assert_eq!((with(Some(5.0)), ClientArgs::default().ignored()), (None, None));
    }

    #[tokio::test]
    async fn a_master_that_is_no_url_is_refused_by_name() {
        let args = ClientArgs { master: Some("not a url".into()), ..ClientArgs::default() };
        assert_eq!(args.config().await.unwrap_err().to_string(), "--master \"not a url\" is not a URL");
    }

    #[tokio::test]
    async fn master_overrides_the_server_of_the_kubeconfig() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let text = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, \
                    user: a}}], clusters: [{name: a, cluster: {server: 'http://one:1'}}], users: [{name: a, user: {}}]}";
        std::fs::write(&file, text).unwrap();
        let mut args = ClientArgs { kubeconfig: file.to_str().map(Into::into), ..ClientArgs::default() };
        assert_eq!(args.config().await.unwrap().cluster_url, "http://one:1/");
        args.master = Some("http://two:2".into());
        assert_eq!(args.config().await.unwrap().cluster_url, "http://two:2/");
    }
}
