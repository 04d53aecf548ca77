//! CRI client for commands that work on pods.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cri_api::admin::images_client::ImagesClient;
use cri_api::admin::resizes_client::ResizesClient;
use cri_api::v1::image_service_client::ImageServiceClient;
use cri_api::v1::runtime_service_client::RuntimeServiceClient;
use daemon::grpc::REQUEST_MAX;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Why no daemon could be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "cannot connect to {}: socket not found; start the daemon with `crisp serve`, or set its socket with --listen",
        .0.display()
    )]
    Absent(PathBuf),
    #[error(
        "cannot connect to {}: no daemon is listening (stale socket); start the daemon with `crisp serve`",
        .0.display()
    )]
    Stale(PathBuf),
    #[error("cannot connect to {}: not a socket; set the daemon's socket with --listen", .0.display())]
    NotASocket(PathBuf),
    #[error("cannot connect to {}: permission denied; run as root or join the group set by socket_group", .0.display())]
    Denied(PathBuf),
    #[error("connecting to the daemon's socket {}", socket.display())]
    Io { socket: PathBuf, source: io::Error },
    #[error("opening a gRPC connection to the daemon's socket {}", socket.display())]
    Transport { socket: PathBuf, source: tonic::transport::Error },
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", status.message())]
pub struct CallError {
    pub call: &'static str,
    pub status: Box<Status>,
}

/// Returns a function that adds the name of the call to a status.
pub(super) fn call(call: &'static str) -> impl FnOnce(Status) -> CallError {
    move |status| CallError { call, status: Box::new(status) }
}

/// Returns whether `path` is a socket; the kernel refuses connections to all other files with the same error.
fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Opens a connection to a daemon; `configure` sets its options.
pub(super) async fn open(socket: &Path, configure: impl FnOnce(Endpoint) -> Endpoint) -> Result<Channel, ConnectError> {
    let at = || socket.to_owned();
    // tonic's error does not distinguish whether the socket is missing, stale or not permitted.
    if let Err(error) = UnixStream::connect(socket) {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => ConnectError::Absent(at()),
            io::ErrorKind::ConnectionRefused if !is_socket(socket) => ConnectError::NotASocket(at()),
            io::ErrorKind::ConnectionRefused => ConnectError::Stale(at()),
            io::ErrorKind::PermissionDenied => ConnectError::Denied(at()),
            _ => ConnectError::Io { socket: at(), source: error },
        });
    }
    let failed = |source| ConnectError::Transport { socket: at(), source };
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
    configure(endpoint).connect().await.map_err(failed)
}

/// Connection to a daemon.
#[derive(Debug, Clone)]
pub(super) struct Cri {
    channel: Channel,
}

impl Cri {
    pub(super) async fn connect(socket: &Path) -> Result<Self, ConnectError> {
        Ok(Self { channel: open(socket, |endpoint| endpoint).await? })
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

    pub(super) fn resizes(&self) -> ResizesClient<Channel> {
        ResizesClient::new(self.channel.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn missing_and_stale_sockets_are_reported_with_the_command_to_start_a_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let absent = Cri::connect(&socket).await.unwrap_err();
        assert!(matches!(absent, ConnectError::Absent(_)) && absent.to_string().contains("crisp serve"), "{absent}");
        drop(UnixListener::bind(&socket).unwrap());
        let stale = Cri::connect(&socket).await.unwrap_err();
        assert!(matches!(stale, ConnectError::Stale(_)) && stale.to_string().contains("crisp serve"), "{stale}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let other = Cri::connect(&file).await.unwrap_err();
        assert!(other.to_string().contains("not a socket"), "{other}");
    }
}
