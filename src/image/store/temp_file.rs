//! Unnamed files in the store's `tmp/`: the kernel removes them when they are closed, also after a
//! crash.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

use safe_fs::FileError;

use crate::store::catalog::Catalog;

const BUFFER: usize = 128 * 1024;

/// A temporary file, and its directory for messages.
pub(crate) struct TempFile {
    pub(crate) file: File,
    place: PathBuf,
}

/// The reason why data could not be copied to a temporary file.
pub(crate) enum TempFileError {
    Read(io::Error),
    TooLarge(u64),
    Disk(FileError),
}

impl Catalog {
    pub(crate) fn temp_file(&self) -> Result<TempFile, FileError> {
        let place = self.root.join("tmp").join(format!("spool-{}", self.fresh_number()));
        let open = File::options().create_new(true).read(true).write(true).open(&place);
        let file = open.map_err(safe_fs::at("creating", &place))?;
        safe_fs::remove_file(&place)?;
        Ok(TempFile { file, place })
    }
}

impl TempFile {
    /// Copies all of `from`, at most `cap` bytes.
    pub(crate) fn fill(&mut self, from: &mut dyn Read, cap: u64) -> Result<(), TempFileError> {
        let mut buffer = vec![0; BUFFER];
        let mut came = 0u64;
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(TempFileError::Read(error)),
            };
            came = came.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            if came > cap {
                return Err(TempFileError::TooLarge(cap));
            }
            self.file.write_all(&buffer[..count]).map_err(|error| TempFileError::Disk(self.failed(error)))?;
        }
    }

    /// Returns the file, positioned at its start.
    pub(crate) fn rewound(mut self) -> Result<File, FileError> {
        match self.file.rewind() {
            Ok(()) => Ok(self.file),
            Err(error) => Err(self.failed(error)),
        }
    }

    pub(crate) fn failed(&self, error: io::Error) -> FileError {
        safe_fs::at("writing", &self.place)(error)
    }
}
