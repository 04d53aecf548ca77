//! Clients that send the path of the socket as `:authority`. The frames are encoded here, because
//! no available client can be made to send them.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::harness::{Daemon, seconds};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A message without fields in gRPC's framing.
const EMPTY_MESSAGE: [u8; 5] = [0; 5];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// A POST over http, from the static table.
const POST: [u8; 2] = [0x83, 0x86];
/// The path of Version, added to the dynamic table.
const VERSION: &[u8] = b"\x44\x22/runtime.v1.RuntimeService/Version";
/// The other headers of gRPC, also in the dynamic table.
const GRPC: &[u8] = b"\x5f\x10application/grpc\x40\x02te\x08trailers";
/// The indexes of these headers from then on, with the authority between the path and the others.
const AGAIN: [u8; 6] = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];

/// The start of the first response of a connection: the dynamic table has the requested size.
const NO_TABLE: [u8; 1] = [0x20];
/// The status of a response, as an index of the static table: `:status: 200`.
const OK: u8 = 0x88;
/// `grpc-status: 0`, with name and value Huffman-coded.
const GRPC_OK: &[u8] = b"\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x81\x07";

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

struct Connection(UnixStream);

impl Connection {
    fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(seconds(20))).unwrap();
        let mut connection = Self(stream);
        connection.0.write_all(PREFACE).unwrap();
        // SETTINGS_HEADER_TABLE_SIZE 0: responses contain literals, each the same.
        connection.send(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]);
        connection
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat();
        self.0.write_all(&frame).unwrap();
    }

    fn receive(&mut self) -> Frame {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).unwrap();
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
        self.0.read_exact(&mut payload).unwrap();
        Frame { kind, flags, stream: u32::from_be_bytes(stream), payload }
    }

    /// Sends a request on a new stream, and returns the message of the response.
    fn call(&mut self, stream: u32, block: &[u8]) -> Vec<u8> {
        self.send(HEADERS, END_HEADERS, stream, block);
        self.send(DATA, END_STREAM, stream, &EMPTY_MESSAGE);
        let mut message = Vec::new();
        let mut begun = false;
        loop {
            let frame = self.receive();
            match (frame.kind, frame.flags) {
                (SETTINGS, ACK) | (PING, ACK) | (WINDOW_UPDATE, _) => {}
                (SETTINGS | PING, _) => {
                    let echo = if frame.kind == PING { frame.payload } else { Vec::new() };
                    self.send(frame.kind, ACK, 0, &echo);
                }
                (RST_STREAM, _) => panic!("stream {} was reset: {:?}", frame.stream, frame.payload),
                (GOAWAY, _) => panic!("the connection was given up: {:?}", frame.payload),
                (HEADERS, flags) if flags & END_STREAM == 0 => {
                    let block = frame.payload.strip_prefix(&NO_TABLE).unwrap_or(&frame.payload);
                    assert_eq!((frame.stream, block.first()), (stream, Some(&OK)));
                    begun = true;
                }
                (HEADERS, _) => {
                    let last = &frame.payload;
                    assert!(begun && last.windows(GRPC_OK.len()).any(|part| part == GRPC_OK), "{last:x?}");
                    return message;
                }
                (DATA, _) => message.extend(frame.payload),
                (other, _) => panic!("a frame of type {other} came"),
            }
        }
    }
}

#[test]
fn a_client_may_send_the_socket_path_as_authority() {
    let daemon = Daemon::start();
    for (way, host) in [
        ("plain", &b"\x41\x1b%2Frun%2Fcrisp%2Fcrisp.sock"[..]),
        ("plain, not encoded", b"\x41\x15/run/crisp/crisp.sock"),
        ("with its name spelled out", b"\x40\x0a:authority\x18run%2Fcrisp%2Fcrisp.sock"),
        ("Huffman", b"\x41\x94TXl\xb6\xa5E\x84\x96\x19\x15\xaa,$\xb0\xc8\xadt\x1c\x9d\x7f"),
        ("Huffman, not encoded", b"\x41\x8fb\xcbj`\x96\x19\x15\xb0K\x0c\x8a\xd7A\xc9\xd7"),
        ("an ordinary host", b"\x41\x09localhost"),
    ] {
        let mut connection = Connection::open(&daemon.env.socket());
        let first = connection.call(1, &[&POST, VERSION, host, GRPC].concat());
        assert!(first.windows(5).any(|part| part == b"crisp"), "{way}: {first:?}");
        // Both sides have the same table.
        for stream in [3, 5] {
            assert_eq!(connection.call(stream, &AGAIN), first, "{way}");
        }
    }
}

#[test]
fn an_invalid_authority_is_refused_without_effect_on_others() {
    let daemon = Daemon::start();
    let mut connection = Connection::open(&daemon.env.socket());
    connection.send(HEADERS, END_HEADERS, 1, &[&POST, VERSION, b"\x41\x03a b", GRPC].concat());
    let reset = std::iter::repeat_with(|| connection.receive()).find(|frame| frame.kind == RST_STREAM).unwrap();
    // PROTOCOL_ERROR
    assert_eq!((reset.stream, reset.payload.as_slice()), (1, &[0, 0, 0, 1][..]));
    // The new authority is the newest entry of the table.
    let better = [&[0x83, 0x86, 0xc1][..], b"\x41\x04/run", &[0xc0, 0xbf]].concat();
    assert!(!connection.call(3, &better).is_empty());
    assert!(daemon.client().pods().is_empty());
}
