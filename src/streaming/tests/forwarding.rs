use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};

use super::support::*;
use crate::spdy::{Event, data_head};
use crate::{Chunk, http_upgrade, port_forward, ws};

#[tokio::test]
async fn ports_are_forwarded_in_pairs_of_streams() {
    let (mut client, io) = pair();
    let mut headers = HeaderMap::new();
    headers.insert("connection", HeaderValue::from_static("Upgrade"));
    headers.insert("upgrade", HeaderValue::from_static("SPDY/3.1"));
    headers.insert("x-stream-protocol-version", HeaderValue::from_static("portforward.k8s.io"));
    let protocol = http_upgrade::port_forward(&Method::POST, &headers).unwrap().1;
    let mut forwards = port_forward::open(io, protocol, &[], TIMES).await;
    client.open(1, &[("streamtype", "error"), ("port", "80"), ("requestid", "0")]).await;
    client.open(3, &[("streamtype", "error"), ("port", "81"), ("requestid", "1")]).await;
    client.open(5, &[("streamtype", "data"), ("port", "81"), ("requestid", "1")]).await;
    client.open(7, &[("streamtype", "data"), ("port", "80"), ("requestid", "0")]).await;
    // As very old clients do.
    client.open(9, &[("streamtype", "error"), ("port", "82")]).await;
    client.open(11, &[("streamtype", "data"), ("port", "82")]).await;
    client.open(13, &[("streamtype", "data"), ("port", "0"), ("requestid", "9")]).await;
    let mut ports = Vec::new();
    for _ in 0..3 {
        let forward = forwards.next().await.unwrap();
        ports.push(forward.port);
        forward.error.send("connection refused").await;
    }
    assert_eq!(ports, [81, 80, 82]);
    // Half of a pair is dropped after a timeout.
    client.open(15, &[("streamtype", "data"), ("port", "83"), ("requestid", "2")]).await;
    let mut errors = Vec::new();
    let (next, reset) = tokio::join!(tokio::time::timeout(Duration::from_secs(1), forwards.next()), async {
        let mut reset = Vec::new();
        while reset.last() != Some(&15) {
            match client.next().await.unwrap() {
                Event::Reset { stream, .. } => reset.push(stream),
                Event::Data { stream, bytes, .. } if !bytes.is_empty() => {
                    assert!([1, 3, 9].contains(&stream));
                    errors.extend_from_slice(&bytes);
                }
                _ => {}
            }
        }
        reset
    });
    assert!(next.is_err());
    assert_eq!(errors, b"connection refused".repeat(3));
    reset.iter().for_each(|stream| assert!([5, 7, 11, 13, 15].contains(stream), "{reset:?}"));
}

#[tokio::test]
async fn ports_are_forwarded_through_websocket_messages() {
    let (mut client, io) = pair();
    let protocol = http_upgrade::port_forward(&Method::GET, &websocket("SPDY/3.1+portforward.k8s.io")).unwrap().1;
    let mut forwards = port_forward::open(io, protocol, &[], TIMES).await;
    let mut frames = Vec::new();
    client.encoder.open(1, &[("streamtype", "error"), ("port", "80"), ("requestid", "0")], true, &mut frames);
    client.encoder.open(3, &[("streamtype", "data"), ("port", "80"), ("requestid", "0")], false, &mut frames);
    frames.extend([&data_head(3, true, 2)[..], b"hi"].concat());
    // However the bytes are split into messages.
    for piece in frames.chunks(5) {
        send_frame(&mut client.io, ws::BINARY, piece).await;
    }
    let mut forward = forwards.next().await.unwrap();
    let mut got = Vec::new();
    while let Some(bytes) = forward.input.next().await.unwrap() {
        got.extend_from_slice(&bytes);
    }
    assert_eq!(got, b"hi");
    forward.output.send(&mut Chunk::of(b"there")).await.unwrap();
    forward.output.finish().await;
    forward.error.finish().await;
    let (messages, ()) = tokio::join!(receive(&mut client.io), forwards.end());
    client.buffer.extend_from_slice(&messages.concat());
    let mut all = Vec::new();
    while let Some(event) = client.decoder.next(&mut client.buffer).unwrap() {
        all.push(event);
    }
    let wanted = [data(3, b"there", false), data(3, b"", true), data(1, b"", true), Event::GoAway { last: 0 }];
    assert_eq!(all[2..], wanted);
}

#[tokio::test]
async fn ports_have_two_channels_each() {
    let (mut client, io) = pair();
    let protocol = http_upgrade::port_forward(&Method::GET, &websocket("v4.channel.k8s.io")).unwrap().1;
    let mut forwards = port_forward::open(io, protocol, &[80, 8080], TIMES).await;
    send_frame(&mut client.io, ws::BINARY, b"\x02for the second").await;
    let (first, mut second) = (forwards.next().await.unwrap(), forwards.next().await.unwrap());
    assert_eq!((first.port, second.port), (80, 8080));
    assert_eq!(second.input.next().await, Ok(Some(Bytes::from_static(b"for the second"))));
    second.output.send(&mut Chunk::of(b"answer")).await.unwrap();
    first.error.send("refused").await;
    assert!(forwards.next().await.is_none());
    let (messages, ()) = tokio::join!(receive(&mut client.io), forwards.end());
    let wanted: [&[u8]; 6] =
        [b"\x00\x50\x00", b"\x01\x50\x00", b"\x02\x90\x1f", b"\x03\x90\x1f", b"\x02answer", b"\x01refused"];
    assert_eq!(messages, wanted);
}
