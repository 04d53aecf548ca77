//! An upgraded connection, with the task that reads from it.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::channels::Channels;
use crate::frame_reader::{FrameReader, Reader, Source};
use crate::idle_timer::IdleTimer;
use crate::recv_buffer::{BufferBudget, RecvBuffer, RecvStream};
use crate::send_stream::{SendStream, SendTarget};
use crate::spdy::{self, Event, Headers, Reason};
use crate::stream_table::StreamTable;
use crate::writer::{FrameWriter, Writer};
use crate::ws;

/// Maximum time for a client to disconnect after the end was sent.
const GOODBYE: Duration = Duration::from_secs(2);

/// Both directions of an upgraded connection.
pub struct Io {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    /// Bytes received before the session started.
    pub(crate) begun: BytesMut,
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io").field("begun", &self.begun.len()).finish_non_exhaustive()
    }
}

impl Io {
    pub fn new(
        reader: impl tokio::io::AsyncRead + Send + Unpin + 'static,
        writer: impl tokio::io::AsyncWrite + Send + Unpin + 'static,
        begun: &[u8],
    ) -> Self {
        Self { reader: Box::new(reader), writer: Box::new(writer), begun: BytesMut::from(begun) }
    }
}

/// The reason why the session ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the client of an exec, attach or port-forward disconnected")]
    Hung,
    #[error("reading from the client of an exec, attach or port-forward")]
    Read(#[source] std::io::Error),
    #[error("invalid SPDY data from the client of an exec, attach or port-forward")]
    Spdy(#[from] spdy::ProtocolError),
    #[error("invalid WebSocket data from the client of an exec, attach or port-forward")]
    Ws(#[from] ws::ProtocolError),
    #[error("the client of an exec, attach or port-forward does not read the data that it is sent")]
    Deaf,
    #[error("the exec, attach or port-forward connection had no traffic for the time in stream.idle_timeout")]
    Idle,
}

/// A connection. Dropping it stops its task.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) writer: Arc<FrameWriter>,
    gone: watch::Receiver<bool>,
    listener: JoinHandle<()>,
    goodbye: fn(&FrameWriter),
}

impl Drop for Session {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// A stream that a client opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) id: u32,
    pub(crate) headers: Headers,
    pub(crate) input: RecvStream,
    pub(crate) output: SendStream,
}

/// The streams a client may open, and how many at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) admits: fn(&Headers) -> bool,
    pub(crate) streams_max: usize,
}

impl Session {
    /// Starts a session with SPDY, inside WebSocket messages if `tunnel`.
    pub(crate) fn spdy(io: Io, tunnel: bool, idle: Duration, policy: Policy) -> (Self, mpsc::Receiver<Opened>) {
        let Io { reader, writer, begun } = io;
        let (clock, (leave, gone)) = (Arc::new(IdleTimer::new()), watch::channel(false));
        let writer = FrameWriter::new(writer, tunnel, clock.clone(), gone.clone());
        let source = Source::new(FrameReader::new(reader, clock.clone()), begun, &writer);
        let (opened, accepted) = mpsc::channel(policy.streams_max);
        let streams: Arc<StreamTable> = Arc::default();
        let mut hub =
            Demux { writer: writer.clone(), streams: streams.clone(), budget: Arc::default(), opened, policy, last: 0 };
        let listener = tokio::spawn(listen(writer.clone(), clock, idle, leave, async move { hub.run(source).await }));
        let goodbye = |writer: &FrameWriter| writer.send_control(|_, to| spdy::Encoder::go_away(0, to));
        (Self { writer, gone, listener, goodbye }, accepted)
    }

    /// Starts a session with WebSocket channels.
    pub(crate) fn channels(io: Io, idle: Duration, make: impl FnOnce(Arc<BufferBudget>) -> Channels) -> Self {
        let Io { reader, writer, begun } = io;
        let (clock, (leave, gone)) = (Arc::new(IdleTimer::new()), watch::channel(false));
        let writer = FrameWriter::new(writer, false, clock.clone(), gone.clone());
        let budget: Arc<BufferBudget> = Arc::default();
        let mut channels = make(budget.clone());
        let (mut wire, mut buffer, pongs) = (FrameReader::new(reader, clock.clone()), begun, writer.clone());
        let listener = tokio::spawn(listen(writer.clone(), clock, idle, leave, async move {
            let mut decoder = ws::Decoder::of_client();
            loop {
                while let Some(event) = decoder.next(&mut buffer)? {
                    match event {
                        ws::Event::Part { bytes, first, last } => channels.put(&budget, bytes, first, last).await,
                        ws::Event::Ping(content) => pongs.message(ws::PONG, &content),
                        ws::Event::Pong => {}
                        ws::Event::Close => return Err(End::Hung),
                    }
                }
                if !wire.fill(&mut buffer).await.map_err(End::Read)? {
                    return Err(End::Hung);
                }
            }
        }));
        let goodbye = |writer: &FrameWriter| writer.message(ws::CLOSE, &1000u16.to_be_bytes());
        Self { writer, gone, listener, goodbye }
    }

    /// Returns when the client has disconnected, or the session has ended.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut gone = self.gone.clone();
        async move {
            // An error means that the task has ended, too.
            gone.wait_for(|gone| *gone).await.ok();
        }
    }

    /// Sends the end to the client, and waits up to 2 s for it to disconnect: closing a TCP
    /// connection with unread bytes discards data in transit.
    pub(crate) async fn close(mut self) {
        (self.goodbye)(&self.writer);
        if self.writer.is_tunnel() {
            self.writer.message(ws::CLOSE, &1000u16.to_be_bytes());
        }
        let goodbye = async {
            self.writer.close().await;
            (&mut self.listener).await.ok();
        };
        tokio::time::timeout(GOODBYE, goodbye).await.ok();
    }
}

/// Reads from a client until the end, and sends small frames.
async fn listen(
    writer: Arc<FrameWriter>,
    clock: Arc<IdleTimer>,
    idle: Duration,
    leave: watch::Sender<bool>,
    hear: impl Future<Output = Result<(), End>>,
) {
    let end = tokio::select! {
        end = hear => end.err().unwrap_or(End::Hung),
        () = writer.flush_on() => End::Deaf,
        () = clock.idle(idle) => End::Idle,
    };
    if !matches!(end, End::Hung) {
        tracing::debug!(
            error = &end as &dyn std::error::Error,
            "the connection of an exec, attach or port-forward ended"
        );
    }
    leave.send_replace(true);
}

/// Distributes the frames of one client to its streams.
struct Demux {
    writer: Arc<FrameWriter>,
    streams: Arc<StreamTable>,
    budget: Arc<BufferBudget>,
    opened: mpsc::Sender<Opened>,
    policy: Policy,
    /// The last stream that was opened: stream numbers increase.
    last: u32,
}

impl Drop for Demux {
    /// Ends the streams of a lost connection.
    fn drop(&mut self) {
        self.streams.lose();
        self.writer.window.close_all();
    }
}

impl Demux {
    async fn run(&mut self, mut source: Source) -> Result<(), End> {
        let mut decoder = spdy::Decoder::default();
        loop {
            while let Some(event) = decoder.next(source.buffer())? {
                self.take(event).await;
            }
            if !source.fill().await.map_err(End::Read)? {
                return Err(End::Hung);
            }
        }
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Opened { stream, headers, fin, one_way } => self.open(stream, headers, fin, one_way),
            Event::Data { stream, bytes, fin } => {
                if let Some(recv_buffer) = self.streams.put(stream, bytes, fin) {
                    self.budget.room(&recv_buffer).await;
                }
            }
            Event::Headers { stream, fin: true, .. } => drop(self.streams.put(stream, bytes::Bytes::new(), true)),
            Event::Reset { stream, .. } => {
                self.streams.cut(stream);
                self.writer.window.close(stream);
            }
            // Even numbers would be replies to our pings, and we send none.
            Event::Ping(id) if id % 2 == 1 => self.writer.send_control(|_, to| spdy::Encoder::ping(id, to)),
            Event::Window { stream, more } => self.writer.window.widen(stream, more),
            Event::Headers { .. } | Event::Replied { .. } | Event::Ping(_) | Event::GoAway { .. } | Event::Settings => {
            }
        }
    }

    fn open(&mut self, id: u32, headers: Headers, fin: bool, one_way: bool) {
        let refuse = |reason| self.writer.send_control(|_, to| spdy::Encoder::reset(id, reason, to));
        if id.is_multiple_of(2) || id <= self.last || one_way || !(self.policy.admits)(&headers) {
            return refuse(Reason::Protocol);
        }
        self.last = id;
        if self.streams.len() >= self.policy.streams_max {
            return refuse(Reason::Refused);
        }
        let writer = self.writer.clone();
        let recv_buffer = RecvBuffer::with_on_read(self.budget.clone(), move |read| {
            writer.send_control(|_, to| {
                spdy::Encoder::window(id, read, to);
                spdy::Encoder::window(0, read, to);
            });
        });
        self.streams.add(id, recv_buffer.clone());
        self.writer.window.open(id);
        // Before any data on the stream: clients drop data that arrives earlier.
        self.writer.send_control(|encoder, to| encoder.reply(id, false, to));
        if fin {
            drop(self.streams.put(id, bytes::Bytes::new(), true));
        }
        let output = SendStream::new(self.writer.clone(), SendTarget::Stream { id, streams: self.streams.clone() });
        // Full only if the maximum number of streams is waiting; a dropped stream is reset.
        self.opened.try_send(Opened { id, headers, input: RecvStream(recv_buffer), output }).ok();
    }
}
