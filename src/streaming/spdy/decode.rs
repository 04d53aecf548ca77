//! Decodes SPDY frames as their bytes arrive, in bounded memory.

use bytes::{Buf as _, Bytes, BytesMut};

use super::headers::{BLOCK_MAX, Headers, Inflater};
use super::{FIN, HEAD, ProtocolError, UNIDIRECTIONAL, VERSION, kind};

/// The longest control frame that is accepted: headers that do not compress, and settings, which
/// are ignored.
const CONTROL_MAX: usize = BLOCK_MAX + 16;

/// A frame, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The other side opens a stream; with `fin` it will not write to it, with `one_way` we must
    /// not.
    Opened {
        stream: u32,
        headers: Headers,
        fin: bool,
        one_way: bool,
    },
    Replied {
        stream: u32,
        headers: Headers,
        fin: bool,
    },
    /// A part of a data frame: bytes are passed on as they arrive, however long the frame is.
    Data {
        stream: u32,
        bytes: Bytes,
        fin: bool,
    },
    Headers {
        stream: u32,
        headers: Headers,
        fin: bool,
    },
    Reset {
        stream: u32,
        status: u32,
    },
    Ping(u32),
    GoAway {
        last: u32,
    },
    /// A window update; stream 0 is the whole connection.
    Window {
        stream: u32,
        more: u32,
    },
    Settings,
}

/// Decodes the frames of one side of a connection.
#[derive(Debug, Default)]
pub struct Decoder {
    inflater: Inflater,
    /// The data frame that is being received.
    current: Option<Data>,
}

#[derive(Debug, Clone, Copy)]
struct Data {
    stream: u32,
    left: usize,
    fin: bool,
}

impl Decoder {
    /// Removes the next event from the front of `buffer`, if there is a complete one. Needs at most
    /// a few KiB at once.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Event>, ProtocolError> {
        if let Some(data) = self.current {
            return Ok(self.piece(data, buffer));
        }
        let Some((first, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
        let Some((second, _)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let [flags, length @ ..] = *second;
        let length = usize::try_from(u32::from_be_bytes([0, length[0], length[1], length[2]])).unwrap_or(usize::MAX);
        let word = u32::from_be_bytes(*first);
        if word >> 31 == 0 {
            if word == 0 {
                return Err(ProtocolError::NoStream);
            }
            buffer.advance(HEAD);
            let data = Data { stream: word, left: length, fin: flags & FIN != 0 };
            return Ok(self.piece(data, buffer));
        }
        let [version, kind] =
            [u16::from_be_bytes([first[0] & 0x7f, first[1]]), u16::from_be_bytes([first[2], first[3]])];
        if version != VERSION {
            return Err(ProtocolError::Version(version));
        }
        check(kind, length)?;
        if buffer.len() < HEAD + length {
            return Ok(None);
        }
        buffer.advance(HEAD);
        let content = buffer.split_to(length);
        self.control(kind, flags, &content).map(Some)
    }

    fn piece(&mut self, mut data: Data, buffer: &mut BytesMut) -> Option<Event> {
        let bytes = buffer.split_to(buffer.len().min(data.left)).freeze();
        data.left -= bytes.len();
        let over = data.left == 0;
        self.current = (!over).then_some(data);
        if bytes.is_empty() && !over {
            return None;
        }
        Some(Event::Data { stream: data.stream, bytes, fin: over && data.fin })
    }

    fn control(&mut self, kind: u16, flags: u8, content: &[u8]) -> Result<Event, ProtocolError> {
        let fin = flags & FIN != 0;
        Ok(match kind {
            kind::SYN_STREAM => Event::Opened {
                stream: stream(content, 0)?,
                headers: self.inflater.read(&content[10..])?,
                fin,
                one_way: flags & UNIDIRECTIONAL != 0,
            },
            kind::SYN_REPLY => {
                Event::Replied { stream: stream(content, 0)?, headers: self.inflater.read(&content[4..])?, fin }
            }
            kind::HEADERS => {
                Event::Headers { stream: stream(content, 0)?, headers: self.inflater.read(&content[4..])?, fin }
            }
            kind::RST_STREAM => Event::Reset { stream: stream(content, 0)?, status: word(content, 4) },
            kind::PING => Event::Ping(word(content, 0)),
            kind::GOAWAY => Event::GoAway { last: word(content, 0) & 0x7fff_ffff },
            kind::WINDOW_UPDATE => {
                Event::Window { stream: word(content, 0) & 0x7fff_ffff, more: word(content, 4) & 0x7fff_ffff }
            }
            // The only other type that passes `check`.
            _ => Event::Settings,
        })
    }
}

/// Refuses a control frame by its first eight bytes, before any memory is allocated for it.
fn check(kind: u16, length: usize) -> Result<(), ProtocolError> {
    let fits = match kind {
        kind::SYN_STREAM => (10..=CONTROL_MAX).contains(&length),
        kind::SYN_REPLY | kind::HEADERS | kind::SETTINGS => (4..=CONTROL_MAX).contains(&length),
        kind::RST_STREAM | kind::GOAWAY | kind::WINDOW_UPDATE => length == 8,
        kind::PING => length == 4,
        other => return Err(ProtocolError::Kind(other)),
    };
    if fits { Ok(()) } else { Err(ProtocolError::Length { kind, length }) }
}

/// Reads a number of content whose length was checked; missing bytes are 0.
fn word(content: &[u8], at: usize) -> u32 {
    content.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn stream(content: &[u8], at: usize) -> Result<u32, ProtocolError> {
    match word(content, at) & 0x7fff_ffff {
        0 => Err(ProtocolError::NoStream),
        stream => Ok(stream),
    }
}
