//! A connection that was upgraded, with the task that listens to it.

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

/// How long a client may take to hang up once it was told everything.
const GOODBYE: Duration = Duration::from_secs(2);

/// Both directions of a connection that was upgraded.
pub struct Io {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    /// What came before anybody listened.
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

/// Why nobody listens to a client any more.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the client hung up")]
    Hung,
    #[error("reading from the client")]
    Read(#[source] std::io::Error),
    #[error("the client sent {0}")]
    Spdy(#[from] spdy::ProtocolError),
    #[error("the client sent {0}")]
    Ws(#[from] ws::ProtocolError),
    #[error("the client does not read what it is sent")]
    Deaf,
    #[error("nothing moved for too long")]
    Idle,
}

/// A connection. The task that listens ends with this.
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

/// Which streams a client may open, and how many at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) admits: fn(&Headers) -> bool,
    pub(crate) streams_max: usize,
}

impl Session {
    /// Listens to a client that speaks SPDY, within messages of WebSocket if `tunnel`.
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

    /// Listens to a client that speaks in channels of WebSocket.
    pub(crate) fn channels(io: Io, idle: Duration, make: impl FnOnce(Arc<BufferBudget>) -> Channels) -> Self {
        let Io { reader, writer, begun } = io;
        let (clock, (leave, gone)) = (Arc::new(IdleTimer::new()), watch::channel(false));
        let writer = FrameWriter::new(writer, false, clock.clone(), gone.clone());
        let budget: Arc<BufferBudget> = Arc::default();
        let mut channels = make(budget.clone());
        let (mut wire, mut buffer, said) = (FrameReader::new(reader, clock.clone()), begun, writer.clone());
        let listener = tokio::spawn(listen(writer.clone(), clock, idle, leave, async move {
            let mut decoder = ws::Decoder::of_client();
            loop {
                while let Some(event) = decoder.next(&mut buffer)? {
                    match event {
                        ws::Event::Part { bytes, first, last } => channels.put(&budget, bytes, first, last).await,
                        ws::Event::Ping(content) => said.message(ws::PONG, &content),
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

    /// Returns when the client is gone, or is listened to no more.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut gone = self.gone.clone();
        async move {
            // An error means that the listener is gone, too.
            gone.wait_for(|gone| *gone).await.ok();
        }
    }

    /// Tells the client that this was all, and waits a moment for it to hang up: whoever closes a connection with bytes unread
    /// takes back what is still on its way.
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

/// Hears a client out, and sends small frames meanwhile.
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
        tracing::debug!(error = &end as &dyn std::error::Error, "a streaming connection ended");
    }
    leave.send_replace(true);
}

/// The streams of one client, as its frames come in.
struct Demux {
    writer: Arc<FrameWriter>,
    streams: Arc<StreamTable>,
    budget: Arc<BufferBudget>,
    opened: mpsc::Sender<Opened>,
    policy: Policy,
    /// The last stream that was opened: their numbers grow.
    last: u32,
}

impl Drop for Demux {
    /// Nobody else would tell the streams.
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
            // Those of even numbers would answer ours, and we send none.
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
        let recv_buffer = RecvBuffer::telling(self.budget.clone(), move |read| {
            writer.send_control(|_, to| {
                spdy::Encoder::window(id, read, to);
                spdy::Encoder::window(0, read, to);
            });
        });
        self.streams.add(id, recv_buffer.clone());
        self.writer.window.open(id);
        // Before anything is written to the stream: clients drop what comes earlier.
        self.writer.send_control(|encoder, to| encoder.reply(id, false, to));
        if fin {
            drop(self.streams.put(id, bytes::Bytes::new(), true));
        }
        let output = SendStream::new(self.writer.clone(), SendTarget::Stream { id, streams: self.streams.clone() });
        // Full only where as many wait as may be open; dropped, it is reset.
        self.opened.try_send(Opened { id, headers, input: RecvStream(recv_buffer), output }).ok();
    }
}
