//! Clients that take the path of the socket for the host: their frames are written by hand, since no client at hand
//! can be made to.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::harness::{Daemon, seconds};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A message without any field, as gRPC frames it.
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

/// A POST over http, which the fixed table has.
const POST: [u8; 2] = [0x83, 0x86];
/// The path of Version, to be kept in the dynamic table.
const VERSION: &[u8] = b"\x44\x22/runtime.v1.RuntimeService/Version";
/// What gRPC wants besides, in the dynamic table too.
const GRPC: &[u8] = b"\x5f\x10application/grpc\x40\x02te\x08trailers";
/// What all of this is from then on, with the host between the path and the rest.
const AGAIN: [u8; 6] = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];

/// How the first answer of a connection begins: the dynamic table is as small as was asked.
const NO_TABLE: [u8; 1] = [0x20];
/// How an answer goes on, as an index in the fixed table: `:status: 200`.
const OK: u8 = 0x88;
/// `grpc-status: 0`, with name and value in Huffman's code.
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
        // SETTINGS_HEADER_TABLE_SIZE 0: answers are spelled out, each the same.
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

    /// Asks on a new stream, and answers the message that comes back.
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
fn a_client_may_take_the_path_of_the_socket_for_the_host() {
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
        // Both sides agree on what the table has.
        for stream in [3, 5] {
            assert_eq!(connection.call(stream, &AGAIN), first, "{way}");
        }
    }
}

#[test]
fn a_host_that_is_none_for_other_reasons_is_refused_without_harm_to_others() {
    let daemon = Daemon::start();
    let mut connection = Connection::open(&daemon.env.socket());
    connection.send(HEADERS, END_HEADERS, 1, &[&POST, VERSION, b"\x41\x03a b", GRPC].concat());
    let reset = std::iter::repeat_with(|| connection.receive()).find(|frame| frame.kind == RST_STREAM).unwrap();
    // PROTOCOL_ERROR
    assert_eq!((reset.stream, reset.payload.as_slice()), (1, &[0, 0, 0, 1][..]));
    // The new host is the newest in the table, before all that was there.
    let better = [&[0x83, 0x86, 0xc1][..], b"\x41\x04/run", &[0xc0, 0xbf]].concat();
    assert!(!connection.call(3, &better).is_empty());
    assert!(daemon.client().pods().is_empty());
}
