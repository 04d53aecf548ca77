//! A connection to a shim: requests and responses are matched by number, events arrive at any time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shim_protocol::{Event, OLDEST, PROTOCOL, Request, Response, ShimMessage, ShimRequest};
use sync::Mutex;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::sandbox::{STOP_TIMEOUT, SandboxError, SandboxEvent};

type Waiting = Mutex<HashMap<u64, oneshot::Sender<Result<Response, SandboxError>>>>;

/// A connection to a shim, shared by its clones.
#[derive(Debug, Clone)]
pub(crate) struct ShimClient(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: Arc<UnixStream>,
    next: AtomicU64,
    waiting: Arc<Waiting>,
    execs: Arc<Mutex<HashMap<u64, oneshot::Sender<i32>>>>,
    /// The number of messages received.
    heard: Arc<AtomicU64>,
    /// The number of messages received before a request that timed out. While no more arrive, the
    /// shim counts as not responding.
    silent_since: AtomicU64,
    /// Set if the shim uses an incompatible protocol.
    foreign: Option<(String, u32)>,
    opens_paths: bool,
    reader: tokio::task::AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Timeout of requests that a working shim answers immediately.
const SOON: Duration = Duration::from_secs(5);
/// Timeout of requests that wait for programs or for exits of processes.
const PATIENCE: Duration = Duration::from_secs(120);
fn timeout_of(request: &Request) -> Duration {
    match request {
        Request::Hello { .. } | Request::State | Request::Attach(_) => SOON,
        Request::CreateSandbox(_) | Request::Create(_) | Request::Start { .. } => PATIENCE,
        Request::Exec(_) | Request::ExecStream(_) | Request::KillExec { .. } | Request::Reopen { .. } => PATIENCE,
        Request::Signal { .. } | Request::RemoveContainer { .. } | Request::Shutdown => STOP_TIMEOUT,
    }
}

impl ShimClient {
    /// Connects and reads the shim's release and protocol.
    pub(crate) async fn connect(
        path: &Path,
        events: mpsc::UnboundedSender<SandboxEvent>,
    ) -> Result<Self, SandboxError> {
        let failed = |source| SandboxError::Connect { path: path.to_owned(), source };
        let socket = sys::seqpacket::connect(path).map_err(failed)?;
        // tokio has no type for SOCK_SEQPACKET: it only polls the socket, messages are sent and
        // received here.
        let socket = Arc::new(UnixStream::from_std(socket.into()).map_err(failed)?);
        let waiting: Arc<Waiting> = Arc::default();
        let execs: Arc<Mutex<HashMap<u64, oneshot::Sender<i32>>>> = Arc::default();
        let heard: Arc<AtomicU64> = Arc::default();
        let reader = Reader {
            socket: socket.clone(),
            waiting: waiting.clone(),
            execs: execs.clone(),
            heard: heard.clone(),
            events,
            path: path.to_owned(),
        };
        let mut shared = Shared {
            socket,
            next: AtomicU64::new(1),
            waiting,
            execs,
            heard,
            silent_since: AtomicU64::new(u64::MAX),
            foreign: None,
            opens_paths: false,
            reader: tokio::spawn(reader.run()).abort_handle(),
        };
        let hello = Request::Hello { protocol: PROTOCOL, release: env!("CARGO_PKG_VERSION").to_owned() };
        match shared.request(hello, &[]).await? {
            Response::Hello { protocol, release, pid: _, opens_paths } => {
                shared.opens_paths = opens_paths;
                if release != env!("CARGO_PKG_VERSION") {
                    tracing::info!(
                        shim = release,
                        protocol,
                        "the pod's shim is of another crisp release; it is usable if the daemon supports its protocol"
                    );
                }
                if !(OLDEST..=PROTOCOL).contains(&protocol) {
                    shared.foreign = Some((release, protocol));
                }
            }
            _ => return Err(SandboxError::Mismatch),
        }
        Ok(Self(Arc::new(shared)))
    }

    /// Returns whether the shim opens logs and creates mount sources; for one of an older release
    /// the daemon does.
    pub(crate) fn opens_paths(&self) -> bool {
        self.0.opens_paths
    }

    pub(crate) async fn call(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Response, SandboxError> {
        if let Some((release, protocol)) = &self.0.foreign {
            return Err(SandboxError::Foreign { release: release.clone(), protocol: *protocol });
        }
        self.0.request(request, fds).await
    }

    /// Sends a request whose response has no content.
    pub(crate) async fn notify(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<(), SandboxError> {
        match self.call(request, fds).await? {
            Response::Done => Ok(()),
            _ => Err(SandboxError::Mismatch),
        }
    }

    /// Reserves a number for an exec, and returns a receiver of its exit code. An error there means
    /// that the shim has exited.
    pub(crate) fn expect_exec(&self) -> (u64, oneshot::Receiver<i32>) {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.0.execs.lock().insert(number, sender);
        (number, receiver)
    }

    pub(crate) fn forget_exec(&self, number: u64) {
        self.0.execs.lock().remove(&number);
    }
}

impl Shared {
    async fn request(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Response, SandboxError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let heard = self.heard.load(Ordering::Relaxed);
        let timeout = timeout_of(&request);
        // It already has an unanswered request. A stop or removal waits once for it, not at every
        // step.
        let is_mute = timeout == STOP_TIMEOUT && self.silent_since.load(Ordering::Relaxed) == heard;
        let bytes = shim_protocol::encode(&ShimRequest { number, request })?;
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().insert(number, sender);
        let _forget = PendingResponse { waiting: &self.waiting, number };
        let answered = async {
            let sent =
                self.socket.async_io(Interest::WRITABLE, || sys::seqpacket::send(&*self.socket, &bytes, fds)).await;
            sent.map_err(|e| match e.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
                    SandboxError::Gone
                }
                _ => SandboxError::Send(e),
            })?;
            receiver.await.map_err(|_| SandboxError::Gone)?
        };
        if is_mute {
            return tokio::time::timeout(Duration::ZERO, answered).await.map_err(|_| SandboxError::Mute)?;
        }
        tokio::time::timeout(timeout, answered).await.map_err(|_| {
            self.silent_since.store(heard, Ordering::Relaxed);
            SandboxError::Silent(timeout)
        })?
    }
}

/// Drops a response that is not awaited any more.
struct PendingResponse<'a> {
    waiting: &'a Waiting,
    number: u64,
}

impl Drop for PendingResponse<'_> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.number);
    }
}

struct Reader {
    socket: Arc<UnixStream>,
    waiting: Arc<Waiting>,
    execs: Arc<Mutex<HashMap<u64, oneshot::Sender<i32>>>>,
    heard: Arc<AtomicU64>,
    events: mpsc::UnboundedSender<SandboxEvent>,
    /// The shim's socket, in the directory of its pod.
    path: PathBuf,
}

thread_local! {
    /// Shared by all connections, to save memory on nodes with many pods.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; sys::seqpacket::MAX]);
}

impl Reader {
    async fn run(self) {
        let receive = || {
            BUFFER.with_borrow_mut(|buffer| {
                let got = sys::seqpacket::receive(&*self.socket, buffer)?;
                self.heard.fetch_add(1, Ordering::Relaxed);
                Ok(got.map(|(n, _)| {
                    shim_protocol::decode(&buffer[..n]).map_err(|error| (error, number_of(&buffer[..n])))
                }))
            })
        };
        loop {
            match self.socket.async_io(Interest::READABLE, receive).await {
                Ok(Some(Ok(message))) => self.take(message),
                // A message of a newer shim that this daemon does not know.
                Ok(Some(Err((error, Some(number))))) => self.answer(number, Err(error.into())),
                Ok(Some(Err((error, None)))) => {
                    tracing::warn!(socket = %self.path.display(), %error, "cannot read a message from a pod's shim, possibly of a newer release; ignored it: an exit of a container may go unnoticed")
                }
                Ok(None) | Err(_) => break,
            }
        }
        self.waiting.lock().clear();
        self.execs.lock().clear();
        self.events.send(SandboxEvent::Gone).ok();
    }

    fn answer(&self, number: u64, answer: Result<Response, SandboxError>) {
        let waiting = self.waiting.lock().remove(&number);
        if let Some(sender) = waiting {
            sender.send(answer).ok();
        }
    }

    fn take(&self, message: ShimMessage) {
        let event = match message {
            ShimMessage::Response { number, result } => {
                return self.answer(number, result.map_err(SandboxError::from));
            }
            ShimMessage::Event(Event::ExecExited { exec, code }) => {
                let waiting = self.execs.lock().remove(&exec);
                if let Some(sender) = waiting {
                    sender.send(code).ok();
                }
                return;
            }
            ShimMessage::Event(event) => event,
        };
        // The receiver is dropped only when the daemon exits.
        self.events.send(SandboxEvent::Event(event)).ok();
    }
}

/// Returns the number of a response whose content cannot be parsed.
fn number_of(bytes: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Numbered {
        response: Number,
    }
    #[derive(serde::Deserialize)]
    struct Number {
        number: u64,
    }
    shim_protocol::decode::<Numbered>(bytes).ok().map(|message| message.response.number)
}
