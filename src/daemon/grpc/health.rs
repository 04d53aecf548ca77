//! Serves the gRPC health service: SERVING until the daemon shuts down.

use std::pin::Pin;

use cri_api::admin::images_server::ImagesServer;
use cri_api::health::health_check_response::ServingStatus;
use cri_api::health::health_server::Health;
use cri_api::health::{HealthCheckRequest, HealthCheckResponse};
use cri_api::v1::image_service_server::ImageServiceServer;
use cri_api::v1::runtime_service_server::RuntimeServiceServer;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

use super::{AdminApi, ImageApi, RpcResult, RuntimeApi};

/// The known services; the empty name is the whole daemon.
const SERVICES: [&str; 4] = [
    "",
    <RuntimeServiceServer<RuntimeApi> as NamedService>::NAME,
    <ImageServiceServer<ImageApi> as NamedService>::NAME,
    <ImagesServer<AdminApi> as NamedService>::NAME,
];

/// The serving state; dropping it ends every watch.
#[derive(Debug)]
pub(crate) struct HealthState(watch::Sender<ServingStatus>);

#[derive(Debug)]
pub(crate) struct HealthApi {
    serving: watch::Receiver<ServingStatus>,
}

impl HealthState {
    pub(crate) fn new() -> (Self, HealthApi) {
        let (sender, serving) = watch::channel(ServingStatus::Serving);
        (Self(sender), HealthApi { serving })
    }

    /// Reports that no more requests are accepted.
    pub(crate) fn end(self) {
        self.0.send_replace(ServingStatus::NotServing);
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthApi {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> RpcResult<HealthCheckResponse> {
        let HealthCheckRequest { service } = request.into_inner();
        if !SERVICES.contains(&service.as_str()) {
            return Err(Status::not_found(format!("service {service:?} not found")));
        }
        Ok(Response::new(response(*self.serving.borrow())))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> RpcResult<Self::WatchStream> {
        let HealthCheckRequest { service } = request.into_inner();
        let known = SERVICES.contains(&service.as_str());
        // The specification keeps the watch of an unknown service open, because it may be added
        // later.
        let reported = WatchStream::new(self.serving.clone());
        let reported = reported.map(move |status| if known { status } else { ServingStatus::ServiceUnknown });
        Ok(Response::new(Box::pin(reported.map(|status| Ok(response(status))))))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn check_request(service: &str) -> Request<HealthCheckRequest> {
        Request::new(HealthCheckRequest { service: service.to_owned() })
    }

    #[tokio::test]
    async fn every_service_is_known_and_no_other() {
        let (_serving, api) = HealthState::new();
        for service in ["", "runtime.v1.RuntimeService", "runtime.v1.ImageService", "crisp.admin.v1.Images"] {
            let answer = api.check(check_request(service)).await.unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
        }
        assert_eq!(api.check(check_request("runtime.v1.Other")).await.unwrap_err().code(), Code::NotFound);
    }

    #[tokio::test]
    async fn a_watch_reports_the_shutdown_and_ends() {
        let (serving, api) = HealthState::new();
        let mut known = api.watch(check_request("")).await.unwrap().into_inner();
        let mut unknown = api.watch(check_request("x")).await.unwrap().into_inner();
        assert_eq!(known.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
        assert_eq!(unknown.next().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
        serving.end();
        assert_eq!(known.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        assert!(known.next().await.is_none());
    }
}
