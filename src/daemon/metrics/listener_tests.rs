use std::net::Ipv4Addr;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;

const TOKEN: &str = "0123456789abcdef";

struct Page;

impl Site for Page {
    fn metrics(&self) -> String {
        "a 1\n".to_owned()
    }

    fn check(&self) {}
}

/// A new certificate for `crisp.test`.
fn identity() -> (ServerIdentity, CertificateDer<'static>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["crisp.test".to_owned()]).unwrap();
    (ServerIdentity::new(cert.pem().into_bytes(), signing_key.serialize_pem().into_bytes()), cert.der().clone())
}

/// Serves on loopback; port 0 is not a valid setting: the kernel chooses a free port.
async fn serve(access: &MetricsAccess, timeout: Duration) -> (MetricsServer, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, access) = (listener.local_addr().unwrap(), Access::new(access).unwrap());
    let task = tokio::spawn(Listener::Address(listener).serve(access.clone(), Arc::new(Page), timeout));
    (MetricsServer { task, access }, address)
}

/// Connects as another host, 127.0.0.`host`.
async fn connect(address: SocketAddr, host: u8) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into())?;
    socket.connect(address).await
}

async fn handshake(stream: TcpStream, trusted: &CertificateDer<'static>) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    TlsConnector::from(Arc::new(client)).connect(ServerName::try_from("crisp.test").unwrap(), stream).await
}

/// Sends a request with these headers, and returns the status of the answer, "" without an answer.
async fn get(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, headers: &str) -> String {
    let request = format!("GET /metrics HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return String::new();
    }
    let mut answer = Vec::new();
    // A server may close without an alert.
    stream.read_to_end(&mut answer).await.ok();
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn every_path_requires_the_whole_token() {
    let access = MetricsAccess { identity: None, token: BearerToken::parse(TOKEN.as_bytes()) };
    let (_server, address) = serve(&access, TIMEOUT).await;
    for (header, status) in [
        (format!("Authorization: Bearer {TOKEN}\r\n"), "200"),
        (format!("authorization: bearer {TOKEN}\r\n"), "200"),
        (String::new(), "401"),
        (format!("Authorization: Basic {TOKEN}\r\n"), "401"),
        (format!("Authorization: {TOKEN}\r\n"), "401"),
        (format!("Authorization: Bearer {TOKEN}x\r\n"), "401"),
        ("Authorization: Bearer \r\n".to_owned(), "401"),
        ("Authorization: é\r\n".to_owned(), "401"),
    ] {
        assert_eq!(get(connect(address, 1).await.unwrap(), &header).await, status, "{header}");
    }
    for path in ["/", "/healthz", "/other"] {
        let mut stream = connect(address, 1).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let head = answer.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 401 ") && head.contains("\r\nwww-authenticate: bearer\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_new_certificate_and_token_apply_without_a_new_socket() {
    let ((first, trusted), (second, trusted_later)) = (identity(), identity());
    let token = |text: &str| BearerToken::parse(text.as_bytes());
    let (server, address) = serve(&MetricsAccess { identity: Some(first), token: token(TOKEN) }, TIMEOUT).await;
    let header = format!("Authorization: Bearer {TOKEN}\r\n");
    let stream = handshake(connect(address, 1).await.unwrap(), &trusted).await.unwrap();
    assert_eq!(get(stream, &header).await, "200");
    let later = "fedcba9876543210";
    server.access().set(&MetricsAccess { identity: Some(second), token: token(later) }).unwrap();
    assert!(handshake(connect(address, 1).await.unwrap(), &trusted).await.is_err());
    let stream = handshake(connect(address, 1).await.unwrap(), &trusted_later).await.unwrap();
    assert_eq!(get(stream, &header).await, "401");
    let stream = handshake(connect(address, 1).await.unwrap(), &trusted_later).await.unwrap();
    assert_eq!(get(stream, &format!("Authorization: Bearer {later}\r\n")).await, "200");
}

#[tokio::test]
async fn a_client_without_tls_gets_no_metrics() {
    let (identity, _) = identity();
    let access = MetricsAccess { identity: Some(identity), token: BearerToken::parse(TOKEN.as_bytes()) };
    let (_server, address) = serve(&access, TIMEOUT).await;
    let header = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(get(connect(address, 1).await.unwrap(), &header).await, "");
}

#[tokio::test]
async fn a_host_that_opens_all_connections_and_stays_silent_leaves_places_to_others() {
    let (identity, trusted) = identity();
    let access = MetricsAccess { identity: Some(identity), token: None };
    let (_server, address) = serve(&access, TIMEOUT).await;
    let mut silent = Vec::new();
    for number in 0..CONNECTIONS * 3 {
        let mut stream = connect(address, 2).await.unwrap();
        if number % 2 == 1 {
            // The first bytes of a record that never ends.
            stream.write_all(&[0x16, 0x03, 0x01, 0x02]).await.ok();
        }
        silent.push(stream);
    }
    let answered = async { get(handshake(connect(address, 3).await.unwrap(), &trusted).await.unwrap(), "").await };
    let status = tokio::time::timeout(TIMEOUT / 2, answered).await;
    assert_eq!(status.as_deref(), Ok("200"));
    assert_eq!(silent.len(), CONNECTIONS * 3);
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_cut_off_and_frees_its_place() {
    let (identity, trusted) = identity();
    let access = MetricsAccess { identity: Some(identity), token: None };
    let (_server, address) = serve(&access, Duration::from_millis(300)).await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_PER_HOST {
        silent.push(connect(address, 1).await.unwrap());
    }
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
    }
    let mut stream = connect(address, 1).await.unwrap();
    stream.write_all(&[0xff; 4096]).await.unwrap();
    // An alert, and the end.
    stream.read_to_end(&mut Vec::new()).await.ok();
    let stream = handshake(connect(address, 1).await.unwrap(), &trusted).await.unwrap();
    assert_eq!(get(stream, "").await, "200");
}

#[test]
fn clients_of_one_ipv6_network_count_as_one_host() {
    let host = |text: &str| host_of(text.parse().unwrap());
    assert_eq!(host("2001:db8:1:2::1"), host("2001:db8:1:2:ffff::9"));
    assert_ne!(host("2001:db8:1:2::1"), host("2001:db8:1:3::1"));
    assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
    assert_ne!(host("192.0.2.2"), host("192.0.2.1"));
}
