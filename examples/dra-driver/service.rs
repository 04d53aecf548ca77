//! The gRPC services for the kubelet: registration and DRA plugin.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cri_api::dra::{v1, v1beta1};
use cri_api::pluginregistration::registration_server::Registration;
use cri_api::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::claims::{Claim, Claims, Prepared, PreparedDevice};

/// The services of [`Plugin`], as named in the registration.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

/// The registration service.
#[derive(Debug)]
pub(crate) struct Registrar {
    driver: String,
    endpoint: PathBuf,
    refused: mpsc::Sender<String>,
}

impl Registrar {
    /// Registers the services at `endpoint`. If the kubelet refuses them, its reason is sent to `refused`.
    pub(crate) fn new(driver: String, endpoint: &Path, refused: mpsc::Sender<String>) -> Self {
        Self { driver, endpoint: endpoint.to_owned(), refused }
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = status.into_inner();
        if !plugin_registered {
            // A full channel already has a reason; one is enough.
            self.refused.try_send(error).ok();
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// The DRA plugin service, in both versions.
#[derive(Debug, Clone)]
pub(crate) struct Plugin {
    claims: Arc<Claims>,
}

impl Plugin {
    pub(crate) fn new(claims: Arc<Claims>) -> Self {
        Self { claims }
    }

    /// Returns the result of each claim, by uid. A failure of one claim does not affect the others.
    fn each<T>(&self, asked: Vec<Claim>, mut work: impl FnMut(&Claims, &Claim) -> T) -> BTreeMap<String, T> {
        asked.into_iter().map(|claim| (claim.uid.clone(), work(&self.claims, &claim))).collect()
    }
}

/// Implements one version; both have the same messages, except for the fields of a device in `$more`.
macro_rules! serve {
    ($version:ident $(, $more:ident)?) => {
        impl From<$version::Claim> for Claim {
            fn from($version::Claim { namespace, uid, name }: $version::Claim) -> Self {
                Self { namespace, name, uid }
            }
        }

        impl From<PreparedDevice> for $version::Device {
            fn from(device: PreparedDevice) -> Self {
                let PreparedDevice { request, pool, name, node: _, cdi } = device;
                Self {
                    request_names: vec![request],
                    pool_name: pool,
                    device_name: name,
                    cdi_device_ids: vec![cdi],
                    $($more: None,)?
                }
            }
        }

        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for Plugin {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let asked = request.into_inner().claims.into_iter().map(Claim::from).collect();
                let claims = self.each(asked, |claims, claim| match claims.prepare(claim) {
                    Ok(Prepared { devices, .. }) => $version::NodePrepareResourceResponse {
                        devices: devices.into_iter().map($version::Device::from).collect(),
                        error: String::new(),
                    },
                    Err(error) => {
                        $version::NodePrepareResourceResponse { devices: Vec::new(), error: error.to_string() }
                    }
                });
                Ok(Response::new($version::NodePrepareResourcesResponse { claims }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let asked = request.into_inner().claims.into_iter().map(Claim::from).collect();
                let claims = self.each(asked, |claims, claim| {
                    let error = claims.unprepare(claim).err().map(|error| error.to_string()).unwrap_or_default();
                    $version::NodeUnprepareResourceResponse { error }
                });
                Ok(Response::new($version::NodeUnprepareResourcesResponse { claims }))
            }
        }
    };
}

serve!(v1, share_id);
serve!(v1beta1);
