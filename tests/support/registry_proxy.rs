//! A proxy between daemon and registry that records every request and changes responses.
//!
//! Every request is one connection. A [`Proxy`]'s rule decides for each request: forward it, and
//! return the response in some [`Way`], or respond without the registry.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sync::Mutex;

use crate::support::harness::seconds;
use crate::support::image_fixture::{Blob, Pieces};
use crate::support::registry_fixture::Registry;

/// The maximum delay of a response, so that no thread outlives its test for long.
const PATIENCE: u64 = 30;

/// A request as received.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) verb: String,
    /// With its query.
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// The number of earlier requests with this method and path.
    pub(crate) nth: usize,
    /// Bytes of the body that were sent.
    pub(crate) sent: u64,
}

/// The handling of a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Pass(Way),
    /// Sends a status with its reason, header lines and a body.
    Answer(&'static str, Vec<(&'static str, String)>, Vec<u8>),
    /// Sends bytes at the start, and then other bytes repeatedly until the client disconnects, with
    /// a pause before each.
    Endless(&'static str, Vec<u8>, Duration),
}

/// How the registry's response is returned; numbers count bytes of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Whole,
    /// Closes the connection after this number of bytes.
    Cut(u64),
    /// Sends nothing after this number of bytes.
    Stall(u64),
    /// Changes the byte at this offset.
    Flip(u64),
    /// Pauses before each part of this size.
    Slow(usize, Duration),
    /// Ignores the requested range and returns the whole blob.
    NoRange,
    /// The same, with the status of a partial response.
    FalseRange,
    /// Sends this Content-Length.
    Length(u64),
}

type Rule = dyn Fn(&Request) -> Act + Send + Sync;

struct House {
    /// The port of the registry.
    upstream: Option<u16>,
    rule: Mutex<Arc<Rule>>,
    seen: Mutex<Vec<Request>>,
    closed: AtomicBool,
}

/// The proxy; ends when dropped.
pub(crate) struct Proxy {
    port: u16,
    house: Arc<House>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns whether the request is for the content of a blob.
    pub(crate) fn is_blob(&self) -> bool {
        self.verb == "GET" && self.path.contains("/blobs/")
    }

    pub(crate) fn is_manifest(&self) -> bool {
        self.path.contains("/manifests/")
    }

    pub(crate) fn is_for(&self, blob: &Blob) -> bool {
        self.path.contains(&blob.digest)
    }
}

impl Act {
    pub(crate) fn pass() -> Self {
        Self::Pass(Way::Whole)
    }

    pub(crate) fn status(status: &'static str) -> Self {
        Self::Answer(status, Vec::new(), Vec::new())
    }

    pub(crate) fn json(body: impl fmt::Display) -> Self {
        Self::document("application/json", body.to_string().into_bytes())
    }

    pub(crate) fn document(kind: &str, body: Vec<u8>) -> Self {
        Self::Answer("200 OK", vec![("Content-Type", kind.to_owned())], body)
    }

    pub(crate) fn redirect(to: String) -> Self {
        Self::Answer("307 Temporary Redirect", vec![("Location", to)], Vec::new())
    }
}

impl Proxy {
    /// Starts a proxy in front of a registry.
    pub(crate) fn before(registry: &Registry, rule: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        Self::open(Some(registry.port()), rule)
    }

    /// Starts a proxy without a registry.
    pub(crate) fn alone(rule: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        Self::open(None, rule)
    }

    /// Starts a registry of one image, which a real registry might refuse.
    pub(crate) fn of(pieces: Pieces) -> Self {
        Self::alone(move |request| serve(&pieces, request))
    }

    fn open(upstream: Option<u16>, rule: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let house = Arc::new(House {
            upstream,
            rule: Mutex::new(Arc::new(rule)),
            seen: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
        });
        let inside = house.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if inside.closed.load(Ordering::Acquire) {
                    return;
                }
                let inside = inside.clone();
                // Clients may disconnect at any time.
                std::thread::spawn(move || inside.serve(stream).ok());
            }
        });
        Self { port, house }
    }

    pub(crate) fn rule(&self, rule: impl Fn(&Request) -> Act + Send + Sync + 'static) {
        *self.house.rule.lock() = Arc::new(rule);
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns all requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.house.seen.lock().clone()
    }

    pub(crate) fn count(&self, what: impl Fn(&Request) -> bool) -> usize {
        self.house.seen.lock().iter().filter(|request| what(request)).count()
    }

    /// Returns the number of bytes of blobs that were sent.
    pub(crate) fn blob_bytes(&self) -> u64 {
        self.house.seen.lock().iter().filter(|request| request.is_blob()).map(|request| request.sent).sum()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.house.closed.store(true, Ordering::Release);
        // Wakes the thread that accepts connections.
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

/// Responds as a registry with only this image.
fn serve(pieces: &Pieces, request: &Request) -> Act {
    let Pieces { layers, config, manifest, kind } = pieces;
    if request.is_manifest() {
        return Act::document(kind, manifest.bytes.clone());
    }
    match layers.iter().chain([config]).find(|blob| request.is_for(blob)) {
        Some(blob) => Act::document("application/octet-stream", blob.bytes.clone()),
        None => Act::status("404 Not Found"),
    }
}

impl House {
    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_read_timeout(Some(seconds(PATIENCE)))?;
        client.set_write_timeout(Some(seconds(PATIENCE)))?;
        client.set_nodelay(true)?;
        let (head, rest) = read_head(&mut client)?;
        let mut request = parse(&head);
        let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut body = rest;
        (&mut client).take(length - u64::try_from(body.len()).unwrap()).read_to_end(&mut body)?;
        request.body = String::from_utf8_lossy(&body).into_owned();
        let index = {
            let mut seen = self.seen.lock();
            request.nth =
                seen.iter().filter(|other| (&other.verb, &other.path) == (&request.verb, &request.path)).count();
            seen.push(request.clone());
            seen.len() - 1
        };
        let rule = self.rule.lock().clone();
        let mut out = Out { client, house: self, index, head_only: request.verb == "HEAD" };
        match rule(&request) {
            Act::Pass(way) => self.pass(&request, way, &mut out),
            Act::Answer(status, headers, body) => {
                let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
                headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
                out.client.write_all(format!("{head}\r\n").as_bytes())?;
                out.body(&body)?;
                out.end()
            }
            Act::Endless(head, piece, pause) => {
                out.client.write_all(head.as_bytes())?;
                loop {
                    std::thread::sleep(pause);
                    out.client.write_all(&piece)?;
                }
            }
        }
    }

    fn pass(&self, request: &Request, way: Way, out: &mut Out<'_>) -> io::Result<()> {
        let port = self.upstream.expect("a registry is behind this proxy");
        let mut upstream = TcpStream::connect(("127.0.0.1", port))?;
        upstream.set_read_timeout(Some(seconds(PATIENCE)))?;
        let mut ask =
            format!("{} {} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n", request.verb, request.path);
        let without = ["host", "connection"];
        let range = matches!(way, Way::NoRange | Way::FalseRange).then_some("range");
        for (name, value) in &request.headers {
            let name = name.to_ascii_lowercase();
            if !without.contains(&name.as_str()) && Some(name.as_str()) != range {
                ask.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        upstream.write_all(format!("{ask}\r\n{}", request.body).as_bytes())?;
        let (head, first) = read_head(&mut upstream)?;
        out.client.write_all(answer_head(&head, way, request).as_bytes())?;
        // Reads the bytes received with the head, then the rest.
        out.copy((&first[..]).chain(upstream), way)
    }
}

/// Changes the head of the registry's response.
fn answer_head(head: &str, way: Way, request: &Request) -> String {
    let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
    lines.retain(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    lines.push("Connection: close".to_owned());
    if let Way::Length(length) = way {
        lines.retain(|line| !line.to_ascii_lowercase().starts_with("content-length:"));
        lines.push(format!("Content-Length: {length}"));
    }
    if let (Way::FalseRange, Some(range)) = (way, request.header("range")) {
        lines[0] = "HTTP/1.1 206 Partial Content".to_owned();
        lines.push(format!("Content-Range: bytes {}999999/1000000", range.trim_start_matches("bytes=")));
    }
    lines.join("\r\n") + "\r\n\r\n"
}

fn parse(head: &str) -> Request {
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let (verb, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let headers = lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.into(), value.into()));
    Request { verb, path, headers: headers.collect(), body: String::new(), nth: 0, sent: 0 }
}

/// Splits a head from the bytes after it.
fn read_head(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes[..end]).into_owned(), rest));
        }
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    }
}

/// The connection to the client.
struct Out<'a> {
    client: TcpStream,
    house: &'a House,
    index: usize,
    /// Responses to HEAD have no body.
    head_only: bool,
}

impl Out<'_> {
    fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.head_only {
            return Ok(());
        }
        self.client.write_all(bytes)?;
        if let Some(request) = self.house.seen.lock().get_mut(self.index) {
            request.sent += u64::try_from(bytes.len()).unwrap();
        }
        Ok(())
    }

    fn copy(&mut self, mut from: impl Read, way: Way) -> io::Result<()> {
        let mut piece = vec![0; if let Way::Slow(size, _) = way { size } else { 64 << 10 }];
        let mut done = 0;
        loop {
            let most = match way {
                Way::Cut(end) | Way::Stall(end) => piece.len().min(usize::try_from(end - done).unwrap()),
                _ => piece.len(),
            };
            let count = from.read(&mut piece[..most])?;
            if count == 0 {
                break;
            }
            let after = done + u64::try_from(count).unwrap();
            match way {
                Way::Flip(at) if (done..after).contains(&at) => piece[usize::try_from(at - done).unwrap()] ^= 1,
                Way::Slow(_, pause) => std::thread::sleep(pause),
                _ => {}
            }
            self.body(&piece[..count])?;
            done = after;
        }
        if let Way::Stall(_) = way {
            // Until the client disconnects.
            self.client.read_to_end(&mut Vec::new())?;
        }
        self.end()
    }

    /// Closes the connection without a reset, so that all sent data arrives.
    fn end(&mut self) -> io::Result<()> {
        self.client.shutdown(Shutdown::Write)?;
        self.client.read_to_end(&mut Vec::new()).map(drop)
    }
}
