use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use config::MetricsListen;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;

use super::*;
use crate::metrics::listener::{CONNECTIONS, Listener, TIMEOUT};

/// A site with this text; its state cannot be read within the time.
struct Page(&'static str, Duration);

impl Site for Page {
    fn metrics(&self) -> String {
        self.0.to_owned()
    }

    fn check(&self) {
        std::thread::sleep(self.1);
    }
}

struct Served(JoinHandle<()>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

const PAGE: Page = Page("a 1\n", Duration::ZERO);

async fn on_loopback(timeout: Duration) -> (Served, SocketAddr) {
    // Port 0 is not a valid setting: the kernel chooses a free port.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Listener::Address(listener).serve(Access::default(), Arc::new(PAGE), timeout);
    (Served(tokio::spawn(serve)), address)
}

/// Sends a request, closes the sending side, and returns the answer.
async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    // The connection may be reset after the answer, where the daemon closed it with unread bytes.
    stream.read_to_end(&mut answer).await.ok();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn only_get_and_head_of_known_paths_are_answered() {
    let (_server, address) = on_loopback(TIMEOUT).await;
    for (request, status, body) in [
        ("GET /metrics HTTP/1.1", "200", "a 1\n"),
        ("GET /metrics?x=1 HTTP/1.0", "200", "a 1\n"),
        ("HEAD /metrics HTTP/1.1", "200", ""),
        ("GET /healthz HTTP/1.1", "200", "ok\n"),
        ("HEAD /healthz HTTP/1.1", "200", ""),
        ("GET / HTTP/1.1", "200", INDEX),
        ("HEAD / HTTP/1.1", "200", ""),
        ("GET /other HTTP/1.1", "404", "not found: expected /metrics, /healthz or /\n"),
        ("HEAD /other HTTP/1.1", "404", ""),
        ("POST /metrics HTTP/1.1", "405", "expected GET or HEAD\n"),
        ("GET /metrics", "400", ""),
        ("GET  /metrics HTTP/1.1", "400", ""),
    ] {
        let answer = exchange(address, format!("{request}\r\n\r\n").as_bytes()).await;
        let (head, found) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!((head.split(' ').nth(1), found), (Some(status), body), "{request}: {answer}");
    }
}

#[tokio::test]
async fn a_daemon_that_cannot_read_its_state_in_time_is_reported_as_unhealthy() {
    let slow = Arc::new(Page("", Duration::from_millis(300)));
    let (status, body) = health(slow, Duration::from_millis(20)).await;
    assert_eq!(
        (status, &*body),
        (StatusCode::SERVICE_UNAVAILABLE, "reading the daemon's state took longer than 20ms\n")
    );
    let (status, body) = health(Arc::new(PAGE), HEALTH_MAX).await;
    assert_eq!((status, &*body), (StatusCode::OK, "ok\n"));
}

#[tokio::test]
async fn an_answer_has_the_type_and_length_of_the_page() {
    let (_server, address) = on_loopback(TIMEOUT).await;
    for method in ["GET", "HEAD"] {
        let answer = exchange(address, format!("{method} /metrics HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let head = answer.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
        assert!(head.contains("\r\ncontent-length: 4") && head.contains(TEXT.to_str().unwrap()), "{answer}");
    }
}

#[tokio::test]
async fn an_invalid_head_is_refused() {
    let (_server, address) = on_loopback(TIMEOUT).await;
    assert!(exchange(address, b"\xff\xff\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    assert!(exchange(address, &[b'a'; HEAD_MAX + 1]).await.starts_with("HTTP/1.1 431 "));
    for unfinished in [&b"GET /met"[..], b"\r\n\r\n", b"", b"PRI * HTTP/2.0\r\n\r\n"] {
        let answer = exchange(address, unfinished).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
}

#[tokio::test]
async fn a_connection_ends_after_its_last_request() {
    let (_server, address) = on_loopback(TIMEOUT).await;
    let requests = b"GET /metrics HTTP/1.1\r\n\r\n".repeat(REQUESTS_MAX + 1);
    let answer = exchange(address, &requests).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), REQUESTS_MAX, "{answer}");
    assert_eq!(answer.to_ascii_lowercase().matches("connection: close").count(), 1, "{answer}");
}

#[tokio::test]
async fn a_connection_ends_without_a_new_request_in_time() {
    let (_server, address) = on_loopback(Duration::from_millis(200)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\nGET /met").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("\r\n\r\na 1\n"), "{answer}");
}

#[tokio::test]
async fn silent_clients_make_room_for_others() {
    let (_server, address) = on_loopback(Duration::from_millis(50)).await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS * 2 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let answer = exchange(address, b"GET /metrics HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_socket_is_for_root_alone_and_is_removed_with_its_listener() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    let listener = Listener::bind(&MetricsListen::Socket(path.clone())).await.unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let server = listener.answer_with(Access::default(), Page("b 2\n", Duration::ZERO));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("b 2\n"), "{answer}");
    drop(server);
    while path.exists() {
        tokio::task::yield_now().await;
    }
}
