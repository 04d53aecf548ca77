//! Just enough of HTTP/1.1 to be asked for one page: one request for each connection, of which only the head is read.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use config::MetricsListen;
use sync::threads::ORDINARY;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::socket::{Socket, SocketError};

/// A client that takes longer for all of its request and answer is left.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that are served at the same time; more wait to be accepted.
const CONNECTIONS: usize = 16;
/// The longest head of a request.
const HEAD_MAX: usize = 8 << 10;
/// The pause after a connection could not be accepted, as when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics cannot be told where they should be.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("listening on {address}")]
    Address { address: SocketAddr, source: io::Error },
    #[error("waiting for connections")]
    Wait(#[source] io::Error),
}

/// Where questions come in.
#[derive(Debug)]
pub(crate) enum Listener {
    Address(TcpListener),
    Socket {
        listener: UnixListener,
        /// The socket's file, which goes with it.
        _file: Socket,
    },
}

/// Answers until it is dropped.
#[derive(Debug)]
pub(crate) struct MetricsServer(JoinHandle<()>);

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listener {
    pub(crate) async fn bind(listen: &MetricsListen) -> Result<Self, ListenError> {
        match listen {
            MetricsListen::Loopback(address) => match TcpListener::bind(address).await {
                Ok(listener) => Ok(Self::Address(listener)),
                Err(source) => Err(ListenError::Address { address: *address, source }),
            },
            MetricsListen::Socket(path) => {
                let (file, listener) = Socket::bind(path, 0o600, None)?;
                let listener = UnixListener::from_std(listener).map_err(ListenError::Wait)?;
                Ok(Self::Socket { listener, _file: file })
            }
        }
    }

    /// Answers each question with what `page` says at that moment.
    pub(super) fn answer_with(self, page: impl Fn() -> String + Send + Sync + 'static) -> MetricsServer {
        MetricsServer(tokio::spawn(self.serve(Arc::new(page), PATIENCE)))
    }

    async fn serve(self, page: Arc<impl Fn() -> String + Send + Sync + 'static>, patience: Duration) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // Nobody closes the semaphore.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let begin = |stream: Box<dyn Stream>| {
                let page = Arc::clone(&page);
                tokio::spawn(async move {
                    let _place = place;
                    talk(stream, page, patience).await;
                })
            };
            let accepted = match &self {
                Self::Address(listener) => listener.accept().await.map(|(stream, _)| begin(Box::new(stream))),
                Self::Socket { listener, _file } => listener.accept().await.map(|(stream, _)| begin(Box::new(stream))),
            };
            if let Err(error) = accepted {
                tracing::warn!(%error, "a connection for metrics could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Reads one request and answers it. A client that goes away, or is too slow, is none of our trouble.
async fn talk(mut stream: Box<dyn Stream>, page: Arc<impl Fn() -> String + Send + Sync + 'static>, patience: Duration) {
    let talk = async {
        let head = read_head(&mut stream).await?;
        // What is told is looked up on the disk, too.
        let answer = ORDINARY.run(move || answer(head.as_deref(), &*page)).await;
        let answer = answer.map_err(|_| io::Error::other("telling of the metrics ended in a panic"))?;
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    match tokio::time::timeout(patience, talk).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "whoever asked for metrics went away"),
        Err(_) => tracing::debug!("whoever asked for metrics was too slow"),
    }
}

/// All up to the empty line; none where that does not come in time, or is no text.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut piece).await?;
        if count == 0 || head.len() + count > HEAD_MAX {
            return Ok(None);
        }
        head.extend_from_slice(&piece[..count]);
    }
    Ok(String::from_utf8(head).ok())
}

fn answer(head: Option<&str>, page: impl Fn() -> String) -> String {
    let line = head.and_then(|head| head.lines().next()).unwrap_or_default();
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let is_http = version.is_some_and(|version| version.starts_with("HTTP/1.")) && words.next().is_none();
    let (Some(method), Some(target), true) = (method, target, is_http) else {
        return whole("400 Bad Request", "", "this is no request of HTTP/1.1\n", true);
    };
    let with_body = method != "HEAD";
    let path = target.split('?').next().unwrap_or_default();
    if !matches!(method, "GET" | "HEAD") {
        whole("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD are answered\n", true)
    } else if path != "/metrics" {
        whole("404 Not Found", "", "there is only /metrics\n", with_body)
    } else {
        whole("200 OK", "", &page(), with_body)
    }
}

fn whole(status: &str, headers: &str, body: &str, with_body: bool) -> String {
    let length = body.len();
    let body = if with_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpStream, UnixStream};

    use super::*;

    async fn on_loopback(patience: Duration) -> (MetricsServer, SocketAddr) {
        // Port 0, which no setting can ask for: one that is free.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = Listener::Address(listener).serve(Arc::new(|| "a 1\n".to_owned()), patience);
        (MetricsServer(tokio::spawn(serve)), address)
    }

    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[test]
    fn only_the_page_is_there_and_only_to_be_read() {
        let status = |head: &str| {
            let answer = answer(Some(head), || "page".to_owned());
            let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
            (answer.split(' ').nth(1).unwrap().to_owned(), body)
        };
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), ("200".into(), "page".into()));
        assert_eq!(status("GET /metrics?x=1 HTTP/1.0\r\n\r\n").0, "200");
        assert_eq!(status("HEAD /metrics HTTP/1.1\r\n\r\n"), ("200".into(), String::new()));
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n").0, "404");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n").0, "405");
        for bad in ["", "\r\n\r\n", "GET /metrics\r\n\r\n", "GET  /metrics HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n"]
        {
            assert_eq!(status(bad).0, "400", "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_request_is_answered_and_the_connection_closed() {
        let (_telling, address) = on_loopback(PATIENCE).await;
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\na 1\n"), "{answer}");
        assert!(answer.contains("Content-Length: 4\r\n") && answer.contains(TEXT), "{answer}");
    }

    #[tokio::test]
    async fn a_head_that_is_broken_or_too_long_is_refused() {
        let (_telling, address) = on_loopback(PATIENCE).await;
        for bad in [&b"GET /met"[..], b"\xff\xff\r\n\r\n", &[b'a'; HEAD_MAX]] {
            assert!(ask(address, bad).await.starts_with("HTTP/1.1 400 "));
        }
    }

    #[tokio::test]
    async fn clients_that_say_nothing_do_not_keep_others_out_for_long() {
        let (_telling, address) = on_loopback(Duration::from_millis(50)).await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS * 2 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }

    #[tokio::test]
    async fn a_socket_is_for_root_alone_and_goes_with_its_listener() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let listener = Listener::bind(&MetricsListen::Socket(path.clone())).await.unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let telling = listener.answer_with(|| "b 2\n".to_owned());
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("b 2\n"), "{answer}");
        drop(telling);
        while path.exists() {
            tokio::task::yield_now().await;
        }
    }
}
