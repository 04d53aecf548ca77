use std::collections::VecDeque;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use super::*;

/// Bytes that gRPC for Python sends to call Version twice over `/run/crisp/crisp.sock`.
const PYTHON: &[u8] = b"\
    PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00$\x04\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x04\x00@\x00\x00\x00\
    \x05\x00@\x00\x00\x00\x06\x00\x00@\x00\xfe\x03\x00\x00\x00\x01\
    \x00\x00\x04\x08\x00\x00\x00\x00\x00\x00?\x00\x01\
    \x00\x00\x00\x04\x01\x00\x00\x00\x00\
    \x00\x00\xe8\x01\x04\x00\x00\x00\x01@\x05:path\"/runtime.v1.RuntimeService/Version@\n:authority\x18run%2Fcri\
    sp%2Fcrisp.sock\x83\x86@\x0ccontent-type\x10application/grpc@\x02te\x08trailers@\x14grpc-accept-encoding\x17\
    identity, deflate, gzip@\nuser-agent0grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)\
    \x00\x00\x04\x08\x00\x00\x00\x00\x01\x00\x00\x00\x05\
    \x00\x00\x05\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\
    \x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x05\
    \x00\x00\x08\x06\x00\x00\x00\x00\x00\x00\xcc?Fj:.\xc9\
    \x00\x00\x08\x01\x04\x00\x00\x00\x03\xc3\xc2\x83\x86\xc1\xc0\xbf\xbe\
    \x00\x00\x04\x08\x00\x00\x00\x00\x03\x00\x00\x00\x05\
    \x00\x00\x05\x00\x01\x00\x00\x00\x03\x00\x00\x00\x00\x00\
    \x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x1e";
/// Bytes that curl sends for such a call with `%2Frun%2Fcrisp%2Fcrisp.sock` as the host, in Huffman
/// code.
const CURL: &[u8] = b"\
    PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00d\x00\x04\x02\x00\x00\x00\x00\x02\x00\x00\x00\x00\
    \x00\x00\x04\x08\x00\x00\x00\x00\x00\x01\xff\x00\x01\
    \x00\x00^\x01\x04\x00\x00\x00\x01\x83\x04\x99b\xcbjI\xa9*\xfd\xc2\xbe\xdbjI\xa9.\xe2\xd9\xdc\xc4+\x1cKb\x0cz\
    \xbf\x86A\x94TXl\xb6\xa5E\x84\x96\x19\x15\xaa,$\xb0\xc8\xadt\x1c\x9d\x7fz\x88%\xb6P\xc3\xab\xbc\xf2\xe1S\x03\
    */*_\x8b\x1du\xd0b\r&=LMed@\x02te\x86M\x835\x05\xb1\x1f\x0f\r\x015\
    \x00\x00\x05\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\
    \x00\x00\x00\x04\x01\x00\x00\x00\x00";
/// The host in `CURL`, which becomes `-2Frun-2Fcrisp-2Fcrisp.sock`.
const CURL_HOST: &[u8] = b"TXl\xb6\xa5E\x84\x96\x19\x15\xaa,$\xb0\xc8\xadt\x1c\x9d\x7f";
const CURL_MENDED: &[u8] = b"XXl\xb6\xa5\x85\x84\x96\x19\x15\xac,$\xb0\xc8\xadt\x1c\x9d\x7f";

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Returns `bytes` with their only `old` replaced by `new`.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let found: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(old)).collect();
    assert_eq!(found.len(), 1);
    [&bytes[..found[0]], new, &bytes[found[0] + old.len()..]].concat()
}

/// Returns the two connections, and their expected output.
fn captured() -> [(&'static [u8], Vec<u8>); 2] {
    let python = replaced(PYTHON, b"run%2Fcrisp%2Fcrisp.sock", b"run-2Fcrisp-2Fcrisp.sock");
    [(PYTHON, python), (CURL, replaced(CURL, CURL_HOST, CURL_MENDED))]
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// Returns a connection with these frames.
fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &frames.concat()].concat()
}

/// A stream that returns its bytes in pieces, with a pause before each.
#[derive(Debug)]
struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    paused: bool,
}

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.paused = !self.paused;
        if self.paused {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(piece) = self.pieces.front_mut() else { return Poll::Ready(Ok(())) };
        let length = piece.len().min(into.remaining());
        into.put_slice(&piece.drain(..length).collect::<Vec<_>>());
        if piece.is_empty() {
            self.pieces.pop_front();
        }
        Poll::Ready(Ok(()))
    }
}

fn clock() -> Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// Returns the bytes read with a buffer of `room` bytes.
fn read(clock: &Runtime, pieces: impl IntoIterator<Item = Vec<u8>>, room: usize) -> Vec<u8> {
    // An empty piece would be the end.
    let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
    let mut stream = AuthorityRewriter::new(Pieces { pieces, paused: false });
    let mut all = Vec::new();
    let mut buffer = vec![0; room];
    clock.block_on(async {
        loop {
            match stream.read(&mut buffer).await.unwrap() {
                0 => return all,
                length => all.extend_from_slice(&buffer[..length]),
            }
        }
    })
}

/// Returns the output when all bytes arrive at once.
fn passed(bytes: &[u8]) -> Vec<u8> {
    read(&clock(), [bytes.to_vec()], bytes.len().max(1))
}

#[test]
fn bytes_of_real_clients_are_rewritten_wherever_they_are_split() {
    let clock = clock();
    for (bytes, expected) in captured() {
        for at in 0..=bytes.len() {
            let (begin, end) = bytes.split_at(at);
            assert_eq!(read(&clock, [begin.to_vec(), end.to_vec()], 8192), expected, "at {at}");
        }
    }
}

#[test]
fn bytes_of_real_clients_are_rewritten_in_pieces_and_buffers_of_every_size() {
    let clock = clock();
    for (bytes, expected) in captured() {
        for size in 1..=bytes.len() {
            let pieces = || bytes.chunks(size).map(<[u8]>::to_vec);
            assert_eq!(read(&clock, pieces(), 8192), expected, "in pieces of {size}");
            assert_eq!(read(&clock, [bytes.to_vec()], size), expected, "with room for {size}");
            assert_eq!(read(&clock, pieces(), 1), expected, "in pieces of {size} with room for one");
        }
    }
}

#[test]
fn rewriting_twice_changes_nothing() {
    for (_, expected) in captured() {
        assert_eq!(passed(&expected), expected);
    }
}

#[test]
fn a_connection_that_is_not_http2_passes_unchanged() {
    let request = frame(1, 4, b"\x41\x01/");
    for begin in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", &[PREFACE, PREFACE].concat()]
    {
        let bytes = [begin, &request].concat();
        assert_eq!(passed(&bytes), bytes);
    }
    assert_eq!(passed(&PREFACE[..10]), &PREFACE[..10]);
}

#[test]
fn padding_and_priority_are_not_parsed_as_fields() {
    let pad = b"\x41\x01/";
    for (flags, payload, mended) in [
        (0x04, b"\x41\x01/".to_vec(), b"\x41\x01-".to_vec()),
        (0x0c, [b"\x03\x41\x01/", &pad[..]].concat(), [b"\x03\x41\x01-", &pad[..]].concat()),
        (0x24, b"\x41\x01/\x41\x01\x41\x01/".to_vec(), b"\x41\x01/\x41\x01\x41\x01-".to_vec()),
        (0x2c, b"\x02\x41\x01/\x41\x01\x41\x01//\x41".to_vec(), b"\x02\x41\x01/\x41\x01\x41\x01-/\x41".to_vec()),
    ] {
        let bytes = connection(&[frame(1, flags, &payload), frame(1, flags, &payload)]);
        assert_eq!(passed(&bytes), connection(&[frame(1, flags, &mended), frame(1, flags, &mended)]), "{flags:x}");
    }
}

#[test]
fn frames_with_invalid_lengths_pass_unchanged() {
    let after = frame(1, 4, b"\x41\x01/");
    for (flags, payload) in [
        (0x0c, &b""[..]),
        (0x0c, b"\x04\x41\x01/"),
        (0x0c, b"\xff\x41\x01/"),
        (0x24, b"\x41\x01/"),
        (0x2c, b"\x00"),
        (0x04, b""),
        (0x04, b"\x41\x02/"),
    ] {
        let broken = frame(1, flags, payload);
        let bytes = connection(&[broken.clone(), after.clone()]);
        assert_eq!(passed(&bytes), connection(&[broken, frame(1, 4, b"\x41\x01-")]), "{payload:?}");
    }
}

#[test]
fn other_frames_pass_unchanged() {
    for kind in (0..=255).filter(|&kind| kind != 1) {
        let bytes = connection(&[
            frame(kind, 4, b"\x41\x01/"),
            frame(kind, 0, b""),
            frame(kind, 0xff, &frame(1, 4, b"\x41\x01/")),
        ]);
        assert_eq!(passed(&bytes), bytes, "{kind}");
    }
}

#[test]
fn a_request_with_a_continuation_is_rewritten_in_its_first_frame() {
    let begin = |host: &[u8]| frame(1, 0, &[b"\x83\x41\x02", host, b"\x40\x05x-"].concat());
    let end = frame(9, 4, b"yz%\x41\x01/");
    assert_eq!(passed(&connection(&[begin(b"/%"), end.clone()])), connection(&[begin(b"--"), end]));
}

#[test]
fn the_longest_frame_is_rewritten_and_a_longer_one_is_not_held() {
    let clock = clock();
    let block = |host: &[u8], length: usize| [b"\x41\x03", host, &[0x82; 1 << 15][..length - 5]].concat();
    let bytes = connection(&[frame(1, 4, &block(b"/%/", 1 << 14))]);
    let pieces = bytes.chunks(1000).map(<[u8]>::to_vec);
    assert_eq!(read(&clock, pieces, 8192), connection(&[frame(1, 4, &block(b"---", 1 << 14))]));

    let longer = frame(1, 4, &block(b"/%/", (1 << 14) + 1));
    let bytes = connection(&[longer.clone(), frame(1, 4, b"\x41\x01/")]);
    assert_eq!(passed(&bytes), connection(&[longer, frame(1, 4, b"\x41\x01-")]));
    let mut begin = bytes[..1000].to_vec();
    assert_eq!(Frames::new().pass(&mut begin), 1000);
}

#[test]
fn a_connection_that_ends_within_a_request_returns_all_its_bytes() {
    let clock = clock();
    let bytes = connection(&[frame(1, 4, b"\x41\x01/\x82\x83")]);
    for length in PREFACE.len()..bytes.len() {
        for room in [1, 8192] {
            assert_eq!(read(&clock, [bytes[..length].to_vec()], room), &bytes[..length], "{length}");
        }
    }
}

#[tokio::test]
async fn earlier_content_of_the_read_buffer_is_kept() {
    let bytes = connection(&[frame(1, 4, b"\x41\x01/")]);
    let mut stream = AuthorityRewriter::new(bytes.as_slice());
    let mut all = b"before".to_vec();
    stream.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, [b"before", connection(&[frame(1, 4, b"\x41\x01-")]).as_slice()].concat());
}

#[tokio::test]
async fn writes_and_connect_info_are_passed_to_the_stream() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut stream = AuthorityRewriter::new(ours);
    assert!(stream.is_write_vectored());
    assert_eq!(stream.connect_info().peer_cred.unwrap().uid(), rustix::process::geteuid().as_raw());
    stream.write_all(b"one ").await.unwrap();
    assert_eq!(stream.write_vectored(&[IoSlice::new(b"/two"), IoSlice::new(b"%")]).await.unwrap(), 5);
    stream.flush().await.unwrap();
    stream.shutdown().await.unwrap();
    let mut all = Vec::new();
    theirs.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"one /two%");
    theirs.write_all(&connection(&[frame(1, 4, b"\x41\x01/")])).await.unwrap();
    drop(theirs);
    all.clear();
    stream.read_to_end(&mut all).await.unwrap();
    assert!(all.ends_with(b"\x41\x01-"));
}

fn bytes(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), length)
}

/// Returns a frame of any type, often with the payload of a request, and sometimes with a wrong
/// length.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let request = proptest::sample::select(vec![&b"\x41\x02/%"[..], b"\x01\x81\x57", b"\x00\x0a:authority\x01/"]);
    let payload = (bytes(0..20), request, bytes(0..20))
        .prop_map(|(before, request, after)| [before, request.to_vec(), after].concat());
    let payload = prop_oneof![payload, bytes(0..300)];
    let kind = prop_oneof![Just(1), 0..12_u8];
    (kind, any::<u8>(), payload, prop_oneof![9 => Just(None), 1 => any::<u16>().prop_map(Some)]).prop_map(
        |(kind, flags, payload, lie)| {
            let mut frame = frame(kind, flags, &payload);
            if let Some(length) = lie {
                frame[1..3].copy_from_slice(&length.to_be_bytes());
            }
            frame
        },
    )
}

/// Splits `bytes` into pieces of these sizes, repeated.
fn cut(bytes: &[u8], sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        let (piece, after) = rest.split_at(rest.len().min(*size));
        pieces.push(piece.to_vec());
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splitting_and_repetition_do_not_change_the_result(
        preface in prop_oneof![9 => Just(PREFACE.to_vec()), 1 => bytes(0..30)],
        frames in proptest::collection::vec(any_frame(), 0..8),
        sizes in proptest::collection::vec(1..400_usize, 1..6),
        room in 1..600_usize,
    ) {
        let bytes = [preface, frames.concat()].concat();
        let clock = clock();
        let whole = passed(&bytes);
        prop_assert_eq!(whole.len(), bytes.len());
        // The split does not change the result, and rewriting is idempotent.
        prop_assert_eq!(&read(&clock, cut(&bytes, &sizes), room), &whole);
        prop_assert_eq!(&passed(&whole), &whole);
    }

    #[test]
    fn only_requests_are_changed(
        frames in proptest::collection::vec((0..12_u8, any::<u8>(), bytes(0..300)), 0..8),
    ) {
        let written: Vec<Vec<u8>> = frames.iter().map(|(kind, flags, payload)| frame(*kind, *flags, payload)).collect();
        let mut rest = &passed(&connection(&written))[PREFACE.len()..];
        for (before, (kind, ..)) in written.iter().zip(&frames) {
            let (after, others) = rest.split_at(before.len());
            rest = others;
            prop_assert_eq!(&after[..9], &before[..9]);
            prop_assert!(*kind == 1 || after == before);
        }
    }
}
