//! The connection to one plugin: a task that reads, and one that writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use sync::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::field_count::{self, FIELDS_MAX, FLAT, Shape};
use super::rpc::{Code, KeyValue, Request, Response, Status};
use super::{Decoder, Kind, MESSAGE_MAX, Message, Service, WireError, frames};

/// Requests of a plugin that are served at the same time; more are refused.
const REQUESTS: usize = 4;
/// Messages that wait to be written.
const OUTGOING: usize = 64;
/// A message must be complete this long after its first byte.
const MESSAGE_TIME: Duration = Duration::from_secs(30);
/// The time for responses in the queue when a connection is closed.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Characters of an error text of a plugin that are kept.
const TEXT_MAX: usize = 1024;
const READ_BUFFER: usize = 32 << 10;

const REQUEST: Shape = Shape(&[(5, &FLAT)]);

/// The cause of a closed connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    #[error("the plugin closed the connection")]
    ByPlugin,
    #[error("the connection failed: {0}")]
    Io(String),
    #[error("protocol violation: {0}")]
    Protocol(#[from] WireError),
    #[error("the plugin does not read: {OUTGOING} responses wait to be written")]
    DoesNotRead,
    #[error("a message was not complete after {} s", MESSAGE_TIME.as_secs())]
    Incomplete,
    #[error("all stream ids of the connection are used")]
    StreamIds,
    #[error("closed by crisp: {0}")]
    ByRuntime(String),
}

/// A call that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    Closed(#[from] CloseReason),
    #[error("no answer after {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("not sent within {} ms: earlier calls have no answer", .0.as_millis())]
    Queued(Duration),
    #[error("not sent: {0} calls wait for the plugin")]
    QueueFull(usize),
    #[error("request of {0} bytes, at most {MESSAGE_MAX}")]
    TooLarge(usize),
    #[error("answer with more than {FIELDS_MAX} fields")]
    TooManyFields,
    #[error("answer cannot be decoded: {0}")]
    Malformed(String),
    /// The plugin's handler returned an error.
    #[error("{message} (code {code})")]
    Refused { code: i32, message: String },
}

/// A call to the plugin.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: &'a str,
    pub(crate) payload: Vec<u8>,
    pub(crate) timeout: Duration,
    /// The trace context of W3C.
    pub(crate) traceparent: Option<&'a str>,
}

/// The answer to a call, once it arrives.
#[derive(Debug)]
pub(crate) struct Answer {
    receiver: oneshot::Receiver<Result<Vec<u8>, CallError>>,
    shared: Arc<Shared>,
}

impl Answer {
    /// Waits for the answer; can be called again if it was cancelled.
    pub(crate) async fn wait(&mut self) -> Result<Vec<u8>, CallError> {
        match (&mut self.receiver).await {
            Ok(answer) => answer,
            Err(_) => Err(self.shared.reason().into()),
        }
    }
}

/// A request of the plugin.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) request: Request,
    pub(crate) reply: Reply,
}

/// The place for the response to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    stream: u32,
    slot: OwnedSemaphorePermit,
    shared: Arc<Shared>,
}

impl Reply {
    pub(crate) fn ok(self, message: &impl prost::Message) {
        let response = Response { status: None, payload: message.encode_to_vec() };
        self.shared.respond(self.stream, &response, Some(self.slot));
    }

    pub(crate) fn error(self, code: Code, message: &str) {
        self.shared.respond_error(self.stream, code, message, Some(self.slot));
    }
}

/// A connection; closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    out: mpsc::Sender<Outgoing>,
    calls: Mutex<Calls>,
    closed: watch::Sender<Option<CloseReason>>,
}

#[derive(Debug)]
struct Calls {
    next: Option<u32>,
    pending: HashMap<u32, oneshot::Sender<Result<Vec<u8>, CallError>>>,
}

struct Outgoing {
    service: Service,
    kind: Kind,
    stream: u32,
    payload: Vec<u8>,
    /// A request counts as served until its response is written.
    _slot: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Starts the tasks of a connection. The requests of the plugin come from the receiver.
    pub(crate) fn start(socket: UnixStream) -> (Self, mpsc::Receiver<Arrived>) {
        let (out, outgoing) = mpsc::channel(OUTGOING);
        let calls = Mutex::new(Calls { next: Some(1), pending: HashMap::new() });
        let shared = Arc::new(Shared { out, calls, closed: watch::Sender::new(None) });
        let (arrived, requests) = mpsc::channel(REQUESTS);
        let (read, write) = socket.into_split();
        tokio::spawn(write_messages(write, outgoing, shared.closed.subscribe(), shared.clone()));
        tokio::spawn(read_messages(read, arrived, shared.clone()));
        (Self(shared), requests)
    }

    /// Sends a call; waits while earlier messages are not written.
    pub(crate) async fn send(&self, call: Call<'_>) -> Result<Answer, CallError> {
        let metadata = call.traceparent.map(|id| KeyValue { key: "traceparent".to_owned(), value: id.to_owned() });
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: call.method.to_owned(),
            payload: call.payload,
            timeout_nano: i64::try_from(call.timeout.as_nanos()).unwrap_or(i64::MAX),
            metadata: metadata.into_iter().collect(),
        };
        let length = request.encoded_len();
        if length > MESSAGE_MAX {
            return Err(CallError::TooLarge(length));
        }
        let payload = request.encode_to_vec();
        let shared = &self.0;
        let permit = shared.out.reserve().await.map_err(|_| shared.reason())?;
        // Stream ids must be sent in ascending order: the id is taken together with the place in the queue.
        let mut calls = shared.calls.lock();
        if shared.closed.borrow().is_some() {
            return Err(shared.reason().into());
        }
        let Some(stream) = calls.next else {
            drop(calls);
            shared.close(CloseReason::StreamIds);
            return Err(CloseReason::StreamIds.into());
        };
        calls.next = stream.checked_add(2);
        let (sender, receiver) = oneshot::channel();
        calls.pending.insert(stream, sender);
        permit.send(Outgoing { service: Service::Plugin, kind: Kind::Request, stream, payload, _slot: None });
        Ok(Answer { receiver, shared: shared.clone() })
    }

    /// Closes the connection; all calls without an answer fail.
    pub(crate) fn close(&self, reason: CloseReason) {
        self.0.close(reason);
    }

    /// Returns when the connection is closed.
    pub(crate) async fn closed(&self) -> CloseReason {
        let mut closed = self.0.closed.subscribe();
        match closed.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(CloseReason::ByPlugin),
            Err(_) => CloseReason::ByPlugin,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.closed.borrow().is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close(CloseReason::ByRuntime("no longer used".to_owned()));
    }
}

impl Shared {
    fn close(&self, reason: CloseReason) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(reason);
            first
        });
        self.calls.lock().pending.clear();
    }

    fn reason(&self) -> CloseReason {
        self.closed.borrow().clone().unwrap_or(CloseReason::ByPlugin)
    }

    fn respond(&self, stream: u32, response: &Response, slot: Option<OwnedSemaphorePermit>) {
        if response.encoded_len() > MESSAGE_MAX {
            return self.respond_error(stream, Code::ResourceExhausted, "the response exceeds 4 MiB", slot);
        }
        let payload = response.encode_to_vec();
        let message = Outgoing { service: Service::Runtime, kind: Kind::Response, stream, payload, _slot: slot };
        if self.out.try_send(message).is_err() {
            self.close(CloseReason::DoesNotRead);
        }
    }

    fn respond_error(&self, stream: u32, code: Code, message: &str, slot: Option<OwnedSemaphorePermit>) {
        let status = Status { code: code.number(), message: message.to_owned() };
        self.respond(stream, &Response { status: Some(status), payload: Vec::new() }, slot);
    }

    /// Passes a response to its caller. A response that no call waits for is dropped.
    fn answered(&self, message: &Message) {
        let Some(call) = self.calls.lock().pending.remove(&message.stream) else { return };
        let answer = match decode::<Response>(&message.payload, &FLAT) {
            Ok(Response { status: Some(status), .. }) if status.code != 0 => {
                Err(CallError::Refused { code: status.code, message: bounded(&status.message) })
            }
            Ok(response) => Ok(response.payload),
            Err(error) => Err(error),
        };
        // The caller may have given up.
        drop(call.send(answer));
    }
}

/// Decodes a message that has few enough fields.
pub(crate) fn decode<M: prost::Message + Default>(payload: &[u8], shape: &Shape) -> Result<M, CallError> {
    if field_count::count(payload, shape) > FIELDS_MAX {
        return Err(CallError::TooManyFields);
    }
    M::decode(payload).map_err(|error| CallError::Malformed(error.to_string()))
}

/// Returns a text of a plugin for logs and errors: short, and on one line.
fn bounded(text: &str) -> String {
    text.chars().take(TEXT_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

async fn write_messages(
    mut socket: OwnedWriteHalf,
    mut outgoing: mpsc::Receiver<Outgoing>,
    mut closed: watch::Receiver<Option<CloseReason>>,
    shared: Arc<Shared>,
) {
    let mut end = shared.closed.subscribe();
    let write = async {
        loop {
            // After the end only the messages that are already in the queue are written.
            let message = tokio::select! {
                biased;
                message = outgoing.recv() => message,
                _ = end.wait_for(Option::is_some) => None,
            };
            let Some(message) = message else { return Ok::<(), std::io::Error>(()) };
            let (head, rest) = frames(message.service, message.kind, message.stream, message.payload);
            socket.write_all(&head).await?;
            socket.write_all(&rest).await?;
        }
    };
    let closed = async {
        // An error means that the connection is gone.
        drop(closed.wait_for(Option::is_some).await);
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        biased;
        () = closed => {}
        written = write => {
            if let Err(error) = written {
                shared.close(CloseReason::Io(error.to_string()));
            }
        }
    }
}

async fn read_messages(socket: OwnedReadHalf, arrived: mpsc::Sender<Arrived>, shared: Arc<Shared>) {
    let mut closed = shared.closed.subscribe();
    tokio::select! {
        biased;
        _ = closed.wait_for(Option::is_some) => {}
        reason = read_all(socket, &arrived, &shared) => shared.close(reason),
    }
}

async fn read_all(mut socket: OwnedReadHalf, arrived: &mpsc::Sender<Arrived>, shared: &Arc<Shared>) -> CloseReason {
    let slots = Arc::new(Semaphore::new(REQUESTS));
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; READ_BUFFER];
    let mut last_stream = 0;
    // The time when the unfinished message must be complete.
    let mut due = None;
    loop {
        let read = async {
            match due {
                Some(due) => tokio::time::timeout_at(due, socket.read(&mut buffer)).await.ok(),
                None => Some(socket.read(&mut buffer).await),
            }
        };
        let length = match read.await {
            None => return CloseReason::Incomplete,
            Some(Ok(0)) => return CloseReason::ByPlugin,
            Some(Ok(length)) => length,
            Some(Err(error)) => return CloseReason::Io(error.to_string()),
        };
        let mut is_complete = false;
        let fed = decoder.feed(&buffer[..length], &mut |message| {
            is_complete = true;
            match message.service {
                Service::Plugin => shared.answered(&message),
                Service::Runtime => request(message, &mut last_stream, arrived, &slots, shared),
            }
        });
        if let Err(error) = fed {
            return error.into();
        }
        if is_complete || !decoder.is_inside_message() {
            due = None;
        }
        if decoder.is_inside_message() && due.is_none() {
            due = Some(Instant::now() + MESSAGE_TIME);
        }
        // A plugin that sends without pause must not occupy a thread.
        tokio::task::consume_budget().await;
    }
}

/// Passes a request on, or refuses it.
fn request(
    message: Message,
    last_stream: &mut u32,
    arrived: &mpsc::Sender<Arrived>,
    slots: &Arc<Semaphore>,
    shared: &Arc<Shared>,
) {
    let stream = message.stream;
    let refuse = |code, text: &str| shared.respond_error(stream, code, text, None);
    if stream.is_multiple_of(2) || stream <= *last_stream {
        return refuse(Code::InvalidArgument, "stream ids must be odd and ascending");
    }
    *last_stream = stream;
    let Ok(slot) = slots.clone().try_acquire_owned() else {
        return refuse(Code::ResourceExhausted, "too many requests at the same time, at most 4");
    };
    let request = match decode::<Request>(&message.payload, &REQUEST) {
        Ok(request) => request,
        Err(error) => return refuse(Code::InvalidArgument, &error.to_string()),
    };
    let reply = Reply { stream, slot, shared: shared.clone() };
    if let Err(unserved) = arrived.try_send(Arrived { request, reply }) {
        unserved.into_inner().reply.error(Code::FailedPrecondition, "the connection is being closed");
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
