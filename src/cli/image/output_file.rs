//! The output file of an export, written atomically.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ImageError;
use crate::signals::Interrupt;

/// Images may contain secrets, so only the owner may read the file.
const MODE: u32 = 0o600;

pub(crate) enum OutputFile {
    Stdout(io::StdoutLock<'static>),
    /// A device or pipe, written directly.
    Other {
        path: PathBuf,
        file: File,
    },
    /// A regular file: written to a temporary file and renamed when complete.
    File {
        path: PathBuf,
        aside: PathBuf,
        file: File,
        interrupt: Arc<Interrupt>,
        whole: bool,
    },
}

impl OutputFile {
    /// Opens `path`; `-` or None is stdout.
    pub(crate) fn open(path: Option<&Path>, interrupt: Arc<Interrupt>) -> Result<Self, ImageError> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            if io::stdout().is_terminal() {
                return Err(ImageError::ToTerminal);
            }
            return Ok(Self::Stdout(io::stdout().lock()));
        };
        let failed = |source| ImageError::Output { path: path.to_owned(), source };
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            let file = File::options().write(true).open(path).map_err(failed)?;
            return Ok(Self::Other { path: path.to_owned(), file });
        }
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}", std::process::id()));
        let aside = path.with_file_name(name);
        let file = File::options().create_new(true).write(true).mode(MODE).open(&aside).map_err(failed)?;
        interrupt.half_written(Some(&aside));
        Ok(Self::File { path: path.to_owned(), aside, file, interrupt, whole: false })
    }

    /// Flushes the output and renames the temporary file.
    pub(crate) fn finish(mut self) -> Result<(), ImageError> {
        let done = match &mut self {
            Self::Stdout(out) => out.flush(),
            Self::Other { file, .. } => file.flush(),
            Self::File { path, aside, file, whole, .. } => {
                let named = file.sync_all().and_then(|()| fs::rename(&aside, &path));
                *whole = named.is_ok();
                named
            }
        };
        done.map_err(|error| self.failed(error))
    }

    pub(crate) fn failed(&self, source: io::Error) -> ImageError {
        let path = match self {
            Self::Stdout(_) if source.kind() == io::ErrorKind::BrokenPipe => return ImageError::ClosedPipe,
            Self::Stdout(_) => PathBuf::from("stdout"),
            Self::Other { path, .. } | Self::File { path, .. } => path.clone(),
        };
        ImageError::Output { path, source }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::Other { file, .. } | Self::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::Other { file, .. } | Self::File { file, .. } => file.flush(),
        }
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Self::File { aside, interrupt, whole, .. } = self {
            interrupt.half_written(None);
            if !*whole {
                // The export has already failed; that error is the one to report.
                fs::remove_file(aside).ok();
            }
        }
    }
}
