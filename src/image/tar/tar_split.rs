//! Tar-split of a layer: its tar stream without the file contents, and where the contents are.
//!
//! The files alone do not determine the stream: the order of entries, the format of headers,
//! padding and trailing bytes are lost. The tar-split has these bytes, so that an exported layer
//! has its original digest.
//!
//! ```text
//! layers/N/tar-split.zst   one zstd frame: magic, then records up to END; numbers are 8 bytes, little-endian
//!   RAW   length, bytes           bytes of the stream
//!   FILE  inode, length, path     the runs that follow are content of this file
//!   RUN   offset, length          content of that file
//! layers/N/replaced/INODE         content of a file that a later entry of the layer replaced
//! ```
//! Paths have no symbolic links, since a link may be replaced later. Memory is limited: a window of
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
/// A larger window would not save space, since headers repeat data just before them.
pub(crate) const WINDOW_LOG: u32 = 17;
/// The fastest level that still compresses headers.
const LEVEL: i32 = 1;
const RAW_MAX: usize = 1 << 16;

/// A tar-split that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TarSplitError {
    /// The layer was unpacked by a version of crisp without tar-split.
    #[error("cannot export layer {}: its tar-split file is missing", .0.display())]
    None(PathBuf),
    /// A part of the layer could not be read.
    #[error("reading the layer file {}", path.display())]
    Read {
        /// The tar-split, or the file it refers to.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The tar-split is malformed.
    #[error("invalid tar-split file of layer {}: {why}", path.display())]
    Broken {
        /// The layer.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// The assembled stream could not be written.
    #[error("writing the layer to the image archive")]
    Write(#[source] io::Error),
}

impl model::ErrorClass for TarSplitError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::None(_) => model::ErrorKind::Precondition,
            Self::Read { .. } | Self::Broken { .. } => model::ErrorKind::Internal,
            Self::Write(source) => crate::store::durable::io_kind(source),
        }
    }
}

/// Returns the path of a layer's tar-split.
pub(crate) fn path(layer: &Path) -> PathBuf {
    layer.join("tar-split.zst")
}

/// A tar-split being written. The first error is kept until [`TarSplit::check`] or
/// [`TarSplit::end`] returns it.
pub(crate) struct TarSplit {
    out: zstd::stream::write::Encoder<'static, CountedFile>,
    /// Bytes of the stream that are not yet written.
    raw: Vec<u8>,
    /// The number of following bytes that are content of a file.
    content: u64,
    failed: Option<io::Error>,
}

/// A file and the bytes written to it.
struct CountedFile {
    file: File,
    written: u64,
}

impl Write for CountedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.written = self.written.saturating_add(length(&bytes[..count]));
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl TarSplit {
    /// Returns the bytes written to disk since the last call.
    pub(crate) fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.out.get_mut().written)
    }

    pub(crate) fn create(layer: &Path) -> io::Result<Self> {
        let mut out =
            zstd::stream::write::Encoder::new(CountedFile { file: File::create_new(path(layer))?, written: 0 }, LEVEL)?;
        out.window_log(WINDOW_LOG)?;
        out.write_all(MAGIC)?;
        Ok(Self { out, raw: Vec::with_capacity(RAW_MAX), content: 0, failed: None })
    }

    /// Starts a file: later calls of [`TarSplit::run`] refer to the file at `path` with the inode
    /// number `inode`.
    pub(crate) fn file(&mut self, path: &Path, inode: u64) {
        let path = path.as_os_str().as_bytes();
        self.write(FILE, &[inode, length(path)], path);
    }

    /// Records that the next `length` bytes of the stream are the file's content at `offset`.
    pub(crate) fn run(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.write(RUN, &[offset, length], b"");
            self.content = length;
        }
    }

    /// Returns the first write error, if any.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Writes the rest. The tar-split is then complete, but not synced.
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

/// A tar stream whose bytes are recorded in a tar-split as they are read.
pub(crate) struct TarSplitReader<R> {
    from: R,
    pub(crate) tar_split: TarSplit,
}

impl<R: Read> TarSplitReader<R> {
    pub(crate) fn new(from: R, tar_split: TarSplit) -> Self {
        Self { from, tar_split }
    }

    /// Returns the source and the tar-split. The caller has read the stream to its end.
    pub(crate) fn into_parts(self) -> (R, TarSplit) {
        (self.from, self.tar_split)
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
