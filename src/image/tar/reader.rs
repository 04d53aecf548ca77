//! Reads tar streams (ustar, GNU and PAX headers) with limited memory.

use std::io::{self, Read};

pub(crate) use crate::tar::entry::{Entry, EntryKind, Mtime};
use crate::tar::header::{BLOCK, Block, number, until_nul};
use crate::tar::pax::PaxOverrides;
use crate::tar::{header, sparse};

/// Limit for the long names and PAX records of one entry, which are kept in memory; xattr values
/// have at most 64 KiB each.
const EXTENSION_MAX: u64 = 1 << 20;

/// Iterates over the entries of a tar stream. As `Read`, it yields the current entry's data.
#[derive(Debug)]
pub(crate) struct TarReader<R> {
    from: R,
    /// Unread data bytes of the current entry.
    left: u64,
    /// Zero bytes after the data that fill the last block.
    padding: u64,
    position: u64,
}

/// A stream that is not a supported tar archive.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The source of the stream failed.
    #[error("reading the tar stream of an image layer or archive")]
    Read(#[from] io::Error),
    /// A header's checksum is wrong.
    #[error("invalid tar stream of an image layer or archive: the header at byte {0} has a wrong checksum")]
    Checksum(u64),
    /// A number in a header is malformed or out of range.
    #[error("invalid tar stream of an image layer or archive: header field {0} is not a number in range")]
    Number(&'static str),
    /// Extension headers above the memory limit.
    #[error(
        "invalid tar stream of an image layer or archive: the extensions of one entry have {0} bytes, the limit is {EXTENSION_MAX}"
    )]
    Extension(u64),
    /// More extended attributes than allowed.
    #[error("invalid tar stream of an image layer or archive: an entry has too many extended attributes")]
    Xattrs,
    /// A malformed PAX record.
    #[error("invalid tar stream of an image layer or archive: malformed PAX record")]
    Pax,
    /// A malformed or too long map of a sparse file.
    #[error("invalid tar stream of an image layer or archive: malformed or too long sparse file map")]
    Sparse,
    /// An entry type that is not allowed in an image layer.
    #[error("invalid tar stream of an image layer or archive: entry type {:?} is not supported", char::from(*.0))]
    Type(u8),
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, left: 0, padding: 0, position: 0 }
    }

    /// Returns the number of unread data bytes of the current entry.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Returns the position in the stream of the next data byte.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the source of the archive.
    pub(crate) fn source(&mut self) -> &mut R {
        &mut self.from
    }

    /// Returns the source, at its current position.
    pub(crate) fn into_source(self) -> R {
        self.from
    }

    /// Skips the rest of the current entry and reads the next entry's headers.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, TarError> {
        let mut extras = PaxOverrides::default();
        let mut extensions = 0u64;
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header[124..136]).ok_or(TarError::Number("size"))?;
            if matches!(header[156], b'x' | b'g' | b'L' | b'K') {
                // Several extensions also use memory, and an endless series of empty ones would
                // never end.
                extensions = extensions.saturating_add(size).saturating_add(512);
                if extensions > EXTENSION_MAX + 512 {
                    return Err(TarError::Extension(extensions - 512));
                }
            }
            match header[156] {
                b'x' => {
                    let records = self.extension(size)?;
                    extras.read(&records)?;
                }
                // Defaults for all later entries: layers do not use them, and containerd ignores
                // them, too.
                b'g' => self.open(size),
                b'L' => extras.path = Some(until_nul(self.extension(size)?)),
                b'K' => extras.link = Some(until_nul(self.extension(size)?)),
                _ => {
                    let stored = extras.size.unwrap_or(size);
                    let sparse = std::mem::take(&mut extras.sparse);
                    let mut entry = Entry::new(&header, extras)?;
                    if entry.what == EntryKind::File {
                        self.open(stored);
                        entry.size = stored;
                        self.sparse(&header, &mut entry, sparse)?;
                    }
                    return Ok(Some(entry));
                }
            }
        }
    }

    fn sparse(&mut self, header: &Block, entry: &mut Entry, pax: sparse::Pax) -> Result<(), TarError> {
        let map = if header[156] == b'S' {
            let data = self.left;
            // The map's extra blocks are between the header and the data.
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
        // Some writers omit the padding of the last entry.
        if skipped < self.left {
            return Err(TarError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        self.position += skipped;
        self.open(0);
        Ok(())
    }

    fn header(&mut self) -> Result<Option<Block>, TarError> {
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
        if !header::is_whole(&block) {
            return Err(TarError::Checksum(at));
        }
        Ok(Some(block))
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        self.open(size);
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl<R: Read> Read for TarReader<R> {
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

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
