//! Whole sessions over an in-memory pipe, with test clients that implement only the framing.

#[cfg(test)]
mod captured_clients;
mod forwarding;
mod support;

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use support::*;
use tokio::io::AsyncWriteExt as _;

use crate::remote_command::{ClientStreams, OpenError, RemoteCommand, StdioOptions, Timeouts};
use crate::spdy::{Encoder, Event};
use crate::{Chunk, Outcome, Size, StreamError, http_upgrade, remote_command, ws};

#[tokio::test]
async fn a_command_gets_input_returns_output_and_sends_its_outcome() {
    let (mut client, io) = pair();
    open_all(&mut client).await;
    client.write(3, b"hello", false).await;
    client.write(3, b"", true).await;
    let RemoteCommand { streams: ClientStreams { stdin, stdout, stderr, resizes }, talk } =
        opened(io, "v4.channel.k8s.io").await;
    assert!(resizes.is_none());
    let mut stdin = stdin.unwrap();
    assert_eq!(stdin.next().await, Ok(Some(Bytes::from_static(b"hello"))));
    assert_eq!(stdin.next().await, Ok(None));
    let (mut stdout, stderr) = (stdout.unwrap(), stderr.unwrap());
    stdout.send(&mut Chunk::of(b"out")).await.unwrap();
    stdout.finish().await;
    stderr.finish().await;
    let (all, ()) = tokio::join!(client.rest(), talk.end(&Outcome::Exit(3)));
    let status = Outcome::Exit(3).json();
    let wanted = [
        data(5, b"out", false),
        data(5, b"", true),
        data(7, b"", true),
        data(1, status.as_bytes(), false),
        data(1, b"", true),
        data(3, b"", true),
        Event::GoAway { last: 0 },
    ];
    assert_eq!(all, wanted);
}

#[tokio::test]
async fn older_clients_get_a_text_and_only_after_failures() {
    for (outcome, words) in
        [(Outcome::Success, ""), (Outcome::Exit(1), "non-zero exit code"), (Outcome::Failed("x".into()), "x")]
    {
        let (mut client, io) = pair();
        open_all(&mut client).await;
        let remote = opened(io, "v2.channel.k8s.io").await;
        let RemoteCommand { talk, .. } = remote;
        let (all, ()) = tokio::join!(client.rest(), talk.end(&outcome));
        let text: Vec<u8> = all
            .iter()
            .flat_map(|event| match event {
                Event::Data { stream: 1, bytes, .. } => bytes.to_vec(),
                _ => Vec::new(),
            })
            .collect();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(words) && text.is_empty() == words.is_empty(), "{text}");
    }
}

#[tokio::test]
async fn a_reply_is_sent_before_data_on_every_stream() {
    let (mut client, io) = pair();
    open_all(&mut client).await;
    let RemoteCommand { streams: ClientStreams { mut stdout, stderr: _stderr, .. }, talk: _talk } =
        opened(io, "v4.channel.k8s.io").await;
    stdout.as_mut().unwrap().send(&mut Chunk::of(b"x")).await.unwrap();
    for id in [1, 3, 5, 7] {
        assert_eq!(client.next().await, Some(Event::Replied { stream: id, headers: Default::default(), fin: false }));
    }
    assert_eq!(client.next().await, Some(data(5, b"x", false)));
}

#[tokio::test]
async fn a_client_that_does_not_open_its_streams_times_out() {
    let (mut client, io) = pair();
    client.open(1, &[("streamtype", "error")]).await;
    assert_eq!(remote_command::open(io, spdy("v4.channel.k8s.io"), ALL, TIMES).await.unwrap_err(), OpenError::Late);
    let (client, io) = pair();
    drop(client);
    assert_eq!(remote_command::open(io, spdy("v4.channel.k8s.io"), ALL, TIMES).await.unwrap_err(), OpenError::Gone);
}

#[tokio::test]
async fn unknown_streams_are_reset() {
    let (mut client, io) = pair();
    client.open(2, &[("streamtype", "error")]).await;
    client.open(1, &[("streamtype", "banana")]).await;
    open_all(&mut client).await;
    client.open(5, &[("streamtype", "stdout")]).await;
    let _remote = opened(io, "v4.channel.k8s.io").await;
    let mut reset = Vec::new();
    while reset.len() < 3 {
        if let Some(Event::Reset { stream, status: 1 }) = client.next().await {
            reset.push(stream);
        }
    }
    assert_eq!(reset, [2, 1, 5]);
}

#[tokio::test]
async fn a_lost_client_or_a_protocol_violation_ends_the_streams() {
    let bad: [&[u8]; 5] = [
        b"",
        // Version 2, an unknown type, a ping of 5 bytes, headers of 16 MiB.
        &[0x80, 2, 0, 6, 0, 0, 0, 4],
        &[0x80, 3, 0, 5, 0, 0, 0, 4],
        &[0x80, 3, 0, 6, 0, 0, 0, 5],
        &[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
    ];
    for bytes in bad {
        let (mut client, io) = pair();
        open_all(&mut client).await;
        let RemoteCommand { streams: ClientStreams { stdin, mut stdout, .. }, talk } =
            opened(io, "v4.channel.k8s.io").await;
        client.io.write_all(bytes).await.unwrap();
        if bytes.is_empty() {
            drop(client);
        }
        talk.gone().await;
        assert_eq!(stdin.unwrap().next().await, Err(StreamError::Lost), "{bytes:?}");
        assert!(stdout.as_mut().unwrap().send(&mut Chunk::of(b"x")).await.is_err(), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_client_that_pings_without_reading_is_disconnected() {
    let (mut client, io) = pair();
    open_all(&mut client).await;
    let RemoteCommand { talk, .. } = opened(io, "v4.channel.k8s.io").await;
    let flood = async {
        loop {
            let mut bytes = Vec::new();
            (0..100).for_each(|n| Encoder::ping(2 * n + 1, &mut bytes));
            if client.io.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = flood => {}
        () = talk.gone() => {}
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("the session has not ended"),
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let (mut client, io) = pair();
    open_all(&mut client).await;
    let times = Timeouts { idle: Duration::from_millis(50), ..TIMES };
    let RemoteCommand { talk, .. } = remote_command::open(io, spdy("v4.channel.k8s.io"), ALL, times).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), talk.gone()).await.unwrap();
}

#[tokio::test]
async fn pings_are_answered_and_window_updates_are_respected() {
    let (mut client, io) = pair();
    open_all(&mut client).await;
    let RemoteCommand { streams: ClientStreams { mut stdout, stderr: _stderr, .. }, talk: _talk } =
        opened(io, "v4.channel.k8s.io").await;
    client.send(|_, to| Encoder::ping(7, to)).await;
    // The client sends a window update: 64 KiB and one byte.
    client.send(|_, to| Encoder::window(5, 1, to)).await;
    loop {
        match client.next().await.unwrap() {
            Event::Replied { .. } => {}
            event => break assert_eq!(event, Event::Ping(7)),
        }
    }
    let sender = tokio::spawn(async move {
        stdout.as_mut().unwrap().send(&mut Chunk::of(&[9; 100 << 10])).await.unwrap();
        stdout
    });
    let mut count = 0;
    while count < (64 << 10) + 1 {
        let Some(Event::Data { stream: 5, bytes, .. }) = client.next().await else { panic!() };
        count += bytes.len();
    }
    assert_eq!(count, (64 << 10) + 1);
    assert!(tokio::time::timeout(Duration::from_millis(50), client.next()).await.is_err(), "the window is used up");
    client.send(|_, to| Encoder::window(5, 1 << 20, to)).await;
    while count < 100 << 10 {
        let Some(Event::Data { stream: 5, bytes, .. }) = client.next().await else { panic!() };
        count += bytes.len();
    }
    sender.await.unwrap();
}

#[tokio::test]
async fn read_bytes_are_reported_by_window_updates() {
    let (mut client, io) = pair();
    open_all(&mut client).await;
    let RemoteCommand { streams: ClientStreams { stdin, .. }, talk: _talk } = opened(io, "v4.channel.k8s.io").await;
    let reader = tokio::spawn(async move {
        let (mut stdin, mut count) = (stdin.unwrap(), 0);
        while let Ok(Some(bytes)) = stdin.next().await {
            count += bytes.len();
        }
        count
    });
    client.write(3, &[1; 40 << 10], false).await;
    let mut windows = Vec::new();
    while windows.len() < 2 {
        if let Some(Event::Window { stream, more }) = client.next().await {
            windows.push((stream, more >= 32 << 10));
        }
    }
    assert_eq!(windows, [(3, true), (0, true)]);
    client.write(3, b"", true).await;
    assert_eq!(reader.await.unwrap(), 40 << 10);
}

/// Frames of WebSocket, masked as those of clients must be.
#[tokio::test]
async fn channels_carry_streams_and_can_be_closed_separately() {
    let (mut client, io) = pair();
    let protocol = http_upgrade::remote_command(&Method::GET, &websocket("v5.channel.k8s.io")).unwrap().1;
    let wants = StdioOptions { tty: true, stderr: false, ..ALL };
    let RemoteCommand { streams: ClientStreams { stdin, stdout, stderr, resizes }, talk } =
        remote_command::open(io, protocol, wants, TIMES).await.unwrap();
    assert!(stderr.is_none());
    send_frame(&mut client.io, ws::BINARY, b"\x00typed").await;
    send_frame(&mut client.io, ws::BINARY, b"\x04{\"Width\":80,\"Height\":24}").await;
    send_frame(&mut client.io, ws::BINARY, b"\x63unknown").await;
    send_frame(&mut client.io, ws::BINARY, b"\xff\x00").await;
    let mut stdin = stdin.unwrap();
    assert_eq!(stdin.next().await, Ok(Some(Bytes::from_static(b"typed"))));
    assert_eq!(stdin.next().await, Ok(None));
    assert_eq!(resizes.unwrap().next().await, Some(Size { width: 80, height: 24 }));
    let mut stdout = stdout.unwrap();
    stdout.send(&mut Chunk::of(b"printed")).await.unwrap();
    stdout.finish().await;
    let (all, ()) = tokio::join!(receive(&mut client.io), talk.end(&Outcome::Success));
    let status = [b"\x03", Outcome::Success.json().as_bytes()].concat();
    assert_eq!(all, [b"\x01".to_vec(), b"\x01printed".to_vec(), status]);
}

#[tokio::test]
async fn text_channels_are_encoded_in_base64() {
    let (mut client, io) = pair();
    let protocol = http_upgrade::remote_command(&Method::GET, &websocket("base64.channel.k8s.io")).unwrap().1;
    let RemoteCommand { streams: ClientStreams { stdin, stdout, .. }, talk } =
        remote_command::open(io, protocol, ALL, TIMES).await.unwrap();
    send_frame(&mut client.io, ws::TEXT, b"0Zm9vCg==").await;
    send_frame(&mut client.io, ws::TEXT, b"0not base64").await;
    send_frame(&mut client.io, ws::TEXT, b"0YmFy").await;
    let mut stdin = stdin.unwrap();
    assert_eq!(stdin.next().await, Ok(Some(Bytes::from_static(b"foo\n"))));
    assert_eq!(stdin.next().await, Ok(Some(Bytes::from_static(b"bar"))));
    let mut stdout = stdout.unwrap();
    stdout.send(&mut Chunk::of(b"\n")).await.unwrap();
    let (all, ()) = tokio::join!(receive(&mut client.io), talk.end(&Outcome::Success));
    assert_eq!(all, [b"1".to_vec(), b"1Cg==".to_vec()], "this older version does not send success");
}
