//! Bytes sent by a real client: crictl's library against crisp, recorded on the wire. They are
//! seeds of the fuzzer, too.

use bytes::BytesMut;

use crate::spdy::{Decoder, Event, Headers};
use crate::ws;

const EXEC: &[u8] = include_bytes!("../../../tests/fuzz/seeds/spdy/client-exec");
const EXEC_TERMINAL: &[u8] = include_bytes!("../../../tests/fuzz/seeds/spdy/client-exec-terminal");
const ATTACH: &[u8] = include_bytes!("../../../tests/fuzz/seeds/spdy/client-attach");
const FORWARD: &[u8] = include_bytes!("../../../tests/fuzz/seeds/spdy/client-forward");
const WS_ATTACH: &[u8] = include_bytes!("../../../tests/fuzz/seeds/websocket/client-attach");
const WS_FORWARD: &[u8] = include_bytes!("../../../tests/fuzz/seeds/websocket/client-forward-tunnel");

fn events(bytes: &[u8]) -> Vec<Event> {
    let (mut decoder, mut buffer, mut events) = (Decoder::default(), BytesMut::from(bytes), Vec::new());
    while let Some(event) = decoder.next(&mut buffer).unwrap() {
        events.push(event);
    }
    // The last frame of a client may be truncated.
    assert!(buffer.len() < 16, "{} bytes are left", buffer.len());
    events
}

/// Returns the opened streams by number, with one of their headers.
fn opened<'a>(events: &'a [Event], header: &str) -> Vec<(u32, &'a str)> {
    let named = |headers: &'a Headers| headers.get(header).map_or("", String::as_str);
    let opened = events.iter().filter_map(|event| match event {
        Event::Opened { stream, headers, fin: false, one_way: false } => Some((*stream, named(headers))),
        _ => None,
    });
    opened.collect()
}

fn written(events: &[Event], id: u32) -> Vec<u8> {
    let bytes = events.iter().filter_map(|event| match event {
        Event::Data { stream, bytes, .. } if *stream == id => Some(bytes.to_vec()),
        _ => None,
    });
    bytes.flatten().collect()
}

#[test]
fn exec_opens_its_streams_in_this_order() {
    assert_eq!(opened(&events(EXEC), "streamtype"), [(1, "error"), (3, "stdout"), (5, "stderr")]);
    let terminal = events(EXEC_TERMINAL);
    assert_eq!(opened(&terminal, "streamtype"), [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")]);
}

#[test]
fn attach_sends_and_closes_its_stdin() {
    let events = events(ATTACH);
    assert_eq!(opened(&events, "streamtype"), [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")]);
    assert_eq!(written(&events, 3), b"echo -n hello\n");
    assert!(events.iter().any(|event| matches!(event, Event::Data { stream: 3, fin: true, .. })), "{events:?}");
}

#[test]
fn forward_opens_pairs_and_sends_its_data() {
    let events = events(FORWARD);
    assert_eq!(opened(&events, "streamtype")[..2], [(1, "error"), (3, "data")]);
    assert_eq!(opened(&events, "requestid")[..2], [(1, "0"), (3, "0")]);
    assert!(written(&events, 3).starts_with(b"GET / HTTP/1.1\r\n"));
}

/// Returns the messages of a client over WebSocket.
fn messages(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut decoder, mut buffer, mut all) = (ws::Decoder::of_client(), BytesMut::from(bytes), Vec::new());
    while let Some(event) = decoder.next(&mut buffer).unwrap() {
        match event {
            ws::Event::Part { bytes, first: true, .. } => all.push(bytes.to_vec()),
            ws::Event::Part { bytes, .. } => all.last_mut().map(|last: &mut Vec<u8>| last.extend(&bytes)).unwrap(),
            ws::Event::Ping(_) | ws::Event::Pong | ws::Event::Close => {}
        }
    }
    all
}

#[test]
fn websocket_clients_send_the_same_in_channels_and_in_a_tunnel() {
    assert_eq!(messages(WS_ATTACH), [b"\x00echo -n hello\n".to_vec(), b"\xff\x00".to_vec()]);
    let events = events(&messages(WS_FORWARD).concat());
    assert_eq!(opened(&events, "streamtype")[..2], [(1, "error"), (3, "data")]);
    assert!(written(&events, 3).starts_with(b"GET / HTTP/1.1\r\n"));
}
