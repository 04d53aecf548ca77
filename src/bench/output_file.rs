//! A result file, opened before the benchmark: a path that cannot be written is an error before the long run.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::{fs, io};

use super::BenchError;

#[derive(Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    file: File,
    /// Whether the file was created here, and is still empty.
    is_new: bool,
}

impl OutputFile {
    /// Opens or creates the file; its content stays until [`OutputFile::write`].
    pub(super) fn open(path: &PathBuf) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Write { path: path.clone(), source };
        let created = File::options().write(true).create_new(true).open(path);
        let is_new = created.is_ok();
        let file = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::options().write(true).open(path),
            other => other,
        };
        Ok(Self { path: path.clone(), file: file.map_err(failed)?, is_new })
    }

    /// Replaces the content.
    pub(super) fn write(mut self, text: &str) -> Result<(), BenchError> {
        let is_file = self.file.metadata().is_ok_and(|meta| meta.is_file());
        let written = if is_file {
            self.file.set_len(0).and_then(|()| self.file.write_all_at(text.as_bytes(), 0))
        } else {
            self.file.write_all(text.as_bytes())
        };
        self.is_new = false;
        written.map_err(|source| BenchError::Write { path: self.path.clone(), source })
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new {
            // The benchmark has already failed; that error is the one to report.
            fs::remove_file(&self.path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_keeps_its_content_until_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.html");
        fs::write(&path, "a longer text").unwrap();
        drop(OutputFile::open(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a longer text");
        OutputFile::open(&path).unwrap().write("short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
    }

    #[test]
    fn a_new_file_that_is_not_written_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.html");
        drop(OutputFile::open(&path).unwrap());
        assert!(!path.exists());
        assert!(OutputFile::open(&dir.path().join("absent/a.html")).is_err());
    }
}
