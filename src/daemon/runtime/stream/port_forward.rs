//! PortForward: connects clients to ports in a pod.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::{ErrorClass, ErrorKind, PodId, PodState};
use streaming::port_forward::{Forward, Forwards};
use streaming::{RecvStream, SendStream, StreamError};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::copy;
use super::copy::{CopyBuffer, PIECES};
use crate::runtime::{LookupError, Runtime, blocking};

/// The timeout of a connection within the machine.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a server may be silent after its client closed its sending direction. Clients that
/// disconnected look the same.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("cannot forward ports: the sandbox of pod {0} is not ready")]
    NotReady(PodId),
}

impl ErrorClass for ForwardError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::NotReady(_) => ErrorKind::Precondition,
        }
    }
}

/// A port on which no process of the pod listens.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("entering the pod's network namespace for port-forward")]
    Enter(#[source] io::Error),
    #[error("failed to connect to localhost:{port} inside pod {pod}, IPv4: {v4}, IPv6: {v6}")]
    Refused { pod: PodId, port: u16, v4: io::Error, v6: io::Error },
}

impl Runtime {
    /// Returns the pod, if its ports can be reached.
    pub(crate) fn ready(&self, id: &str) -> Result<PodId, ForwardError> {
        let pod = self.readable_pod(id)?.get();
        match pod.state {
            PodState::Ready => Ok(pod.id.clone()),
            PodState::NotReady | PodState::Unreadable => Err(ForwardError::NotReady(pod.id.clone())),
        }
    }

    /// Opens the connections that a client requests until it disconnects; only to `ports`, unless
    /// the list is empty.
    pub(crate) async fn port_forward(self: &Arc<Self>, pod: &PodId, ports: &[u16], mut forwards: Forwards) {
        let mut running = JoinSet::new();
        let gone = forwards.gone();
        let serve = async {
            let mut more = true;
            while more || !running.is_empty() {
                tokio::select! {
                    forward = forwards.next(), if more => match forward {
                        Some(forward) if ports.is_empty() || ports.contains(&forward.port) => {
                            running.spawn(Arc::clone(self).forward(pod.clone(), forward));
                        }
                        Some(Forward { port, error, .. }) => {
                            running.spawn(async move { error.send(&format!("port {port} was not requested")).await });
                        }
                        None => more = false,
                    },
                    Some(_) = running.join_next() => {}
                }
            }
        };
        tokio::select! {
            () = serve => forwards.end().await,
            // Dropping the set ends all connections, too.
            () = gone => {}
        }
    }

    async fn forward(self: Arc<Self>, pod: PodId, forward: Forward) {
        let Forward { port, input, output, error, half_close } = forward;
        match self.dial(&pod, port).await {
            Ok(stream) => {
                carry(stream, input, output, half_close).await;
                error.finish().await;
            }
            Err(failed) => {
                let words = model::error_chain::chain(&failed);
                tracing::debug!(port, error = words, "forwarding a connection to a port of the pod failed");
                error.send(&format!("error forwarding port {port} to pod {pod}: {words}")).await;
                drop((input, output));
            }
        }
    }

    /// Connects to a port on the pod's loopback: first IPv4, then IPv6, as containerd and CRI-O do.
    async fn dial(&self, pod: &PodId, port: u16) -> Result<TcpStream, DialError> {
        let gone = |_| DialError::Enter(io::ErrorKind::NotFound.into());
        let network = self.pod(pod.as_str()).map_err(gone)?.sandbox.network.clone();
        let [v4, v6] = match network {
            None => [TcpSocket::new_v4(), TcpSocket::new_v6()],
            Some(path) => blocking(move || sockets_in(path)).await.map_err(DialError::Enter)?,
        };
        let v4 = match connect(v4, (Ipv4Addr::LOCALHOST, port).into()).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        match connect(v6, (Ipv6Addr::LOCALHOST, port).into()).await {
            Ok(stream) => Ok(stream),
            Err(v6) => Err(DialError::Refused { pod: pod.clone(), port, v4, v6 }),
        }
    }
}

/// Creates a socket of each kind. A socket belongs to the network namespace in which it was
/// created, whichever process uses it.
fn sockets_in(network: PathBuf) -> io::Result<[io::Result<TcpSocket>; 2]> {
    let made = sys::netns::run_in(&[&network], || Ok([sys::netns::tcp(false), sys::netns::tcp(true)]))?;
    let made = made.into_iter().next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))?;
    Ok(made.map(|socket| socket.map(|fd| TcpSocket::from_std_stream(fd.into()))))
}

async fn connect(socket: io::Result<TcpSocket>, to: SocketAddr) -> io::Result<TcpStream> {
    let connected = tokio::time::timeout(CONNECT_WITHIN, socket?.connect(to));
    let stream = connected.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Copies bytes in both directions until each ends; a reset of one connection resets the other.
async fn carry(stream: TcpStream, input: RecvStream, output: SendStream, half_close: bool) {
    let (reader, writer) = stream.into_split();
    let (close, half_closed) = watch::channel(false);
    let upload = async move {
        let ended = upload(input, writer).await;
        close.send_replace(true);
        ended
    };
    let download = async move {
        download(reader, output, half_closed).await?;
        // A client that cannot close its sending direction is done when the server is.
        if half_close { Ok(()) } else { Err(StreamError::Lost) }
    };
    // Either direction may end first, and the other continues, unless one fails.
    tokio::try_join!(upload, download).ok();
}

async fn upload(mut input: RecvStream, mut writer: OwnedWriteHalf) -> Result<(), StreamError> {
    loop {
        match input.next_pieces(PIECES).await {
            // Closes this direction alone.
            Ok(pieces) if pieces.is_empty() => return Ok(()),
            Ok(pieces) => {
                if copy::write_all(&mut writer, pieces).await.is_err() {
                    // The server closed the connection; its earlier output is still sent.
                    return Ok(());
                }
            }
            Err(broken) => {
                if broken == StreamError::Reset {
                    writer.as_ref().set_zero_linger().ok();
                    writer.forget();
                }
                return Err(broken);
            }
        }
    }
}

async fn download(
    reader: OwnedReadHalf,
    mut output: SendStream,
    mut half_closed: watch::Receiver<bool>,
) -> Result<(), StreamError> {
    let mut buffer = CopyBuffer::new();
    loop {
        let silence = async {
            half_closed.wait_for(|closed| *closed).await.ok();
            tokio::time::sleep(SILENCE).await;
        };
        tokio::select! {
            biased;
            ready = reader.readable() => ready.map_err(|_| StreamError::Reset)?,
            () = silence => return Err(StreamError::Lost),
        }
        match reader.try_read(buffer.room()) {
            Ok(0) => {
                output.finish().await;
                return Ok(());
            }
            Ok(count) => {
                buffer.fill(count);
                buffer.send(&mut output).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The output is dropped, and so reset.
            Err(_) => return Err(StreamError::Reset),
        }
    }
}
