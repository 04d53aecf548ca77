//! The client side of exec and attach, as in kubectl: `terminal spdy|websocket URL`, with a terminal as standard input.
//!
//! Sets the terminal to raw mode, so that every key is sent to the server; sends its size at first
//! and after each change; exits with the code of the command. Tests run this program on a pseudo
//! terminal, because a test process has none.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};
use streaming::spdy::{self, data_head};
use streaming::ws;
use tokio::signal::unix::{SignalKind, signal};

/// Channel numbers of the streams.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const NAMES: [(u8, &str); 4] = [(ERROR, "error"), (STDIN, "stdin"), (STDOUT, "stdout"), (RESIZE, "resize")];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [transport, url] = arguments.as_slice() else { panic!("usage: terminal spdy|websocket URL") };
    let mut connection = Connection::open(transport == "websocket", url);
    let keyboard = io::stdin();
    let as_it_was = tcgetattr(&keyboard).unwrap();
    let mut raw = as_it_was.clone();
    raw.make_raw();
    tcsetattr(&keyboard, OptionalActions::Now, &raw).unwrap();
    let writer = Arc::new(Mutex::new(connection.writer()));
    std::thread::spawn({
        let writer = Arc::clone(&writer);
        move || pass_keys(&writer)
    });
    std::thread::spawn(move || pass_sizes(&writer));
    let status = show(&mut connection);
    tcsetattr(&keyboard, OptionalActions::Now, &as_it_was).unwrap();
    ExitCode::from(code(&status))
}

fn pass_keys(writer: &Mutex<Writer>) {
    let mut keys = [0; 1024];
    while let Ok(count) = io::stdin().read(&mut keys)
        && count > 0
    {
        writer.lock().unwrap().send(STDIN, &keys[..count]);
    }
}

/// Sends the terminal's size, and again after each SIGWINCH.
fn pass_sizes(writer: &Mutex<Writer>) {
    let clock = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    clock.block_on(async {
        let mut changes = signal(SignalKind::window_change()).unwrap();
        loop {
            let size = tcgetwinsize(io::stdin()).unwrap();
            let words = format!("{{\"Width\":{},\"Height\":{}}}", size.ws_col, size.ws_row);
            writer.lock().unwrap().send(RESIZE, words.as_bytes());
            changes.recv().await.unwrap();
        }
    });
}

/// Prints all output until EOF, and returns the content of the error stream.
fn show(connection: &mut Connection) -> Vec<u8> {
    let mut status = Vec::new();
    while let Some((stream, bytes)) = connection.next() {
        match stream {
            STDOUT => {
                io::stdout().write_all(&bytes).unwrap();
                io::stdout().flush().unwrap();
            }
            ERROR => status.extend(bytes),
            _ => {}
        }
    }
    status
}

/// Returns the exit code in a status; 255 if it has none.
fn code(status: &[u8]) -> u8 {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap_or_default();
    match status["status"].as_str() {
        Some("Success") => 0,
        _ => status["details"]["causes"][0]["message"].as_str().and_then(|code| code.parse().ok()).unwrap_or(255),
    }
}

struct Connection {
    socket: TcpStream,
    buffer: BytesMut,
    decoder: Decoder,
}

enum Decoder {
    Spdy(spdy::Decoder),
    Ws {
        decoder: ws::Decoder,
        /// Channel of the current fragmented message.
        channel: u8,
    },
}

struct Writer {
    socket: TcpStream,
    websocket: bool,
}

/// Returns the stream ID of a channel: streams are opened in the order of `NAMES`, with odd IDs.
fn id_of(channel: u8) -> u32 {
    let at = NAMES.iter().position(|(number, _)| *number == channel).unwrap();
    u32::try_from(2 * at + 1).unwrap()
}

impl Connection {
    fn open(websocket: bool, url: &str) -> Self {
        let rest = url.strip_prefix("http://").unwrap();
        let (host, path) = rest.split_at(rest.find('/').unwrap());
        let mut socket = TcpStream::connect(host).unwrap();
        socket.set_nodelay(true).unwrap();
        let upgrade = if websocket {
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n"
        } else {
            "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
        };
        write!(socket, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n{upgrade}\r\n").unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).unwrap() == 1 {
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        let decoder = if websocket {
            Decoder::Ws { decoder: ws::Decoder::of_server(), channel: 0 }
        } else {
            let (mut encoder, mut frames) = (spdy::Encoder::default(), Vec::new());
            for (channel, name) in NAMES {
                encoder.open(id_of(channel), &[("streamtype", name)], false, &mut frames);
            }
            socket.write_all(&frames).unwrap();
            Decoder::Spdy(spdy::Decoder::default())
        };
        Self { socket, buffer: BytesMut::new(), decoder }
    }

    fn writer(&self) -> Writer {
        Writer { socket: self.socket.try_clone().unwrap(), websocket: matches!(self.decoder, Decoder::Ws { .. }) }
    }

    /// Returns the next bytes with their channel; None at EOF.
    fn next(&mut self) -> Option<(u8, bytes::Bytes)> {
        loop {
            match &mut self.decoder {
                Decoder::Spdy(decoder) => match decoder.next(&mut self.buffer).unwrap() {
                    Some(spdy::Event::Data { stream, bytes, .. }) => {
                        let channel = NAMES.iter().find(|(channel, _)| id_of(*channel) == stream);
                        return Some((channel.unwrap().0, bytes));
                    }
                    Some(_) => continue,
                    None => {}
                },
                Decoder::Ws { decoder, channel } => match decoder.next(&mut self.buffer).unwrap() {
                    Some(ws::Event::Part { mut bytes, first, .. }) => {
                        if first {
                            *channel = bytes.split_to(1)[0];
                        }
                        return Some((*channel, bytes));
                    }
                    Some(ws::Event::Close) => return None,
                    Some(_) => continue,
                    None => {}
                },
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(count) if count > 0 => self.buffer.extend_from_slice(&bytes[..count]),
                _ => return None,
            }
        }
    }
}

impl Writer {
    fn send(&mut self, channel: u8, bytes: &[u8]) {
        let mut frame = Vec::new();
        if self.websocket {
            ws::masked_frame(ws::BINARY, &[&[channel], bytes].concat(), [9, 8, 7, 6], &mut frame);
        } else {
            frame.extend(data_head(id_of(channel), false, bytes.len()));
            frame.extend(bytes);
        }
        // A closed connection is detected by the reading side.
        self.socket.write_all(&frame).ok();
    }
}
