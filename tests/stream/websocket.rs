//! Exec, attach and port-forward over WebSocket.

use std::io::{Read as _, Write as _};

use streaming::spdy::{Decoder, Encoder, Event, data_head};
use streaming::ws;

use super::client::{ALL, Channels, OUTPUT, TTY, http_request};
use crate::support::client::container;
use crate::support::harness::Daemon;

#[test]
fn exec_has_a_channel_for_each_stream() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let url = client.exec_url(&id, &["sh", "-c", "printf out; printf err >&2; exit 3"], OUTPUT);
        let got = Channels::connect(&url, protocol).finish();
        assert_eq!((&got[&1][..], &got[&2][..]), (&b"out"[..], &b"err"[..]), "{protocol}");
        let status: serde_json::Value = serde_json::from_slice(&got[&3]).unwrap();
        assert_eq!(status["details"]["causes"][0]["message"], "3", "{protocol}");
    }
    let url = client.exec_url(&id, &["cat"], ALL);
    let mut channels = Channels::connect(&url, "v5.channel.k8s.io");
    channels.send(0, b"typed ");
    channels.frame(ws::PING, b"are you there");
    channels.send(0, b"more");
    channels.send(255, &[0]);
    assert_eq!(channels.finish()[&1], b"typed more");
}

#[test]
fn a_terminal_is_resized() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let url = client.exec_url(&id, &["sh", "-c", "read x; busybox stty size"], TTY);
    let mut channels = Channels::connect(&url, "v5.channel.k8s.io");
    channels.send(4, b"{\"Width\":97,\"Height\":31}");
    std::thread::sleep(std::time::Duration::from_millis(200));
    channels.send(0, b"go\r");
    let got = String::from_utf8(channels.finish()[&1].clone()).unwrap();
    assert!(got.contains("31 97"), "{got}");
}

#[test]
fn attach_ends_with_stdin_or_the_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sh", "-c", "while read line; do echo got $line; done; exit 2"]);
    (config.stdin, config.stdin_once) = (true, true);
    let id = client.run_config(&pod, config);
    let mut channels = Channels::connect(&client.attach_url(&id, ALL), "v5.channel.k8s.io");
    channels.send(0, b"hello\n");
    channels.send(255, &[0]);
    let got = channels.finish();
    assert_eq!(got[&1], b"got hello\n");
    client.wait_exited(&id);
}

#[test]
fn ports_are_forwarded_through_a_tunnel_and_through_channels() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let listener = super::forward::listen_in(&daemon, &pod.id, "127.0.0.1:0");
    let port = super::forward::serve(listener, |mut stream| {
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&[&word[..], b" pong"].concat()).unwrap();
    });
    let mut tunnel = Channels::connect(&client.forward_url(&pod.id), "SPDY/3.1+portforward.k8s.io");
    let (mut encoder, mut frames, text) = (Encoder::default(), Vec::new(), port.to_string());
    encoder.open(1, &[("streamtype", "error"), ("port", &text), ("requestid", "0")], true, &mut frames);
    encoder.open(3, &[("streamtype", "data"), ("port", &text), ("requestid", "0")], false, &mut frames);
    frames.extend([&data_head(3, false, 4)[..], b"ping"].concat());
    tunnel.frame(ws::BINARY, &frames);
    let (mut decoder, mut buffer, mut got) = (Decoder::default(), bytes::BytesMut::new(), Vec::new());
    'all: while let Some(event) = tunnel.next() {
        if let ws::Event::Part { bytes, .. } = event {
            buffer.extend_from_slice(&bytes);
        }
        while let Some(event) = decoder.next(&mut buffer).unwrap() {
            if let Event::Data { stream: 3, bytes, fin } = event {
                got.extend_from_slice(&bytes);
                if fin {
                    break 'all;
                }
            }
        }
    }
    assert_eq!(got, b"ping pong");
    let url = client.try_forward_url(&pod.id, &[port.into()]).unwrap();
    let mut channels = Channels::connect(&url, "v4.channel.k8s.io");
    channels.send(0, b"ping");
    let got = channels.finish();
    assert_eq!(got[&0], [&port.to_le_bytes()[..], b"ping pong"].concat());
    assert_eq!(got[&1], port.to_le_bytes());
    // Without ports in the request they are unknown.
    let (_, head, _) = http_request(
        &client.forward_url(&pod.id),
        "GET",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n",
    );
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
}
