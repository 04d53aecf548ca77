//! A layer's tape: all of its tar stream that is not file content, and where the content is.
//!
//! Files alone do not say what stream they came from: the order of entries, the form of headers, padding and whatever
//! follows the end are lost. The tape has these bytes, so that a layer can be exported with the digest it came with.
//!
//! ```text
//! layers/N/tar-split.zst   one zstd frame of: the magic words, then records up to END. Numbers are 8 bytes, little-endian.
//!   RAW   length, bytes           bytes of the stream
//!   FILE  inode, length, path     the runs that follow are content of this file
//!   RUN   offset, length          content of that file
//! layers/N/replaced/INODE         content of a file that a later entry of the layer replaced
//! ```
//! Paths are without symbolic links on the way, since a link may be replaced later. All memory is bounded: a window of
//! 128 KiB and buffers of the same size.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use crate::tar::tar_assemble::assemble;

pub(crate) const MAGIC: &[u8; 16] = b"crisp tarsplit1\n";
pub(crate) const RAW: u8 = 0;
pub(crate) const FILE: u8 = 1;
pub(crate) const RUN: u8 = 2;
pub(crate) const END: u8 = 3;
/// More makes the tape no smaller, since headers repeat what was just before them.
pub(crate) const WINDOW_LOG: u32 = 17;
/// As fast as the compressor gets without giving up on headers.
const LEVEL: i32 = 1;
const RAW_MAX: usize = 1 << 16;

/// A tape that could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TarSplitError {
    /// The layer was unpacked by a crisp that made no tapes.
    #[error("layer {} has no tape", .0.display())]
    None(PathBuf),
    /// A part of the layer could not be read.
    #[error("reading {}", path.display())]
    Read {
        /// The tape, or the file it refers to.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The tape does not make sense.
    #[error("tape of layer {}: {why}", path.display())]
    Broken {
        /// The layer.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What is replayed could not be handed on.
    #[error("writing the layer out")]
    Write(#[source] io::Error),
}

impl TarSplitError {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
        match self {
            Self::None(_) => model::ErrorKind::Precondition,
            Self::Read { .. } | Self::Broken { .. } => model::ErrorKind::Internal,
            Self::Write(source) => crate::store::durable::io_kind(source),
        }
    }
}

/// Where the tape of a layer is.
pub(crate) fn path(layer: &Path) -> PathBuf {
    layer.join("tar-split.zst")
}

/// A tape being written. Trouble is kept until [`TarSplit::check`] or [`TarSplit::end`] asks for it.
pub(crate) struct TarSplit {
    out: zstd::stream::write::Encoder<'static, File>,
    /// Bytes of the stream that are not written yet.
    raw: Vec<u8>,
    /// Bytes still to come that are content of a file.
    content: u64,
    failed: Option<io::Error>,
}

impl TarSplit {
    pub(crate) fn create(layer: &Path) -> io::Result<Self> {
        let mut out = zstd::stream::write::Encoder::new(File::create_new(path(layer))?, LEVEL)?;
        out.window_log(WINDOW_LOG)?;
        out.write_all(MAGIC)?;
        Ok(Self { out, raw: Vec::with_capacity(RAW_MAX), content: 0, failed: None })
    }

    /// What follows by [`TarSplit::run`] is content of the file at `path`, whose inode number is `inode`.
    pub(crate) fn file(&mut self, path: &Path, inode: u64) {
        let path = path.as_os_str().as_bytes();
        self.write(FILE, &[inode, length(path)], path);
    }

    /// The next `length` bytes of the stream are what the file has at `offset`.
    pub(crate) fn run(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.write(RUN, &[offset, length], b"");
            self.content = length;
        }
    }

    /// Whether all could be written so far.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Writes what is left. The tape is whole after this, though not synced.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.write(END, &[], b"");
        self.check()?;
        self.out.finish().map(drop)
    }

    fn record(&mut self, bytes: &[u8]) {
        let content = usize::try_from(self.content).unwrap_or(usize::MAX).min(bytes.len());
        self.content -= length(&bytes[..content]);
        for bytes in bytes[content..].chunks(RAW_MAX) {
            if self.raw.len() + bytes.len() > RAW_MAX {
                self.flush();
            }
            self.raw.extend_from_slice(bytes);
        }
    }

    fn write(&mut self, tag: u8, numbers: &[u64], bytes: &[u8]) {
        self.flush();
        self.put(tag, numbers, bytes);
    }

    fn flush(&mut self) {
        if !self.raw.is_empty() {
            let mut raw = std::mem::take(&mut self.raw);
            self.put(RAW, &[length(&raw)], &raw);
            raw.clear();
            self.raw = raw;
        }
    }

    fn put(&mut self, tag: u8, numbers: &[u64], bytes: &[u8]) {
        let mut record = Vec::with_capacity(32);
        record.push(tag);
        numbers.iter().for_each(|number| record.extend_from_slice(&number.to_le_bytes()));
        let written = self.out.write_all(&record).and_then(|()| self.out.write_all(bytes));
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// A tar stream whose bytes go onto a tape as they are read.
pub(crate) struct TarSplitReader<R> {
    from: R,
    pub(crate) tar_split: TarSplit,
}

impl<R: Read> TarSplitReader<R> {
    pub(crate) fn new(from: R, tar_split: TarSplit) -> Self {
        Self { from, tar_split }
    }

    /// Reads what follows the archive's end, which belongs to the stream like the rest.
    pub(crate) fn finish(mut self) -> io::Result<(R, TarSplit)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((self.from, self.tar_split))
    }
}

impl<R: Read> Read for TarSplitReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.tar_split.record(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
#[path = "tar_split_tests.rs"]
mod tests;
