//! Port-forward: any number of stream pairs, one stream for data and one for errors.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::channels::Channels;
use crate::chunk::Chunk;
use crate::http_upgrade::{PortForwardProtocol, Transport};
use crate::recv_buffer::RecvStream;
use crate::remote_command::Timeouts;
use crate::send_stream::{SendStream, SendTarget};
use crate::session::{Io, Opened, Policy, Session};
use crate::spdy::Headers;

/// Maximum number of open streams per connection: two for each forwarded connection.
const STREAMS_MAX: usize = 512;

/// A connection to open to a port of the pod.
#[derive(Debug)]
pub struct Forward {
    pub port: u16,
    pub input: RecvStream,
    pub output: SendStream,
    pub error: ErrorOutput,
    /// Whether the client can close its side of the stream.
    pub half_close: bool,
}

/// The stream for errors of one forwarded connection.
#[derive(Debug)]
pub struct ErrorOutput(SendStream);

impl ErrorOutput {
    /// Sends an error message and closes the stream.
    pub async fn send(mut self, words: &str) {
        if self.0.send(&mut Chunk::of(words.as_bytes())).await.is_ok() {
            self.0.finish().await;
        }
    }

    /// Closes the stream without a message.
    pub async fn finish(self) {
        self.0.finish().await;
    }
}

/// A client that forwards ports.
#[derive(Debug)]
pub struct Forwards {
    session: Session,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Streams {
        opened: mpsc::Receiver<Opened>,
        pairs: HashMap<String, Half>,
        creation: Duration,
    },
    /// All from the start, one per port.
    Channels(Vec<Forward>),
}

/// One stream of a pair whose other stream is not open yet.
#[derive(Debug)]
struct Half {
    port: u16,
    stream: Opened,
    is_data: bool,
    until: Instant,
}

/// Starts port-forward on an upgraded connection. `ports` are those of the request, for clients
/// that do not name them.
pub async fn open(io: Io, protocol: PortForwardProtocol, ports: &[u16], times: Timeouts) -> Forwards {
    match protocol.transport {
        Transport::Channels(words) => {
            let mut inputs = Vec::new();
            let session = Session::channels(io, times.idle, |budget| {
                let channels = Channels::new(&budget, &[true, false].repeat(ports.len()), words);
                inputs = (0..ports.len()).filter_map(|n| channels.input(2 * n)).collect();
                channels
            });
            let output = |number: usize| {
                let number = u8::try_from(number).unwrap_or(u8::MAX);
                SendStream::new(session.writer.clone(), SendTarget::Channel { number, base64: words.base64 })
            };
            let mut all = Vec::new();
            for (n, (port, input)) in ports.iter().zip(inputs).enumerate() {
                let (mut data, mut error) = (output(2 * n), output(2 * n + 1));
                // The first message of each channel is its port. A disconnected client is detected
                // later.
                data.send(&mut Chunk::of(&port.to_le_bytes())).await.ok();
                error.send(&mut Chunk::of(&port.to_le_bytes())).await.ok();
                all.push(Forward { port: *port, input, output: data, error: ErrorOutput(error), half_close: false });
            }
            all.reverse();
            Forwards { session, kind: Kind::Channels(all) }
        }
        Transport::Spdy | Transport::Tunnel => {
            let policy = Policy { admits: |headers| read(headers).is_some(), streams_max: STREAMS_MAX };
            let tunnel = protocol.transport == Transport::Tunnel;
            let (session, opened) = Session::spdy(io, tunnel, times.idle, policy);
            Forwards { session, kind: Kind::Streams { opened, pairs: HashMap::new(), creation: times.creation } }
        }
    }
}

/// Returns the port, and whether it is the data stream.
fn read(headers: &Headers) -> Option<(u16, bool)> {
    let port = headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    match headers.get("streamtype")?.as_str() {
        "data" => Some((port, true)),
        "error" => Some((port, false)),
        _ => None,
    }
}

/// Returns the request id of both streams of a pair. Old clients send none: theirs is the number of
/// the error stream, which they open first.
fn request(stream: &Opened, is_data: bool) -> String {
    match stream.headers.get("requestid") {
        Some(id) if !id.is_empty() => id.clone(),
        _ => stream.id.saturating_sub(if is_data { 2 } else { 0 }).to_string(),
    }
}

impl Forwards {
    /// Returns when the client has disconnected.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        self.session.gone()
    }

    /// Returns the next connection to open; `None` if no more will follow. Cancel-safe.
    pub async fn next(&mut self) -> Option<Forward> {
        let gone = self.session.gone();
        match &mut self.kind {
            Kind::Channels(all) => all.pop(),
            Kind::Streams { opened, pairs, creation } => tokio::select! {
                biased;
                forward = pair(opened, pairs, *creation) => forward,
                () = gone => None,
            },
        }
    }

    /// Sends the end to the client and closes the connection.
    pub async fn end(self) {
        let Self { session, kind } = self;
        drop(kind);
        session.close().await;
    }
}

async fn pair(
    opened: &mut mpsc::Receiver<Opened>,
    pairs: &mut HashMap<String, Half>,
    creation: Duration,
) -> Option<Forward> {
    loop {
        let until = pairs.values().map(|half| half.until).min();
        let late = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let stream = tokio::select! {
            stream = opened.recv() => stream?,
            () = late => {
                // Dropped streams are reset.
                pairs.retain(|_, half| half.until > Instant::now());
                continue;
            }
        };
        let Some((port, is_data)) = read(&stream.headers) else { continue };
        let request = request(&stream, is_data);
        match pairs.remove(&request) {
            Some(half) if half.is_data != is_data && half.port == port => {
                let (data, error) = if is_data { (stream, half.stream) } else { (half.stream, stream) };
                let Opened { input, output, .. } = data;
                return Some(Forward { port, input, output, error: ErrorOutput(error.output), half_close: true });
            }
            // Two streams of the same type: both are reset.
            Some(_) => {}
            None => {
                let half = Half { port, stream, is_data, until: Instant::now() + creation };
                pairs.insert(request, half);
            }
        }
    }
}
