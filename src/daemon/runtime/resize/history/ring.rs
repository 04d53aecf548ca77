//! The history of one pod: two files in its directory, of which the newer one grows.
//!
//! ```text
//! resize-history.jsonl      {"version":1}, then a line per resize or later fact
//! resize-history.1.jsonl    the file before; removed when the newer one takes its place
//! ```
//! A line is appended with one write(2) and never changed, so a crash can only lose the last line. Files are not
//! synced: they are on the same file system as the records, which do not outlive a reboot.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::entry::{HistoryItem, Line};

const FILE: &str = "resize-history.jsonl";
const OLDER: &str = "resize-history.1.jsonl";
const DAMAGED: &str = "resize-history.damaged.jsonl";
/// Incremented when an older daemon would misread a line.
const VERSION: u32 = 1;

#[derive(Debug, Deserialize)]
struct Header {
    version: u32,
}

/// Bounds of the history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Entries of a pod that are shown; a file has at most as many.
    pub(super) entries: usize,
    /// Bytes of a file.
    pub(super) file_bytes: u64,
    /// Bytes of all pods.
    pub(super) node_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { entries: 64, file_bytes: 64 << 10, node_bytes: 8 << 20 }
    }
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
enum Damage {
    #[error("the first line of the history of resizes has no valid version")]
    Header,
    #[error("the history of resizes has version {0}, and this daemon reads version {VERSION}")]
    Version(u32),
    #[error("line {line} of the history of resizes")]
    Line { line: usize, source: serde_json::Error },
    #[error("reading the history of resizes")]
    Read(#[from] io::Error),
}

/// The history of a pod.
#[derive(Debug)]
pub(super) struct Ring {
    dir: PathBuf,
    /// Open after the first append.
    file: Option<File>,
    /// Entries in the newer file; `None` until it is read.
    entries: Option<usize>,
    bytes: u64,
    older_bytes: u64,
    /// When the pod was resized last, for the removal of the oldest history.
    pub(super) last: u64,
}

impl Ring {
    /// Reads only the sizes of the files.
    pub(super) fn open(dir: PathBuf) -> Self {
        let size = |name: &str| fs::metadata(dir.join(name)).map_or(0, |meta| meta.len());
        Self { file: None, entries: None, bytes: size(FILE), older_bytes: size(OLDER), last: 0, dir }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.older_bytes
    }

    /// Returns the newest entries with their later facts, the oldest first.
    pub(super) fn read(&mut self, bounds: Bounds) -> Vec<HistoryItem> {
        let mut items: Vec<HistoryItem> = Vec::new();
        for line in self.load(OLDER).into_iter().chain(self.load(FILE)) {
            match line {
                Line::Resize(entry) => items.push(entry.into()),
                Line::Later(later) => {
                    // The newest entries are the ones with later facts.
                    if let Some(item) = items.iter_mut().rev().find(|item| item.entry.began_ns == later.of) {
                        item.add(later);
                    }
                }
            }
        }
        items.drain(..items.len().saturating_sub(bounds.entries));
        items
    }

    /// Appends a line; starts a new file if the newer one is full.
    pub(super) fn append(&mut self, line: &Line, bounds: Bounds) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let entries = match self.entries {
            Some(entries) => entries,
            None => self.load(FILE).iter().filter(|line| matches!(line, Line::Resize(_))).count(),
        };
        let is_entry = matches!(line, Line::Resize(_));
        if (is_entry && entries >= bounds.entries) || (self.bytes > 0 && self.bytes + size > bounds.file_bytes) {
            self.rotate()?;
        } else {
            self.entries = Some(entries);
        }
        self.write(&bytes)?;
        self.entries = self.entries.map(|entries| entries + usize::from(is_entry));
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => File::options().append(true).create(true).mode(0o600).open(self.dir.join(FILE))?,
        };
        let mut write = || {
            if self.bytes == 0 {
                let header = format!("{{\"version\":{VERSION}}}\n");
                file.write_all(header.as_bytes())?;
                self.bytes = header.len() as u64;
            }
            file.write_all(line)
        };
        match write() {
            Ok(()) => {
                self.bytes += line.len() as u64;
                self.file = Some(file);
                Ok(())
            }
            Err(error) => {
                // No part of a line stays, for example on a full disk.
                file.set_len(self.bytes)?;
                Err(error)
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        fs::rename(self.dir.join(FILE), self.dir.join(OLDER))?;
        (self.older_bytes, self.bytes, self.entries) = (self.bytes, 0, Some(0));
        Ok(())
    }

    /// Removes the older file, or without one the newer; does nothing without any.
    pub(super) fn remove_oldest(&mut self) -> io::Result<()> {
        let name = if self.older_bytes > 0 { OLDER } else { FILE };
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        if name == OLDER {
            self.older_bytes = 0;
        } else {
            (self.file, self.bytes, self.entries) = (None, 0, Some(0));
        }
        Ok(())
    }

    pub(super) fn has_older(&self) -> bool {
        self.older_bytes > 0
    }

    /// Reads a file; a damaged one is left aside.
    fn load(&mut self, name: &str) -> Vec<Line> {
        let path = self.dir.join(name);
        match parse(&path) {
            Ok((lines, whole)) => {
                if name == FILE && whole < self.bytes {
                    self.cut(&path, whole);
                }
                lines
            }
            Err(damage) => {
                let error = model::error_chain::chain(&damage);
                tracing::warn!(path = %path.display(), error, "cannot read the history of resizes of a pod; renaming the file, `crisp history` lacks its entries");
                if let Err(error) = fs::rename(&path, self.dir.join(DAMAGED)) {
                    tracing::warn!(path = %path.display(), %error, "cannot rename the damaged history of a pod's resizes");
                }
                if name == FILE {
                    (self.file, self.bytes) = (None, 0);
                } else {
                    self.older_bytes = 0;
                }
                Vec::new()
            }
        }
    }

    /// Removes a partial last line, so that the next line is not appended to it.
    fn cut(&mut self, path: &Path, whole: u64) {
        let cut = File::options().write(true).open(path).and_then(|file| file.set_len(whole));
        match cut {
            Ok(()) => self.bytes = whole,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot remove the partial last line from the history of a pod's resizes; later entries may be unreadable")
            }
        }
    }
}

/// Returns the lines of a file, and the bytes of its whole lines; no lines without the file.
fn parse(path: &Path) -> Result<(Vec<Line>, u64), Damage> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error.into()),
    };
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut lines = text[..whole].split_inclusive(|byte| *byte == b'\n');
    let Some(header) = lines.next() else { return Ok((Vec::new(), 0)) };
    match serde_json::from_slice(header) {
        Ok(Header { version: VERSION }) => {}
        Ok(Header { version }) => return Err(Damage::Version(version)),
        Err(_) => return Err(Damage::Header),
    }
    let parsed = lines
        .enumerate()
        .map(|(number, line)| serde_json::from_slice(line).map_err(|source| Damage::Line { line: number + 2, source }));
    Ok((parsed.collect::<Result<_, _>>()?, whole as u64))
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
