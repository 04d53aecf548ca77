//! A client over an in-memory connection.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::remote_command::{RemoteCommand, StdioOptions, Timeouts};
use crate::spdy::{Decoder, Encoder, Event, data_head};
use crate::{Io, http_upgrade, remote_command, ws};

pub(super) const TIMES: Timeouts = Timeouts { idle: Duration::from_secs(60), creation: Duration::from_millis(200) };
pub(super) const ALL: StdioOptions = StdioOptions { stdin: true, stdout: true, stderr: true, tty: false };

/// The client side of a connection that was upgraded to SPDY.
pub(super) struct Client {
    pub(super) io: DuplexStream,
    pub(super) encoder: Encoder,
    pub(super) decoder: Decoder,
    pub(super) buffer: BytesMut,
}

pub(super) fn pair() -> (Client, Io) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (reader, writer) = tokio::io::split(theirs);
    let client = Client { io: ours, encoder: Encoder::default(), decoder: Decoder::default(), buffer: BytesMut::new() };
    (client, Io::new(reader, writer, b""))
}

impl Client {
    pub(super) async fn send(&mut self, frames: impl FnOnce(&mut Encoder, &mut Vec<u8>)) {
        let mut bytes = Vec::new();
        frames(&mut self.encoder, &mut bytes);
        self.io.write_all(&bytes).await.unwrap();
    }

    pub(super) async fn open(&mut self, id: u32, headers: &[(&str, &str)]) {
        self.send(|encoder, to| encoder.open(id, headers, false, to)).await;
    }

    pub(super) async fn write(&mut self, id: u32, bytes: &[u8], fin: bool) {
        self.io.write_all(&[&data_head(id, fin, bytes.len()), bytes].concat()).await.unwrap();
    }

    /// Returns the next frame; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.decoder.next(&mut self.buffer).unwrap() {
                return Some(event);
            }
            if self.io.read_buf(&mut self.buffer).await.unwrap() == 0 {
                return None;
            }
        }
    }

    /// Returns all frames until the end, except replies to opened streams and window updates.
    pub(super) async fn rest(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            match (all.last_mut(), event) {
                (_, Event::Replied { .. } | Event::Window { .. }) => {}
                // Data frames arrive in parts.
                (
                    Some(Event::Data { stream: before, bytes: have, fin: false }),
                    Event::Data { stream, bytes, fin: false },
                ) if *before == stream => *have = [&have[..], &bytes].concat().into(),
                (_, event) => all.push(event),
            }
        }
        all
    }
}

pub(super) fn data(stream: u32, bytes: &[u8], fin: bool) -> Event {
    Event::Data { stream, bytes: Bytes::copy_from_slice(bytes), fin }
}

pub(super) fn spdy(version: &'static str) -> http_upgrade::RemoteCommandProtocol {
    let mut headers = HeaderMap::new();
    headers.insert("connection", HeaderValue::from_static("Upgrade"));
    headers.insert("upgrade", HeaderValue::from_static("SPDY/3.1"));
    headers.insert("x-stream-protocol-version", HeaderValue::from_static(version));
    http_upgrade::remote_command(&Method::POST, &headers).unwrap().1
}

pub(super) fn websocket(protocol: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("connection", HeaderValue::from_static("Upgrade"));
    headers.insert("upgrade", HeaderValue::from_static("websocket"));
    headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
    headers.insert("sec-websocket-key", HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
    headers.insert("sec-websocket-protocol", HeaderValue::from_static(protocol));
    headers
}

pub(super) async fn open_all(client: &mut Client) {
    for (id, name) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")] {
        client.open(id, &[("streamtype", name)]).await;
    }
}

pub(super) async fn opened(io: Io, version: &'static str) -> RemoteCommand {
    remote_command::open(io, spdy(version), ALL, TIMES).await.unwrap()
}

pub(super) async fn send_frame(io: &mut DuplexStream, kind: u8, content: &[u8]) {
    let mut bytes = Vec::new();
    ws::masked_frame(kind, content, [1, 2, 3, 4], &mut bytes);
    io.write_all(&bytes).await.unwrap();
}

pub(super) async fn receive(io: &mut DuplexStream) -> Vec<Vec<u8>> {
    let (mut decoder, mut buffer, mut all) = (ws::Decoder::of_server(), BytesMut::new(), Vec::<Vec<u8>>::new());
    loop {
        while let Some(event) = decoder.next(&mut buffer).unwrap() {
            match event {
                ws::Event::Part { bytes, first, .. } if first || all.is_empty() => all.push(bytes.to_vec()),
                ws::Event::Part { bytes, .. } => all.last_mut().unwrap().extend_from_slice(&bytes),
                ws::Event::Ping(_) | ws::Event::Pong => {}
                ws::Event::Close => return all,
            }
        }
        if io.read_buf(&mut buffer).await.unwrap() == 0 {
            panic!("no close message");
        }
    }
}
