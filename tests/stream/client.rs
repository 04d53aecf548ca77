//! A client of the streaming server that implements the framing and can violate the protocol.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use bytes::BytesMut;
use cri_api::v1;
use serde_json::Value;
use streaming::spdy::{Decoder, Encoder, Event, data_head};
use streaming::ws;

use crate::support::client::{Asked, Client};
use crate::support::harness::seconds;

/// The streams of an exec or attach.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Streams {
    pub(crate) stdin: bool,
    pub(crate) stderr: bool,
    pub(crate) tty: bool,
}

pub(crate) const OUTPUT: Streams = Streams { stdin: false, stderr: true, tty: false };
pub(crate) const ALL: Streams = Streams { stdin: true, stderr: true, tty: false };
pub(crate) const TTY: Streams = Streams { stdin: true, stderr: false, tty: true };

impl Client {
    pub(crate) fn try_exec_url(&self, id: &str, cmd: &[&str], streams: Streams) -> Asked<String> {
        let Streams { stdin, stderr, tty } = streams;
        let cmd = cmd.iter().map(|word| (*word).to_owned()).collect();
        let request = v1::ExecRequest { container_id: id.to_owned(), cmd, tty, stdin, stdout: true, stderr };
        self.call(|mut c| async move { c.exec(request).await }).map(|answer| answer.url)
    }

    pub(crate) fn exec_url(&self, id: &str, cmd: &[&str], streams: Streams) -> String {
        self.try_exec_url(id, cmd, streams).unwrap()
    }

    pub(crate) fn try_attach_url(&self, id: &str, streams: Streams) -> Asked<String> {
        let Streams { stdin, stderr, tty } = streams;
        let request = v1::AttachRequest { container_id: id.to_owned(), stdin, tty, stdout: true, stderr };
        self.call(|mut c| async move { c.attach(request).await }).map(|answer| answer.url)
    }

    pub(crate) fn attach_url(&self, id: &str, streams: Streams) -> String {
        self.try_attach_url(id, streams).unwrap()
    }

    pub(crate) fn try_forward_url(&self, pod: &str, port: &[i32]) -> Asked<String> {
        let request = v1::PortForwardRequest { pod_sandbox_id: pod.to_owned(), port: port.to_vec() };
        self.call(|mut c| async move { c.port_forward(request).await }).map(|answer| answer.url)
    }

    pub(crate) fn forward_url(&self, pod: &str) -> String {
        self.try_forward_url(pod, &[]).unwrap()
    }
}

/// Returns host and path of a URL.
pub(crate) fn split(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("{url}"));
    let slash = rest.find('/').unwrap();
    rest.split_at(slash)
}

/// Sends a request, and returns the connection with the head of the response and the bytes after
/// it.
pub(crate) fn http_request(url: &str, method: &str, headers: &str) -> (TcpStream, String, Vec<u8>) {
    let (host, path) = split(url);
    let mut socket = TcpStream::connect(host).unwrap();
    socket.set_read_timeout(Some(seconds(20))).unwrap();
    socket.set_nodelay(true).unwrap();
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n").unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    (socket, String::from_utf8(head).unwrap(), Vec::new())
}

pub(crate) const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";

/// A connection that was upgraded to SPDY.
#[derive(Debug)]
pub(crate) struct Spdy {
    pub(crate) socket: TcpStream,
    encoder: Encoder,
    decoder: Decoder,
    buffer: BytesMut,
    last: u32,
}

impl Spdy {
    pub(crate) fn connect(url: &str, protocol: &str) -> Self {
        let headers = format!("{UPGRADE}X-Stream-Protocol-Version: {protocol}\r\n");
        let (socket, head, _) = http_request(url, "POST", &headers);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.to_lowercase().contains(&format!("x-stream-protocol-version: {protocol}\r\n")), "{head}");
        let (encoder, decoder) = (Encoder::default(), Decoder::default());
        Self { socket, encoder, decoder, buffer: BytesMut::new(), last: 0 }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    pub(crate) fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        self.last += if self.last == 0 { 1 } else { 2 };
        let mut bytes = Vec::new();
        self.encoder.open(self.last, headers, false, &mut bytes);
        self.send(&bytes).unwrap();
        self.last
    }

    pub(crate) fn write(&mut self, stream: u32, bytes: &[u8]) -> io::Result<()> {
        let head = data_head(stream, false, bytes.len());
        self.send(&[&head, bytes].concat())
    }

    pub(crate) fn finish(&mut self, stream: u32) {
        self.send(&data_head(stream, true, 0)).unwrap();
    }

    pub(crate) fn reset(&mut self, stream: u32) {
        let mut bytes = Vec::new();
        Encoder::reset(stream, streaming::spdy::Reason::Cancel, &mut bytes);
        self.send(&bytes).unwrap();
    }

    /// Returns the next frame; `None` at the end or after an error.
    pub(crate) fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.decoder.next(&mut self.buffer).unwrap() {
                return Some(event);
            }
            let mut bytes = [0; 64 << 10];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(n) => self.buffer.extend_from_slice(&bytes[..n]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("waiting for the server: {error}"),
            }
        }
    }
}

/// A client of exec or attach.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) spdy: Spdy,
    ids: BTreeMap<&'static str, u32>,
    got: BTreeMap<u32, Vec<u8>>,
    over: bool,
}

/// The result of an exec or attach.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) error: String,
}

impl Ran {
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.error).unwrap_or_else(|e| panic!("{e}: {:?}", self.error))
    }

    /// Returns the exit code in the status.
    pub(crate) fn code(&self) -> i32 {
        let status = self.status();
        match status["status"].as_str() {
            Some("Success") => 0,
            _ => status["details"]["causes"][0]["message"]
                .as_str()
                .unwrap_or_else(|| panic!("{status}"))
                .parse()
                .unwrap(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

impl Session {
    pub(crate) fn open(url: &str, streams: Streams) -> Self {
        Self::open_as(url, streams, "v4.channel.k8s.io")
    }

    pub(crate) fn open_as(url: &str, streams: Streams, version: &str) -> Self {
        let mut spdy = Spdy::connect(url, version);
        let resizes = streams.tty && !version.starts_with("v2") && !version.starts_with("ch");
        let names = [
            (true, "error"),
            (streams.stdin, "stdin"),
            (true, "stdout"),
            (streams.stderr, "stderr"),
            (resizes, "resize"),
        ];
        let names = names.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name);
        let ids = names.map(|name| (name, spdy.open(&[("streamtype", name)]))).collect();
        Self { spdy, ids, got: BTreeMap::new(), over: false }
    }

    pub(crate) fn id(&self, name: &str) -> u32 {
        self.ids[name]
    }

    pub(crate) fn type_in(&mut self, text: &[u8]) {
        let id = self.id("stdin");
        self.spdy.write(id, text).unwrap();
    }

    pub(crate) fn close_stdin(&mut self) {
        let id = self.id("stdin");
        self.spdy.finish(id);
    }

    pub(crate) fn resize(&mut self, width: u16, height: u16) {
        let id = self.id("resize");
        self.spdy.write(id, format!("{{\"Width\":{width},\"Height\":{height}}}").as_bytes()).unwrap();
    }

    fn step(&mut self) {
        match self.spdy.next() {
            Some(Event::Data { stream, bytes, .. }) => self.got.entry(stream).or_default().extend_from_slice(&bytes),
            Some(Event::Reset { stream, status }) => panic!("stream {stream} was reset: {status}"),
            Some(_) => {}
            None => self.over = true,
        }
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(self.got.get(&self.id("stdout")).map(Vec::as_slice).unwrap_or_default()).into_owned()
    }

    /// Waits until this was received.
    pub(crate) fn wait_for(&mut self, text: &str) {
        while !self.stdout().contains(text) {
            assert!(!self.over, "ended without {text:?}: {:?}", self.stdout());
            self.step();
        }
    }

    /// Receives everything to the end.
    pub(crate) fn finish(mut self) -> Ran {
        while !self.over {
            self.step();
        }
        let mut take = |name: &str| self.ids.get(name).and_then(|id| self.got.remove(id)).unwrap_or_default();
        let (stdout, stderr, error) = (take("stdout"), take("stderr"), take("error"));
        Ran { stdout, stderr, error: String::from_utf8(error).unwrap() }
    }
}

/// Runs a command to its end.
pub(crate) fn run(url: &str, streams: Streams, stdin: &[u8]) -> Ran {
    let mut session = Session::open(url, streams);
    if streams.stdin {
        session.type_in(stdin);
        session.close_stdin();
    }
    session.finish()
}

/// A connection that was upgraded to WebSocket.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(crate) socket: TcpStream,
    decoder: ws::Decoder,
    buffer: BytesMut,
}

impl Channels {
    pub(crate) fn connect(url: &str, protocol: &str) -> Self {
        let headers = format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n"
        );
        let (socket, head, _) = http_request(url, "GET", &headers);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        assert!(head.contains(protocol), "{head}");
        Self { socket, decoder: ws::Decoder::of_server(), buffer: BytesMut::new() }
    }

    pub(crate) fn send(&mut self, channel: u8, bytes: &[u8]) {
        self.frame(ws::BINARY, &[&[channel], bytes].concat());
    }

    pub(crate) fn frame(&mut self, kind: u8, bytes: &[u8]) {
        let mut frame = Vec::new();
        ws::masked_frame(kind, bytes, [7, 1, 200, 9], &mut frame);
        self.socket.write_all(&frame).unwrap();
    }

    pub(crate) fn next(&mut self) -> Option<ws::Event> {
        loop {
            if let Some(event) = self.decoder.next(&mut self.buffer).unwrap() {
                return Some(event);
            }
            let mut bytes = [0; 64 << 10];
            match self.socket.read(&mut bytes).unwrap() {
                0 => return None,
                n => self.buffer.extend_from_slice(&bytes[..n]),
            }
        }
    }

    /// Returns the bytes of each channel, up to the close message.
    pub(crate) fn finish(mut self) -> BTreeMap<u8, Vec<u8>> {
        let (mut got, mut channel) = (BTreeMap::<u8, Vec<u8>>::new(), None);
        while let Some(event) = self.next() {
            match event {
                ws::Event::Part { bytes, first, .. } => {
                    let skip = usize::from(first && !bytes.is_empty());
                    if first {
                        channel = bytes.first().copied();
                    }
                    got.entry(channel.unwrap()).or_default().extend_from_slice(&bytes[skip..]);
                }
                ws::Event::Close => return got,
                ws::Event::Ping(_) | ws::Event::Pong => {}
            }
        }
        panic!("no close message: {got:?}")
    }
}
