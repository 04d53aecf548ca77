//! Test support: tar streams byte by byte, images made of them, and a small registry on loopback.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use sync::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::digest::Digest;
use crate::platform::host;

/// A tar stream, which may be malformed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

/// Header fields of one entry; the owner defaults to the user of the test, so that unpacking needs
/// no root.
#[derive(Debug, Clone)]
pub(crate) struct Head<'a> {
    pub(crate) kind: u8,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: u64,
    pub(crate) link: &'a str,
    pub(crate) device: (u32, u32),
}

impl Default for Head<'_> {
    fn default() -> Self {
        Self {
            kind: b'0',
            mode: 0o644,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            mtime: 1_000_000_000,
            link: "",
            device: (0, 0),
        }
    }
}

impl Tar {
    pub(crate) fn entry(mut self, path: &str, head: &Head<'_>, data: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..head.link.len()].copy_from_slice(head.link.as_bytes());
        old.linkflag = [head.kind];
        header.set_mode(head.mode);
        header.set_uid(head.uid.into());
        header.set_gid(head.gid.into());
        header.set_mtime(head.mtime);
        header.set_size(data.len() as u64);
        header.set_device_major(head.device.0).unwrap();
        header.set_device_minor(head.device.1).unwrap();
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.data(data)
    }

    pub(crate) fn data(mut self, data: &[u8]) -> Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(path, &Head::default(), data)
    }

    pub(crate) fn dir(self, path: &str) -> Self {
        self.entry(path, &Head { kind: b'5', mode: 0o755, ..Head::default() }, b"")
    }

    pub(crate) fn symlink(self, path: &str, link: &str) -> Self {
        self.entry(path, &Head { kind: b'2', link, ..Head::default() }, b"")
    }

    pub(crate) fn link(self, path: &str, link: &str) -> Self {
        self.entry(path, &Head { kind: b'1', link, ..Head::default() }, b"")
    }

    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while rest + length.to_string().len() != length {
                length = rest + length.to_string().len();
            }
            body.extend_from_slice(format!("{length} {key}=").as_bytes());
            body.extend_from_slice(value);
            body.push(b'\n');
        }
        self.entry("pax", &Head { kind: b'x', ..Head::default() }, &body)
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

pub(crate) fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// An image as a registry serves it.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
    /// As transferred.
    pub(crate) layers: Vec<Vec<u8>>,
}

impl Made {
    /// Creates an image of plain tar streams, lowest first, each compressed by `pack`.
    pub(crate) fn new(tars: &[Vec<u8>], pack: fn(&[u8]) -> Vec<u8>) -> Self {
        let (os, architecture, _) = host();
        let diff_ids: Vec<Digest> = tars.iter().map(|tar| Digest::of(tar)).collect();
        let config = serde_json::to_vec(&serde_json::json!({
            "os": os, "architecture": architecture,
            "config": {"Cmd": ["sh"], "User": "web"},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }))
        .unwrap();
        let layers: Vec<Vec<u8>> = tars.iter().map(|tar| pack(tar)).collect();
        let descriptor = |media_type: &str, blob: &[u8]| serde_json::json!({"mediaType": media_type, "digest": Digest::of(blob), "size": blob.len()});
        let manifest = serde_json::to_vec(&serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers.iter().map(|l| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", l)).collect::<Vec<_>>(),
        }))
        .unwrap();
        Self { config, manifest, layers }
    }

    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.layers.iter().chain([&self.config])
    }

    pub(crate) fn id(&self) -> Digest {
        Digest::of(&self.config)
    }
}

/// A request that the test registry received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
    /// The client sent a certificate.
    pub(crate) certified: bool,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A response of the test registry: `cut` closes the connection after that many bytes of the body,
/// `pace` sends the body in pieces of so many bytes with a pause after each, `never` sends nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) cut: Option<usize>,
    pub(crate) pace: Option<(usize, Duration)>,
    pub(crate) never: bool,
}

impl Answer {
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

type Handler = dyn Fn(&Seen) -> Answer + Send + Sync;

/// An HTTP server on loopback that records its requests.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) host: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(crate) async fn start(handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::listen(None, handler).await
    }

    /// [`Server::start`] with TLS.
    pub(crate) async fn secure(
        tls: rustls::ServerConfig,
        handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Some(Arc::new(tls).into()), handler).await
    }

    async fn listen(tls: Option<TlsAcceptor>, handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let server = Self { host, seen: seen.clone() };
        let handler: Arc<Handler> = Arc::new(handler);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, handler, seen) = (tls.clone(), handler.clone(), seen.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, false, handler, seen).await,
                        Some(tls) => {
                            let accepted = tls.accept(stream).into_fallible().await;
                            match accepted {
                                Ok(stream) => {
                                    let certified = stream.get_ref().1.peer_certificates().is_some();
                                    serve(stream, certified, handler, seen).await;
                                }
                                // The client must be able to read the TLS alert before the
                                // connection is closed.
                                Err((_, mut stream)) => {
                                    drop(stream.shutdown().await);
                                    drop(stream.read_to_end(&mut Vec::new()).await);
                                }
                            }
                        }
                    }
                });
            }
        });
        server
    }

    /// Serves `images` by path and tag, without authentication.
    pub(crate) async fn of(images: &[(&str, &Made)]) -> Self {
        let routes = routes(images);
        Self::start(move |request| route(&routes, request)).await
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    pub(crate) fn count(&self, method: &str, part: &str) -> usize {
        self.seen().iter().filter(|seen| seen.method == method && seen.path.contains(part)).count()
    }
}

/// Returns the content by path; images are named `repository:tag`.
pub(crate) fn routes(images: &[(&str, &Made)]) -> HashMap<String, Vec<u8>> {
    let mut routes = HashMap::new();
    for (name, made) in images {
        let (repository, tag) = name.split_once(':').unwrap();
        for pick in [tag.to_owned(), Digest::of(&made.manifest).to_string()] {
            routes.insert(format!("/v2/{repository}/manifests/{pick}"), made.manifest.clone());
        }
        for blob in made.blobs() {
            routes.insert(format!("/v2/{repository}/blobs/{}", Digest::of(blob)), blob.clone());
        }
    }
    routes
}

pub(crate) fn route(routes: &HashMap<String, Vec<u8>>, request: &Seen) -> Answer {
    let path = request.path.split('?').next().unwrap_or_default();
    let Some(body) = routes.get(path) else { return Answer::status(404) };
    let digest = Digest::of(body).to_string();
    let range = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    match range.and_then(|start| start.parse::<usize>().ok()) {
        Some(start) => Answer { status: 206, body: body[start..].to_vec(), ..Answer::default() }
            .with("content-range", format!("bytes {start}-{}/{}", body.len() - 1, body.len())),
        None => Answer::ok(body.clone()).with("docker-content-digest", digest),
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    certified: bool,
    handler: Arc<Handler>,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
        // A client that starts with TLS never sends a readable request.
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 || bytes[0] == 0x16 {
            return;
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut request = Seen {
        method: first.next().unwrap_or_default().to_owned(),
        path: first.next().unwrap_or_default().to_owned(),
        headers,
        body: body.to_owned(),
        certified,
    };
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while request.body.len() < length {
        let mut more = vec![0; length - request.body.len()];
        let count = stream.read(&mut more).await.unwrap_or(0);
        if count == 0 {
            return;
        }
        request.body.push_str(&String::from_utf8_lossy(&more[..count]));
    }
    let answer = handler(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", answer.status);
    head.push_str(&format!("content-length: {}\r\n", answer.body.len()));
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let body = if request.method == "HEAD" { &[][..] } else { &answer.body[..] };
    seen.lock().push(request);
    let sent = answer.cut.unwrap_or(body.len()).min(body.len());
    if answer.never {
        return std::future::pending().await;
    }
    // The client may disconnect early.
    match answer.pace {
        None => drop(stream.write_all(&[head.as_bytes(), &body[..sent]].concat()).await),
        Some((size, pause)) => {
            drop(stream.write_all(head.as_bytes()).await);
            for piece in body[..sent].chunks(size) {
                if stream.write_all(piece).await.is_err() || stream.flush().await.is_err() {
                    break;
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
    drop(stream.shutdown().await);
}
