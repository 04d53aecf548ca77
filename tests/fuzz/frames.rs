//! Fuzz targets for the frames of streaming clients.

use bytes::{Bytes, BytesMut};
use streaming::{spdy, ws};

/// Decodes `data` as SPDY frames, at once and in small pieces, and checks that both results are equal.
pub fn spdy(data: &[u8]) {
    let all = |size| {
        let mut decoder = spdy::Decoder::default();
        let mut events = Vec::new();
        let end: Result<(), spdy::ProtocolError> = feed(data, size, |buffer| match decoder.next(buffer)? {
            Some(event) => {
                push(&mut events, event);
                Ok(true)
            }
            None => Ok(false),
        });
        (events, end)
    };
    assert_eq!(all(data.len().max(1)), all(3), "frames depend on how their bytes arrive");
}

/// Adds an event and joins parts of one frame's data.
fn push(events: &mut Vec<spdy::Event>, event: spdy::Event) {
    use spdy::Event::Data;
    if let (Some(Data { stream: before, bytes: have, fin: false }), Data { stream, bytes, fin }) =
        (events.last_mut(), &event)
        && before == stream
    {
        let joined = Data { stream: *stream, bytes: Bytes::from([&have[..], bytes].concat()), fin: *fin };
        if let Some(last) = events.last_mut() {
            *last = joined;
        }
        return;
    }
    events.push(event);
}

/// Decodes `data` as WebSocket frames of a client and of a server, like [`spdy()`].
pub fn websocket(data: &[u8]) {
    for decoder in [ws::Decoder::of_client, ws::Decoder::of_server] {
        let all = |size| {
            let mut decoder = decoder();
            let (mut bytes, mut control) = (Vec::new(), Vec::new());
            let end: Result<(), ws::ProtocolError> = feed(data, size, |buffer| match decoder.next(buffer)? {
                Some(ws::Event::Part { bytes: part, last, .. }) => {
                    bytes.extend_from_slice(&part);
                    if last {
                        control.push((bytes.len(), None));
                    }
                    Ok(true)
                }
                Some(event) => {
                    control.push((bytes.len(), Some(event)));
                    Ok(true)
                }
                None => Ok(false),
            });
            (bytes, control, end)
        };
        assert_eq!(all(data.len().max(1)), all(3), "messages depend on how their bytes arrive");
    }
}

/// Feeds a decoder piece by piece, and returns its error if it fails.
fn feed<E>(data: &[u8], size: usize, mut next: impl FnMut(&mut BytesMut) -> Result<bool, E>) -> Result<(), E> {
    let mut buffer = BytesMut::new();
    for piece in data.chunks(size) {
        buffer.extend_from_slice(piece);
        while next(&mut buffer)? {}
        assert!(buffer.len() < 64 << 10 || size > 64 << 10, "{} bytes are kept for one frame", buffer.len());
    }
    Ok(())
}
