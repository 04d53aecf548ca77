//! Reading tar streams: ustar, GNU and PAX headers, in bounded memory whatever the stream says.

use std::io::{self, Read};

use crate::sparse::{self, Segment};

const BLOCK: usize = 512;
/// Long names and PAX records are kept in memory; xattr values are at most 64 KiB each.
const EXTENSION_MAX: u64 = 1 << 20;

/// A tar stream, entry by entry. Reading from the archive itself reads the current entry's data.
#[derive(Debug)]
pub(crate) struct Archive<R> {
    from: R,
    /// Data bytes of the current entry not read yet.
    left: u64,
    /// Zeros that fill its last block.
    padding: u64,
    position: u64,
}

/// One entry's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    /// Target of a symbolic or hard link.
    pub(crate) link: Vec<u8>,
    pub(crate) what: What,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Mtime,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Length of the file once written; data bytes in the stream are fewer if it is sparse.
    pub(crate) size: u64,
    /// Where the data of a sparse file goes.
    pub(crate) segments: Option<Vec<Segment>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    File,
    Directory,
    Symlink,
    HardLink,
    CharDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
    Fifo,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mtime {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

/// A stream that is no tar archive we can read.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The source of the stream failed.
    #[error("reading the archive")]
    Read(#[from] io::Error),
    /// A header's checksum is wrong.
    #[error("tar header at byte {0} has a wrong checksum")]
    Checksum(u64),
    /// A number in a header is not one, or too large.
    #[error("tar header field {0} is not a number in range")]
    Number(&'static str),
    /// An extension header that would not fit in memory.
    #[error("tar extension of {0} bytes is more than {EXTENSION_MAX}")]
    Extension(u64),
    /// A malformed PAX record.
    #[error("malformed PAX record")]
    Pax,
    /// A malformed or too long map of a sparse file.
    #[error("malformed or too long sparse file map")]
    Sparse,
    /// An entry type that means nothing in an image layer.
    #[error("tar entry type {:?} is not supported", char::from(*.0))]
    Type(u8),
}

/// What extension headers say about the entry that follows them.
#[derive(Debug, Default)]
struct Extras {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<Mtime>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: sparse::Pax,
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, left: 0, padding: 0, position: 0 }
    }

    /// Where in the stream the current entry's data is being read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Gives back the source, wherever in the stream it stands.
    pub(crate) fn into_source(self) -> R {
        self.from
    }

    /// Skips what is left of the current entry and reads the next one's headers.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, TarError> {
        let mut extras = Extras::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header[124..136]).ok_or(TarError::Number("size"))?;
            match header[156] {
                b'x' => {
                    let records = self.extension(size)?;
                    extras.read(&records)?;
                }
                // Defaults for all later entries: layers do not use them, and ignoring them is what others do.
                b'g' => self.open(size),
                b'L' => extras.path = Some(until_nul(self.extension(size)?)),
                b'K' => extras.link = Some(until_nul(self.extension(size)?)),
                _ => return self.entry(&header, size, extras).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &[u8; BLOCK], size: u64, extras: Extras) -> Result<Entry, TarError> {
        let path = extras.path.unwrap_or_else(|| header_path(header));
        let device = |kind: fn(u32, u32) -> What| -> Result<What, TarError> {
            let part = |range: std::ops::Range<usize>, name| {
                number(&header[range]).and_then(|n| u32::try_from(n).ok()).ok_or(TarError::Number(name))
            };
            Ok(kind(part(329..337, "devmajor")?, part(337..345, "devminor")?))
        };
        let flag = header[156];
        let what = match flag {
            // In the oldest format a trailing slash is all that marks a directory.
            0 if path.ends_with(b"/") => What::Directory,
            0 | b'0' | b'7' | b'S' => What::File,
            b'1' => What::HardLink,
            b'2' => What::Symlink,
            b'3' => device(|major, minor| What::CharDevice { major, minor })?,
            b'4' => device(|major, minor| What::BlockDevice { major, minor })?,
            b'5' => What::Directory,
            b'6' => What::Fifo,
            other => return Err(TarError::Type(other)),
        };
        let id = |given: Option<u32>, range: std::ops::Range<usize>, name| match given {
            Some(id) => Ok(id),
            None => number(&header[range]).and_then(checked_id).ok_or(TarError::Number(name)),
        };
        let uid = id(extras.uid, 108..116, "uid")?;
        let gid = id(extras.gid, 116..124, "gid")?;
        let mode = number(&header[100..108]).ok_or(TarError::Number("mode"))? & 0o7777;
        let mtime = match extras.mtime {
            Some(mtime) => mtime,
            None => Mtime { seconds: signed(&header[136..148]).ok_or(TarError::Number("mtime"))?, nanos: 0 },
        };
        let mut entry = Entry {
            path,
            link: extras.link.unwrap_or_else(|| until_nul(header[157..257].to_vec())),
            what,
            mode: u32::try_from(mode).map_err(|_| TarError::Number("mode"))?,
            uid,
            gid,
            mtime,
            xattrs: extras.xattrs,
            size: 0,
            segments: None,
        };
        if what == What::File {
            let stored = extras.size.unwrap_or(size);
            self.open(stored);
            entry.size = stored;
            self.sparse(header, &mut entry, extras.sparse)?;
        }
        Ok(entry)
    }

    fn sparse(&mut self, header: &[u8; BLOCK], entry: &mut Entry, pax: sparse::Pax) -> Result<(), TarError> {
        let map = if header[156] == b'S' {
            let data = self.left;
            // The map's extra blocks stand between the header and the data.
            self.open(0);
            let map = sparse::old_gnu(header, || {
                let mut block = [0; BLOCK];
                self.from.read_exact(&mut block)?;
                self.position += 512;
                Ok(block)
            })?;
            self.open(data);
            Some(map)
        } else {
            pax.finish(self)?
        };
        if let Some(map) = map {
            map.check(self.left)?;
            entry.size = map.size;
            entry.segments = Some(map.segments);
            if let Some(name) = map.name {
                entry.path = name;
            }
        }
        Ok(())
    }

    fn open(&mut self, size: u64) {
        self.left = size;
        self.padding = (512 - size % 512) % 512;
    }

    fn skip(&mut self) -> Result<(), TarError> {
        let gap = self.left.saturating_add(self.padding);
        let skipped = io::copy(&mut self.from.by_ref().take(gap), &mut io::sink())?;
        // Some writers leave out the padding of the last entry.
        if skipped < self.left {
            return Err(TarError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        self.position += skipped;
        self.open(0);
        Ok(())
    }

    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.from.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(TarError::Read(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let at = self.position;
        self.position += 512;
        if block.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let summed = |byte: fn(u8) -> i64| -> i64 {
            let spaces = 8 * i64::from(b' ');
            block[..148].iter().chain(&block[156..]).map(|&b| byte(b)).sum::<i64>() + spaces
        };
        let stated = number(&block[148..156]).and_then(|sum| i64::try_from(sum).ok());
        // Some old writers summed signed bytes.
        if stated != Some(summed(i64::from)) && stated != Some(summed(|b| i64::from(b.cast_signed()))) {
            return Err(TarError::Checksum(at));
        }
        Ok(Some(block))
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > EXTENSION_MAX {
            return Err(TarError::Extension(size));
        }
        self.open(size);
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let count = self.from.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let read = u64::try_from(count).unwrap_or(u64::MAX);
        self.left -= read;
        self.position += read;
        Ok(count)
    }
}

impl Extras {
    /// Reads PAX records: `length key=value\n`, where the value may hold any byte.
    fn read(&mut self, mut records: &[u8]) -> Result<(), TarError> {
        while !records.is_empty() {
            let space = records.iter().position(|&b| b == b' ').ok_or(TarError::Pax)?;
            let length: usize = decimal(&records[..space])
                .and_then(|n| usize::try_from(n).ok())
                .filter(|&n| n > space + 1 && n <= records.len())
                .ok_or(TarError::Pax)?;
            let record = records[space + 1..length].strip_suffix(b"\n").ok_or(TarError::Pax)?;
            let equals = record.iter().position(|&b| b == b'=').ok_or(TarError::Pax)?;
            self.record(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), TarError> {
        let id = || decimal(value).and_then(checked_id).ok_or(TarError::Pax);
        match key {
            // An empty value takes back an earlier or global one.
            b"path" => self.path = (!value.is_empty()).then(|| value.to_vec()),
            b"linkpath" => self.link = (!value.is_empty()).then(|| value.to_vec()),
            b"size" => self.size = Some(decimal(value).ok_or(TarError::Pax)?),
            b"uid" => self.uid = Some(id()?),
            b"gid" => self.gid = Some(id()?),
            b"mtime" => self.mtime = Some(time(value).ok_or(TarError::Pax)?),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.retain(|(have, _)| have != name);
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.record(key, value)?;
                }
                // Everything else (atime, uname, comment, vendor keys) says nothing we would act on.
            }
        }
        Ok(())
    }
}

/// A field of octal digits, or base 256 where the first bit is set; blank is 0.
pub(crate) fn number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        return u64::try_from(signed(field)?).ok();
    }
    let text = field.split(|&b| b == 0).next()?.trim_ascii();
    text.iter().try_fold(0u64, |sum, &digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

fn signed(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 == 0 {
        return i64::try_from(number(field)?).ok();
    }
    // Two's complement, with the marker bit standing where the sign would be repeated.
    let negative = first & 0x40 != 0;
    let start = if negative { -1i64 } else { 0 };
    field.iter().enumerate().try_fold(start, |sum, (at, &byte)| {
        let byte = if at == 0 && !negative { byte & 0x7f } else { byte };
        sum.checked_mul(256)?.checked_add(i64::from(byte))
    })
}

pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &digit| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// `-12.345678901`: seconds with an optional fraction of any length.
fn time(text: &[u8]) -> Option<Mtime> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|&b| b == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nanos = (0..9).fold(0u32, |sum, at| sum * 10 + u32::from(fraction.get(at).map_or(0, |d| d - b'0')));
    Some(match (negative, nanos) {
        (false, _) => Mtime { seconds, nanos },
        (true, 0) => Mtime { seconds: -seconds, nanos },
        (true, _) => Mtime { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
    })
}

/// `chown` takes the largest number as "leave alone", so no file can have it.
fn checked_id(id: u64) -> Option<u32> {
    u32::try_from(id).ok().filter(|&id| id != u32::MAX)
}

fn header_path(header: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(header[..100].to_vec());
    let prefix = until_nul(header[345..500].to_vec());
    // GNU tar uses "ustar  " and keeps other things where POSIX has the prefix.
    if &header[257..263] == b"ustar\0" && !prefix.is_empty() { [prefix, name].join(&b'/') } else { name }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|&b| b == 0) {
        bytes.truncate(end);
    }
    bytes
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
