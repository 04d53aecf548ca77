//! Exec and attach: a few named streams, and one for the outcome.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::channels::Channels;
use crate::chunk::Chunk;
use crate::http_upgrade::{RemoteCommandProtocol, Transport};
use crate::recv_buffer::RecvStream;
use crate::send_stream::{SendStream, SendTarget};
use crate::session::{Io, Opened, Policy, Session};
use crate::spdy::Headers;
use crate::status::Outcome;
use crate::terminal_size::Resizes;

const NAME: &str = "streamtype";
const NAMES: [&str; 5] = ["stdin", "stdout", "stderr", "error", "resize"];

/// The requested streams, in addition to the error stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StdioOptions {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Timeouts of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Maximum time without any traffic.
    pub idle: Duration,
    /// Maximum time until the client has opened its streams.
    pub creation: Duration,
}

/// The client did not open its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("the client of an exec or attach disconnected before opening its streams")]
    Gone,
    #[error("the client of an exec or attach did not open its streams within stream.creation_timeout")]
    Late,
}

/// A connected client.
#[derive(Debug)]
pub struct RemoteCommand {
    pub streams: ClientStreams,
    pub talk: StatusChannel,
}

/// The streams of a connected client, as its [`StdioOptions`] request.
#[derive(Debug)]
pub struct ClientStreams {
    pub stdin: Option<RecvStream>,
    pub stdout: Option<SendStream>,
    pub stderr: Option<SendStream>,
    /// The sizes of the client's terminal.
    pub resizes: Option<Resizes>,
}

/// The part of a client connection besides its streams.
#[derive(Debug)]
pub struct StatusChannel {
    session: Session,
    error: SendStream,
    json: bool,
    /// Unused directions of streams, which are closed at the end.
    silent: Vec<SendStream>,
    /// Additional streams of the client; dropping this resets them.
    _opened: Option<mpsc::Receiver<Opened>>,
}

impl StatusChannel {
    /// Returns when the client has disconnected.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        self.session.gone()
    }

    /// Sends the outcome to the client and closes the connection. Its streams must be finished
    /// before.
    pub async fn end(self, outcome: &Outcome) {
        let Self { session, mut error, json, silent, _opened } = self;
        let words = if json { outcome.json() } else { outcome.text() };
        if !words.is_empty() && error.send(&mut Chunk::of(words.as_bytes())).await.is_err() {
            return;
        }
        error.finish().await;
        for output in silent {
            output.finish().await;
        }
        session.close().await;
    }
}

/// Starts exec or attach on an upgraded connection.
pub async fn open(
    io: Io,
    protocol: RemoteCommandProtocol,
    wants: StdioOptions,
    times: Timeouts,
) -> Result<RemoteCommand, OpenError> {
    match protocol.transport {
        Transport::Channels(_) => Ok(over_channels(io, protocol, wants, times.idle)),
        Transport::Spdy | Transport::Tunnel => over_spdy(io, protocol, wants, times).await,
    }
}

fn over_channels(io: Io, protocol: RemoteCommandProtocol, wants: StdioOptions, idle: Duration) -> RemoteCommand {
    let Transport::Channels(words) = protocol.transport else { unreachable!("checked by the caller") };
    let (mut stdin, mut resize) = (None, None);
    let session = Session::channels(io, idle, |budget| {
        let channels = Channels::new(&budget, &[wants.stdin, false, false, false, wants.tty], words);
        (stdin, resize) = (channels.input(0), channels.input(4));
        channels
    });
    let output = |number| SendStream::new(session.writer.clone(), SendTarget::Channel { number, base64: words.base64 });
    let (stdout, stderr) = (wants.stdout.then(|| output(1)), wants.stderr.then(|| output(2)));
    let error = output(3);
    // Some clients wait for a first message before they start.
    let lowest = if wants.stdout {
        1
    } else if wants.stderr {
        2
    } else {
        3
    };
    match words.base64 {
        true => session.writer.message(crate::ws::TEXT, &[b'0' + lowest]),
        false => session.writer.message(crate::ws::BINARY, &[lowest]),
    }
    let talk = StatusChannel { session, error, json: protocol.json, silent: Vec::new(), _opened: None };
    let streams = ClientStreams { stdin, stdout, stderr, resizes: resize.map(Resizes::new) };
    RemoteCommand { streams, talk }
}

fn is_known(headers: &Headers) -> bool {
    headers.get(NAME).is_some_and(|name| NAMES.contains(&name.as_str()))
}

async fn over_spdy(
    io: Io,
    protocol: RemoteCommandProtocol,
    wants: StdioOptions,
    times: Timeouts,
) -> Result<RemoteCommand, OpenError> {
    // One of each name, and as many for a client that opens them twice.
    let policy = Policy { admits: is_known, streams_max: NAMES.len() * 2 };
    let (session, mut opened) = Session::spdy(io, protocol.transport == Transport::Tunnel, times.idle, policy);
    let StdioOptions { stdin, stdout, stderr, tty } = wants;
    let wanted = [
        (stdin, "stdin"),
        (stdout, "stdout"),
        (stderr, "stderr"),
        (true, "error"),
        (tty && protocol.resizes, "resize"),
    ];
    let mut found: HashMap<String, (RecvStream, SendStream)> = HashMap::new();
    let collect = async {
        while wanted.iter().any(|(wanted, name)| *wanted && !found.contains_key(*name)) {
            let Opened { headers, input, output, .. } = opened.recv().await.ok_or(OpenError::Gone)?;
            // A second stream of the same name is dropped, which resets it.
            if let Some(name) = headers.get(NAME) {
                found.entry(name.clone()).or_insert((input, output));
            }
        }
        Ok(())
    };
    tokio::select! {
        biased;
        all = collect => all?,
        () = session.gone() => return Err(OpenError::Gone),
        () = tokio::time::sleep(times.creation) => return Err(OpenError::Late),
    }
    let mut silent = Vec::new();
    let mut read = |name: &str, wanted: bool| {
        let (input, output) = found.remove(name)?;
        silent.push(output);
        wanted.then_some(input)
    };
    let (stdin, resize) = (read("stdin", stdin), read("resize", tty));
    let mut write = |name: &str| found.remove(name).map(|(_, output)| output);
    let (stdout, stderr, error) =
        (write("stdout").filter(|_| stdout), write("stderr").filter(|_| stderr), write("error"));
    let talk = StatusChannel {
        session,
        error: error.ok_or(OpenError::Gone)?,
        json: protocol.json,
        silent,
        _opened: Some(opened),
    };
    let streams = ClientStreams { stdin, stdout, stderr, resizes: resize.map(Resizes::new) };
    Ok(RemoteCommand { streams, talk })
}
