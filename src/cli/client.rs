//! A client of the daemon's socket for verbs that work on pods.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cri_api::admin::images_client::ImagesClient;
use cri_api::v1::image_service_client::ImageServiceClient;
use cri_api::v1::runtime_service_client::RuntimeServiceClient;
use daemon::grpc::REQUEST_MAX;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// No daemon could be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "no daemon runs, there is no socket {}: start one with `crisp serve`, or name its socket with --listen",
        .0.display()
    )]
    Absent(PathBuf),
    #[error("no daemon runs, nobody listens on {} any more: start one with `crisp serve`", .0.display())]
    Stale(PathBuf),
    #[error("{} is not for this user: run this as root, or be in the group that socket_group names", .0.display())]
    Denied(PathBuf),
    #[error("connecting to {}", socket.display())]
    Io { socket: PathBuf, source: io::Error },
    #[error("speaking with whoever listens on {}", socket.display())]
    Transport { socket: PathBuf, source: tonic::transport::Error },
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", status.message())]
pub struct CallError {
    pub call: &'static str,
    pub status: Box<Status>,
}

/// Names the call that failed.
pub(super) fn call(call: &'static str) -> impl FnOnce(Status) -> CallError {
    move |status| CallError { call, status: Box::new(status) }
}

/// A daemon that takes connections.
#[derive(Debug, Clone)]
pub(super) struct Cri {
    channel: Channel,
}

impl Cri {
    pub(super) async fn connect(socket: &Path) -> Result<Self, ConnectError> {
        let at = || socket.to_owned();
        // What tonic says of a socket that is not there helps nobody.
        match UnixStream::connect(socket) {
            Ok(_) => {}
            Err(error) => {
                return Err(match error.kind() {
                    io::ErrorKind::NotFound => ConnectError::Absent(at()),
                    io::ErrorKind::ConnectionRefused => ConnectError::Stale(at()),
                    io::ErrorKind::PermissionDenied => ConnectError::Denied(at()),
                    _ => ConnectError::Io { socket: at(), source: error },
                });
            }
        }
        let failed = |source| ConnectError::Transport { socket: at(), source };
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
        Ok(Self { channel: endpoint.connect().await.map_err(failed)? })
    }

    pub(super) fn runtime(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(REQUEST_MAX)
    }

    pub(super) fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(REQUEST_MAX)
    }

    pub(super) fn admin(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.channel.clone()).max_decoding_message_size(REQUEST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_missing_and_a_dead_daemon_are_told_apart_and_how_to_start_one() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let absent = Cri::connect(&socket).await.unwrap_err();
        assert!(matches!(absent, ConnectError::Absent(_)) && absent.to_string().contains("crisp serve"), "{absent}");
        drop(UnixListener::bind(&socket).unwrap());
        let stale = Cri::connect(&socket).await.unwrap_err();
        assert!(matches!(stale, ConnectError::Stale(_)) && stale.to_string().contains("crisp serve"), "{stale}");
    }
}
