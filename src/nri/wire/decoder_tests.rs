use super::*;
use crate::wire::encode::frames;

fn message(service: Service, stream: u32, payload: &[u8]) -> Vec<u8> {
    let kind = if service == Service::Plugin { Kind::Response } else { Kind::Request };
    let (mut head, rest) = frames(service, kind, stream, payload.to_vec());
    head.extend(rest);
    head
}

fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&id.to_be_bytes()[..], &length.to_be_bytes(), payload].concat()
}

fn all(bytes: &[u8], size: usize) -> (Vec<Message>, Result<(), WireError>) {
    let (mut decoder, mut messages) = (Decoder::default(), Vec::new());
    for piece in bytes.chunks(size) {
        if let Err(error) = decoder.feed(piece, &mut |message| messages.push(message)) {
            return (messages, Err(error));
        }
    }
    assert_eq!(decoder.frame, None);
    (messages, Ok(()))
}

#[test]
fn messages_of_both_connections_are_assembled_from_pieces_of_any_size() {
    let bytes = [
        message(Service::Plugin, 1, b"one"),
        message(Service::Runtime, 3, &[9; 5000]),
        message(Service::Plugin, 3, b""),
        message(Service::Plugin, 5, b"five"),
    ]
    .concat();
    let (whole, end) = all(&bytes, bytes.len());
    assert_eq!(end, Ok(()));
    let seen: Vec<_> = whole.iter().map(|message| (message.service, message.stream, message.payload.len())).collect();
    let expected =
        [(Service::Plugin, 1, 3), (Service::Runtime, 3, 5000), (Service::Plugin, 3, 0), (Service::Plugin, 5, 4)];
    assert_eq!(seen, expected);
    for size in [1, 2, 7, 18, 4096] {
        assert_eq!(all(&bytes, size), (whole.clone(), Ok(())), "pieces of {size} bytes");
    }
}

#[test]
fn a_message_may_be_cut_into_frames_of_one_byte_between_frames_of_the_other_connection() {
    let one = message(Service::Plugin, 7, b"slow");
    let inner = [&one[8..18], &one[26..]].concat();
    let other = message(Service::Runtime, 9, b"x");
    let bytes: Vec<u8> = inner.iter().flat_map(|byte| [frame(1, &[*byte]), other.clone()].concat()).collect();
    let (messages, end) = all(&bytes, 5);
    assert_eq!(end, Ok(()));
    assert_eq!(messages.iter().filter(|message| message.service == Service::Runtime).count(), inner.len());
    let last = messages.iter().find(|message| message.service == Service::Plugin).unwrap();
    assert_eq!((last.stream, &last.payload[..]), (7, &b"slow"[..]));
}

#[test]
fn frames_of_unknown_connections_are_dropped() {
    let bytes = [frame(0, b"abc"), frame(3, &[0xff; 100]), frame(u32::MAX, b""), message(Service::Plugin, 1, b"ok")];
    let (messages, end) = all(&bytes.concat(), 11);
    assert_eq!((messages.len(), end), (1, Ok(())));
}

#[test]
fn a_frame_above_the_limit_is_refused_by_its_header() {
    for length in [u32::MAX, (4 << 20) + 11] {
        let bytes = [1u32.to_be_bytes(), length.to_be_bytes()].concat();
        assert_eq!(all(&bytes, 8), (Vec::new(), Err(WireError::Frame(length))));
    }
    let mut decoder = Decoder::default();
    let largest = [1u32.to_be_bytes(), ((4u32 << 20) + 10).to_be_bytes()].concat();
    decoder.feed(&largest, &mut |_| panic!("no message")).unwrap();
}

#[test]
fn a_message_above_the_limit_is_refused_by_its_header_and_reserves_no_memory() {
    let header = |length: u32| [&length.to_be_bytes()[..], &[0, 0, 0, 1, 2, 0]].concat();
    let (_, end) = all(&frame(1, &header((4 << 20) + 1)), 18);
    assert_eq!(end, Err(WireError::Message((4 << 20) + 1)));
    let mut decoder = Decoder::default();
    decoder.feed(&frame(1, &header(4 << 20)), &mut |_| panic!("no message")).unwrap();
    let (unfinished, _) = decoder.plugin.message.as_ref().unwrap();
    assert!(unfinished.payload.capacity() <= FIRST_CAPACITY);
    assert!(decoder.is_inside_message());
}

#[test]
fn types_that_the_connection_does_not_have_are_refused() {
    for (service, kinds) in [(Service::Plugin, [0u8, 1, 3, 255]), (Service::Runtime, [0, 2, 3, 255])] {
        for kind in kinds {
            let header = [0, 0, 0, 0, 0, 0, 0, 1, kind, 0];
            let (_, end) = all(&frame(service.id(), &header), 64);
            assert_eq!(end, Err(WireError::Kind { service, kind }));
        }
    }
}
