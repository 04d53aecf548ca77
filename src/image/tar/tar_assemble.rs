//! Combines a tar-split and a layer's files to the original tar stream, byte by byte.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use crate::layer::confined_root::{ConfinedRoot, DEPTH_MAX, stat};
use crate::layer::replaced_files::REPLACED;
use crate::tar::tar_split::{END, FILE, MAGIC, RAW, RUN, TarSplitError, WINDOW_LOG, path as tar_split_path};

const BUFFER: usize = 128 * 1024;
/// The maximum depth of a layer, with names of maximum length.
const PATH_MAX: u64 = DEPTH_MAX as u64 * 256;

/// Writes the tar stream that the layer in the directory `layer` was unpacked from.
///
/// Only the tar-split itself is checked: the caller must compare the digest to detect changed
/// files.
pub fn assemble(layer: &Path, out: &mut impl Write) -> Result<(), TarSplitError> {
    let path = tar_split_path(layer);
    let read = |source| TarSplitError::Read { path: path.clone(), source };
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(TarSplitError::None(layer.to_owned())),
        other => other.map_err(read)?,
    };
    let mut tar_split = zstd::stream::read::Decoder::new(file).map_err(read)?;
    tar_split.window_log_max(WINDOW_LOG).map_err(read)?;
    let mut split_reader = SplitReader { layer, tar_split, buffer: vec![0; BUFFER].into_boxed_slice() };
    let mut files = Files::open(layer)?;
    if split_reader.bytes::<16>()? != *MAGIC {
        return Err(split_reader.broken("not a tar-split of this version"));
    }
    let mut content = None;
    loop {
        match split_reader.bytes()? {
            [RAW] => {
                let length = split_reader.number()?;
                split_reader.copy_raw(length, out)?;
            }
            [FILE] => {
                let (inode, length) = (split_reader.number()?, split_reader.number()?);
                let path = split_reader.path(length)?;
                content = Some((files.find(&path, inode)?, path));
            }
            [RUN] => {
                let (offset, length) = (split_reader.number()?, split_reader.number()?);
                let Some((file, path)) = &mut content else {
                    return Err(split_reader.broken("RUN record without a FILE record"));
                };
                split_reader.copy_run(file, offset, length, path, out)?;
            }
            [END] => return Ok(()),
            _ => return Err(split_reader.broken("unknown record")),
        }
    }
}

struct SplitReader<'a> {
    layer: &'a Path,
    tar_split: zstd::stream::read::Decoder<'static, BufReader<File>>,
    buffer: Box<[u8]>,
}

impl SplitReader<'_> {
    fn broken(&self, why: &'static str) -> TarSplitError {
        TarSplitError::Broken { path: self.layer.to_owned(), why }
    }

    fn read_error(&self, source: io::Error) -> TarSplitError {
        TarSplitError::Read { path: tar_split_path(self.layer), source }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], TarSplitError> {
        let mut bytes = [0; N];
        self.tar_split.read_exact(&mut bytes).map_err(|error| self.read_error(error))?;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u64, TarSplitError> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn path(&mut self, length: u64) -> Result<PathBuf, TarSplitError> {
        if length > PATH_MAX {
            return Err(self.broken("path too long"));
        }
        let mut path = Vec::new();
        let count =
            self.tar_split.by_ref().take(length).read_to_end(&mut path).map_err(|error| self.read_error(error))?;
        if u64::try_from(count) != Ok(length) {
            return Err(self.broken("unexpected end"));
        }
        Ok(PathBuf::from(std::ffi::OsString::from_vec(path)))
    }

    fn copy_raw(&mut self, length: u64, out: &mut impl Write) -> Result<(), TarSplitError> {
        let copied = copy(&mut self.tar_split, length, &mut self.buffer, out)?;
        match copied {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.broken("unexpected end")),
            Err(error) => Err(self.read_error(error)),
        }
    }

    fn copy_run(
        &mut self,
        file: &mut File,
        offset: u64,
        length: u64,
        path: &Path,
        out: &mut impl Write,
    ) -> Result<(), TarSplitError> {
        let read = |source| TarSplitError::Read { path: path.to_owned(), source };
        file.seek(SeekFrom::Start(offset)).map_err(read)?;
        match copy(file, length, &mut self.buffer, out)?.map_err(read)? {
            0 => Ok(()),
            _ => Err(read(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// Copies up to `left` bytes and returns how many were missing; the caller adds the context to read
/// errors.
fn copy(
    from: &mut impl Read,
    mut left: u64,
    buffer: &mut [u8],
    out: &mut impl Write,
) -> Result<io::Result<u64>, TarSplitError> {
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = match from.read(&mut buffer[..most]) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Ok(Err(error)),
        };
        out.write_all(&buffer[..count]).map_err(TarSplitError::Write)?;
        left = left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
    }
    Ok(Ok(left))
}

/// The files of a layer that its tar-split refers to.
struct Files {
    root: ConfinedRoot,
    replaced: Option<ConfinedRoot>,
    /// The directory of the last file.
    open: Option<(PathBuf, OwnedFd)>,
}

impl Files {
    fn open(layer: &Path) -> Result<Self, TarSplitError> {
        let open = |path: PathBuf| ConfinedRoot::open(&path).map_err(|source| (path, source));
        let root = open(layer.join("fs")).map_err(|(path, source)| TarSplitError::Read { path, source })?;
        let replaced = match open(layer.join(REPLACED)) {
            Ok(replaced) => Some(replaced),
            Err((_, error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err((path, source)) => return Err(TarSplitError::Read { path, source }),
        };
        Ok(Self { root, replaced, open: None })
    }

    fn find(&mut self, path: &Path, inode: u64) -> Result<File, TarSplitError> {
        self.try_find(path, inode).map_err(|source| TarSplitError::Read { path: path.to_owned(), source })
    }

    fn try_find(&mut self, path: &Path, inode: u64) -> io::Result<File> {
        if let Some(replaced) = &self.replaced
            && let Some(file) = regular(replaced.as_fd(), Path::new(&inode.to_string()))?
        {
            return Ok(file);
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let directory = match self.open.take() {
            Some((open, fd)) if open == parent => fd,
            _ => self.root.directory(parent)?,
        };
        let (_, directory) = self.open.insert((parent.to_owned(), directory));
        regular(directory.as_fd(), Path::new(name))?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Opens the regular file `name`; the type is checked before opening.
fn regular(directory: BorrowedFd<'_>, name: &Path) -> io::Result<Option<File>> {
    let Some(stat) = stat(directory, name.as_os_str())? else { return Ok(None) };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(Some(rustix::fs::openat(directory, name, flags, Mode::empty())?.into()))
}
