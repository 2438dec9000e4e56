//! What the kubelet asks a plugin.

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use stowage_csi::registration::registration_server::Registration;
use stowage_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// What the kubelet said last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    NotYet,
    Registered,
    Refused(String),
}

/// Answers the kubelet and passes its verdict on.
pub struct Registrar {
    pub driver: String,
    /// The driver's socket as the kubelet sees it.
    pub endpoint: String,
    pub verdict: watch::Sender<Verdict>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: self.driver.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.verdict.send_replace(match status.plugin_registered {
            true => Verdict::Registered,
            false => Verdict::Refused(status.error),
        });
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
