//! Reads trunk frames and the ttrpc messages in them.

use super::{FRAME_HEADER, FRAME_MAX, Kind, MESSAGE_HEADER, MESSAGE_MAX, Service};

/// Memory for a message grows with the bytes that arrive: a header alone reserves this much.
const FIRST_CAPACITY: usize = 64 << 10;

/// Bytes that violate the protocol; the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("frame of {0} bytes, at most {FRAME_MAX}")]
    Frame(u32),
    #[error("ttrpc message of {0} bytes, at most {MESSAGE_MAX}")]
    Message(u32),
    #[error("ttrpc message of type {kind} on the {service:?} connection")]
    Kind { service: Service, kind: u8 },
}

/// A ttrpc message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub service: Service,
    pub kind: Kind,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The decoder of one trunk. It holds at most one unfinished message per logical connection.
#[derive(Debug, Default)]
pub struct Decoder {
    header: Partial<FRAME_HEADER>,
    /// The connection of the current frame, `None` if its bytes are dropped, and its missing bytes.
    frame: Option<(Option<Service>, usize)>,
    plugin: Unfinished,
    runtime: Unfinished,
}

impl Decoder {
    /// Adds bytes, and passes each message that they complete to `sink`.
    pub fn feed(&mut self, mut bytes: &[u8], sink: &mut impl FnMut(Message)) -> Result<(), WireError> {
        while !bytes.is_empty() {
            let Some((service, left)) = self.frame else {
                bytes = self.frame_header(bytes)?;
                continue;
            };
            let (now, later) = bytes.split_at(left.min(bytes.len()));
            match service {
                Some(Service::Plugin) => self.plugin.feed(Service::Plugin, now, sink)?,
                Some(Service::Runtime) => self.runtime.feed(Service::Runtime, now, sink)?,
                None => {}
            }
            self.frame = (now.len() < left).then(|| (service, left - now.len()));
            bytes = later;
        }
        Ok(())
    }

    /// Returns whether a frame or message is unfinished.
    #[must_use]
    pub fn is_inside_message(&self) -> bool {
        self.frame.is_some() || self.header.have > 0 || self.plugin.is_inside() || self.runtime.is_inside()
    }

    fn frame_header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], WireError> {
        let (header, rest) = self.header.fill(bytes);
        if let Some(header) = header {
            let id = number(&header[..4]);
            let length = number(&header[4..]);
            let bounded = usize::try_from(length).ok().filter(|length| *length <= FRAME_MAX);
            let length = bounded.ok_or(WireError::Frame(length))?;
            // A frame of 0 bytes has no content.
            self.frame = (length > 0).then(|| (Service::of_id(id), length));
        }
        Ok(rest)
    }
}

/// The bytes of a header that have arrived.
#[derive(Debug)]
struct Partial<const N: usize> {
    bytes: [u8; N],
    have: usize,
}

impl<const N: usize> Default for Partial<N> {
    fn default() -> Self {
        Self { bytes: [0; N], have: 0 }
    }
}

impl<const N: usize> Partial<N> {
    /// Adds bytes; returns the header once it is complete, and the bytes after it.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> (Option<[u8; N]>, &'a [u8]) {
        let (now, later) = bytes.split_at((N - self.have).min(bytes.len()));
        self.bytes[self.have..self.have + now.len()].copy_from_slice(now);
        self.have += now.len();
        if self.have < N {
            return (None, later);
        }
        self.have = 0;
        (Some(self.bytes), later)
    }
}

/// The unfinished message of one logical connection.
#[derive(Debug, Default)]
struct Unfinished {
    header: Partial<MESSAGE_HEADER>,
    /// The message, and the length of its payload.
    message: Option<(Message, usize)>,
}

impl Unfinished {
    fn is_inside(&self) -> bool {
        self.header.have > 0 || self.message.is_some()
    }

    fn feed(&mut self, service: Service, mut bytes: &[u8], sink: &mut impl FnMut(Message)) -> Result<(), WireError> {
        while !bytes.is_empty() {
            match &mut self.message {
                None => {
                    let (header, rest) = self.header.fill(bytes);
                    bytes = rest;
                    self.message = header.map(|header| begin(service, &header)).transpose()?;
                }
                Some((message, length)) => {
                    let (now, later) = bytes.split_at((*length - message.payload.len()).min(bytes.len()));
                    message.payload.extend_from_slice(now);
                    bytes = later;
                }
            }
            if let Some((message, _)) = self.message.take_if(|(message, length)| message.payload.len() == *length) {
                sink(message);
            }
        }
        Ok(())
    }
}

/// Checks a message by its header alone.
fn begin(service: Service, header: &[u8; MESSAGE_HEADER]) -> Result<(Message, usize), WireError> {
    let length = number(&header[..4]);
    let bounded = usize::try_from(length).ok().filter(|length| *length <= MESSAGE_MAX);
    let bytes = bounded.ok_or(WireError::Message(length))?;
    // A plugin responds on one connection and requests on the other; NRI has no streams of data.
    let kind = match service {
        Service::Plugin => Kind::Response,
        Service::Runtime => Kind::Request,
    };
    if header[8] != kind.number() {
        return Err(WireError::Kind { service, kind: header[8] });
    }
    let payload = Vec::with_capacity(bytes.min(FIRST_CAPACITY));
    Ok((Message { service, kind, stream: number(&header[4..8]), payload }, bytes))
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
