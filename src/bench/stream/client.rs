//! A client of streaming servers with SPDY/3.1, as in kubectl and crictl. It counts bytes.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use bytes::BytesMut;
use streaming::spdy::{Decoder, Encoder, Event, ProtocolError, data_head};

/// Read and write timeout.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum length of the answer to an upgrade.
const HEAD_MAX: usize = 16 << 10;

/// Why a stream failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the runtime refused the benchmark's streaming request: {0}")]
    Asked(String),
    #[error("the runtime returned a streaming URL that the benchmark does not support: {0}")]
    Url(String),
    #[error("the streaming server refused the upgrade of the benchmark's connection: {0}")]
    Upgrade(String),
    #[error("{0}")]
    Io(#[source] io::Error),
    #[error("{0}")]
    Violation(#[source] ProtocolError),
    #[error("{0}")]
    Failed(String),
    #[error("the benchmark received {got} bytes over an exec or port-forward stream: expected {want}")]
    Bytes { want: u64, got: u64 },
    #[error("a thread of the benchmark's streaming client panicked; please report this bug")]
    Panic,
}

/// A connection upgraded to SPDY.
#[derive(Debug)]
pub(super) struct Spdy {
    socket: TcpStream,
    encoder: Encoder,
    decoder: Decoder,
    buffer: BytesMut,
    /// Buffer of a single read, before the bytes are appended to `buffer`.
    block: Vec<u8>,
    last: u32,
}

impl Spdy {
    fn connect(url: &str, protocol: &str) -> Result<Self, Error> {
        let odd = || Error::Url(url.to_owned());
        let rest = url.strip_prefix("http://").ok_or_else(odd)?;
        let (host, path) = rest.split_at(rest.find('/').ok_or_else(odd)?);
        let mut socket = TcpStream::connect(host).map_err(Error::Io)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(Error::Io)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(Error::Io)?;
        socket.set_nodelay(true).map_err(Error::Io)?;
        write!(
            socket,
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: {protocol}\r\n\r\n"
        )
        .map_err(Error::Io)?;
        let mut head = Vec::new();
        let mut byte = [0];
        // Byte by byte, so that no bytes after the head are read.
        while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_MAX && socket.read(&mut byte).map_err(Error::Io)? == 1 {
            head.push(byte[0]);
        }
        if !head.starts_with(b"HTTP/1.1 101 ") {
            let head = String::from_utf8_lossy(&head);
            return Err(Error::Upgrade(head.lines().next().unwrap_or_default().to_owned()));
        }
        let (encoder, decoder) = (Encoder::default(), Decoder::default());
        Ok(Self { socket, encoder, decoder, buffer: BytesMut::new(), block: vec![0; 256 << 10], last: 0 })
    }

    fn open(&mut self, headers: &[(&str, &str)]) -> Result<u32, Error> {
        self.last += if self.last == 0 { 1 } else { 2 };
        let mut bytes = Vec::new();
        self.encoder.open(self.last, headers, false, &mut bytes);
        self.socket.write_all(&bytes).map_err(Error::Io)?;
        Ok(self.last)
    }

    fn finish(&mut self, stream: u32) -> Result<(), Error> {
        self.socket.write_all(&data_head(stream, true, 0)).map_err(Error::Io)
    }

    /// Returns the next frame; None at EOF.
    fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.decoder.next(&mut self.buffer).map_err(Error::Violation)? {
                return Ok(Some(event));
            }
            match self.socket.read(&mut self.block) {
                Ok(0) => return Ok(None),
                Ok(n) => self.buffer.extend_from_slice(&self.block[..n]),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(e) => return Err(Error::Io(e)),
            }
        }
    }

    /// Counts the bytes of stream `counted` and collects those of `error`, until the streams of `until` are closed.
    fn count(&mut self, counted: u32, error: u32, until: Until) -> Result<(u64, String), Error> {
        let (mut count, mut words) = (0, Vec::new());
        let (mut counted_over, mut error_over) = (false, false);
        while !(counted_over && (error_over || until == Until::Counted)) {
            match self.next()? {
                Some(Event::Data { stream, bytes, fin }) if stream == counted => {
                    count += bytes.len() as u64;
                    counted_over |= fin;
                }
                Some(Event::Data { stream, bytes, fin }) if stream == error => {
                    words.extend_from_slice(&bytes);
                    error_over |= fin;
                }
                // Some servers close a finished stream by a reset; count and status show whether it was complete.
                Some(Event::Reset { stream, .. }) => {
                    counted_over |= stream == counted;
                    error_over |= stream == error;
                }
                Some(_) => {}
                None => break,
            }
        }
        Ok((count, String::from_utf8_lossy(&words).into_owned()))
    }
}

/// The streams that must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The counted stream.
    Counted,
    /// The counted stream and the error stream.
    Both,
}

/// Reads the output of a command to its end, and returns the number of bytes.
pub(super) fn exec(url: &str) -> Result<u64, Error> {
    let mut spdy = Spdy::connect(url, "v4.channel.k8s.io")?;
    let error = spdy.open(&[("streamtype", "error")])?;
    let stdout = spdy.open(&[("streamtype", "stdout")])?;
    let (count, words) = spdy.count(stdout, error, Until::Both)?;
    let status: serde_json::Value = serde_json::from_str(&words).unwrap_or_default();
    if status["status"] == "Success" { Ok(count) } else { Err(Error::Failed(words)) }
}

/// Reads from a forwarded port to EOF, and returns the number of bytes.
pub(super) fn forward(url: &str, port: u16) -> Result<u64, Error> {
    let mut spdy = Spdy::connect(url, "portforward.k8s.io")?;
    let port = port.to_string();
    let headers = |kind| [("streamtype", kind), ("port", port.as_str()), ("requestid", "0")];
    let error = spdy.open(&headers("error"))?;
    let data = spdy.open(&headers("data"))?;
    spdy.finish(error)?;
    let (count, words) = spdy.count(data, error, Until::Counted)?;
    if words.is_empty() { Ok(count) } else { Err(Error::Failed(words)) }
}
