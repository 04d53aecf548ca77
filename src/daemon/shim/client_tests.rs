//! Tests of the client with a simulated shim.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use model::ErrorClass as _;
use shim_protocol::{Event, PROTOCOL, Request, Response, ShimMessage, ShimRequest};
use tokio::sync::mpsc;

use super::client::ShimClient;
use crate::sandbox::{SandboxError, SandboxEvent};

/// Accepts one connection, answers the greeting with `protocol`, and then runs `then`.
fn play(path: &Path, protocol: u32, then: impl FnOnce(OwnedFd) + Send + 'static) -> std::thread::JoinHandle<()> {
    let listener = sys::seqpacket::listen(path).unwrap();
    std::thread::spawn(move || then(greet(&listener, protocol)))
}

fn greet(listener: &OwnedFd, protocol: u32) -> OwnedFd {
    wait(listener);
    let socket = sys::seqpacket::accept(listener).unwrap();
    let ShimRequest { number, request } = receive_request(&socket);
    assert!(matches!(request, Request::Hello { .. }));
    let result = Ok(Response::Hello { protocol, release: "9.9.9".into(), pid: 1, opens_paths: true });
    send(&socket, &ShimMessage::Response { number, result });
    socket
}

fn wait(fd: &OwnedFd) {
    let mut ready = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ready, None).unwrap();
}

fn receive_request(socket: &OwnedFd) -> ShimRequest {
    wait(socket);
    let mut buffer = vec![0; sys::seqpacket::MAX];
    let (n, _) = sys::seqpacket::receive(socket, &mut buffer).unwrap().unwrap();
    shim_protocol::decode(&buffer[..n]).unwrap()
}

fn send(socket: &OwnedFd, message: &ShimMessage) {
    sys::seqpacket::send(socket, &shim_protocol::encode(message).unwrap(), &[]).unwrap();
}

#[tokio::test]
async fn an_older_release_of_the_same_protocol_is_supported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shim = play(&path, PROTOCOL, |socket| {
        let ShimRequest { number, .. } = receive_request(&socket);
        send(&socket, &ShimMessage::Response { number, result: Ok(Response::Done) });
    });
    let client = ShimClient::connect(&path, mpsc::unbounded_channel().0).await.unwrap();
    client.notify(Request::State, &[]).await.unwrap();
    shim.join().unwrap();
}

#[tokio::test]
async fn an_unknown_protocol_is_refused_with_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shim = play(&path, PROTOCOL + 1, drop);
    let client = ShimClient::connect(&path, mpsc::unbounded_channel().0).await.unwrap();
    let error = client.notify(Request::State, &[]).await.unwrap_err();
    assert!(matches!(error, SandboxError::Foreign { .. }), "{error}");
    assert_eq!(error.kind(), model::ErrorKind::Unsupported);
    shim.join().unwrap();
}

#[tokio::test]
async fn requests_to_an_exiting_shim_fail_at_once_and_its_exit_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shim = play(&path, PROTOCOL, |socket| {
        receive_request(&socket);
        send(&socket, &ShimMessage::Event(Event::ExecExited { exec: 5, code: 0 }));
    });
    let (sender, mut events) = mpsc::unbounded_channel();
    let client = ShimClient::connect(&path, sender).await.unwrap();
    assert!(matches!(client.notify(Request::State, &[]).await, Err(SandboxError::Gone)));
    assert!(matches!(events.recv().await, Some(SandboxEvent::Gone)));
    shim.join().unwrap();
}

#[tokio::test]
async fn only_a_socket_without_a_listener_proves_a_shim_dead() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let connect = async || ShimClient::connect(&path, mpsc::unbounded_channel().0).await.unwrap_err();
    assert!(connect().await.is_dead(), "there is no socket");
    let listener = sys::seqpacket::listen(&path).unwrap();
    // The socket listens, but accepts no connection, as that of a stopped process.
    let queue: Vec<OwnedFd> = std::iter::from_fn(|| sys::seqpacket::connect(&path).ok()).collect();
    let busy = connect().await;
    assert!(matches!(busy, SandboxError::Connect { .. }) && !busy.is_dead(), "{busy}");
    drop((queue, listener));
    assert!(connect().await.is_dead(), "no process listens");
    for passing in
        [SandboxError::Gone, SandboxError::Mismatch, SandboxError::Send(std::io::ErrorKind::OutOfMemory.into())]
    {
        assert!(!passing.is_dead(), "{passing}");
    }
}

#[tokio::test]
async fn a_shim_that_disconnected_is_connected_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = sys::seqpacket::listen(&path).unwrap();
    let shim = std::thread::spawn(move || {
        for _ in 0..2 {
            greet(&listener, PROTOCOL);
        }
    });
    for _ in 0..2 {
        let (sender, mut events) = mpsc::unbounded_channel();
        let _client = ShimClient::connect(&path, sender).await.unwrap();
        assert!(matches!(events.recv().await, Some(SandboxEvent::Gone)));
    }
    shim.join().unwrap();
}

#[tokio::test]
async fn a_silent_shim_is_awaited_once_for_a_stop_and_again_after_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (speak, may_speak) = std::sync::mpsc::channel();
    let shim = play(&path, PROTOCOL, move |socket| {
        may_speak.recv().unwrap();
        for _ in 0..3 {
            assert!(
                matches!(receive_request(&socket).request, Request::Shutdown),
                "requests without a wait are sent, too"
            );
        }
        let container = model::ContainerId::try_from("a".repeat(64)).unwrap();
        send(&socket, &ShimMessage::Event(Event::LogLost { container, bytes: 1, error: String::new() }));
        let ShimRequest { number, .. } = receive_request(&socket);
        std::thread::sleep(Duration::from_millis(300));
        send(&socket, &ShimMessage::Response { number, result: Ok(Response::Done) });
    });
    let (sender, mut events) = mpsc::unbounded_channel();
    let client = ShimClient::connect(&path, sender).await.unwrap();
    let begin = Instant::now();
    assert!(matches!(client.notify(Request::Shutdown, &[]).await, Err(SandboxError::Silent(_))));
    for _ in 0..2 {
        assert!(matches!(client.notify(Request::Shutdown, &[]).await, Err(SandboxError::Mute)));
    }
    assert!(begin.elapsed() < Duration::from_secs(4));
    speak.send(()).unwrap();
    assert!(matches!(events.recv().await, Some(SandboxEvent::Event(Event::LogLost { .. }))));
    client.notify(Request::Shutdown, &[]).await.unwrap();
    shim.join().unwrap();
}

#[tokio::test]
async fn an_unreadable_response_fails_its_request_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let shim = play(&path, PROTOCOL, |socket| {
        let ShimRequest { number, .. } = receive_request(&socket);
        let newer = format!(r#"{{"response":{{"number":{number},"result":{{"Ok":{{"danced":3}}}}}}}}"#);
        sys::seqpacket::send(&socket, newer.as_bytes(), &[]).unwrap();
        receive_request(&socket);
    });
    let client = ShimClient::connect(&path, mpsc::unbounded_channel().0).await.unwrap();
    let error = client.notify(Request::Shutdown, &[]).await.unwrap_err();
    assert!(matches!(error, SandboxError::Frame(_)), "{error}");
    assert!(matches!(client.notify(Request::Shutdown, &[]).await, Err(SandboxError::Gone)));
    shim.join().unwrap();
}
