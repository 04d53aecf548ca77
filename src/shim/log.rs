//! The CRI log: a time, a stream, a tag and a line.
//!
//! ```text
//! 2026-11-16T10:00:00.000000001Z stdout F a whole line
//! 2026-11-16T10:00:00.000000002Z stderr P the beginning of a long or unfinished one
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Output that could not be written.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) bytes: u64,
    pub(crate) error: io::Error,
}

/// Cuts one stream into log entries. Holds at most one unfinished line.
#[derive(Debug)]
pub(crate) struct Lines {
    stream: Stream,
    max: usize,
    held: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(stream: Stream, max: usize) -> Self {
        Self { stream, max: max.max(1), held: Vec::new() }
    }

    /// Takes what the container printed and writes every line that is whole, or longer than allowed.
    pub(crate) fn feed(&mut self, log: &mut impl Write, mut bytes: &[u8]) -> Result<(), Lost> {
        let total = bytes.len();
        let lost = |error| Lost { bytes: total as u64, error };
        let mut entries = Vec::new();
        let now = stamp();
        while !bytes.is_empty() {
            let room = self.max - self.held.len();
            let newline = bytes.iter().take(room + 1).position(|b| *b == b'\n');
            match newline {
                Some(end) => {
                    self.entry(&mut entries, &now, "F", &bytes[..end]);
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() > room => {
                    self.entry(&mut entries, &now, "P", &bytes[..room]);
                    bytes = &bytes[room..];
                }
                None => {
                    self.held.extend_from_slice(bytes);
                    break;
                }
            }
        }
        if self.held.is_empty() {
            // An unfinished line is rare: do not keep memory for it.
            self.held = Vec::new();
        }
        if entries.is_empty() { Ok(()) } else { log.write_all(&entries).map_err(lost) }
    }

    /// Writes the unfinished line, if there is one, as the last.
    pub(crate) fn finish(&mut self, log: &mut impl Write) -> Result<(), Lost> {
        if self.held.is_empty() {
            return Ok(());
        }
        let bytes = self.held.len() as u64;
        let mut entries = Vec::new();
        self.entry(&mut entries, &stamp(), "F", &[]);
        log.write_all(&entries).map_err(|error| Lost { bytes, error })
    }

    fn entry(&mut self, to: &mut Vec<u8>, now: &str, tag: &str, rest: &[u8]) {
        let parts =
            [now.as_bytes(), b" ", self.stream.name().as_bytes(), b" ", tag.as_bytes(), b" ", &self.held, rest, b"\n"];
        parts.iter().for_each(|part| to.extend_from_slice(part));
        self.held.clear();
    }
}

fn stamp() -> String {
    DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Nanos, true)
}

/// A log file, or none: then everything is dropped, as was asked.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: Option<File>,
    /// The last write ended in the middle of an entry.
    torn: bool,
}

impl LogFile {
    pub(crate) fn new(file: Option<File>) -> Self {
        Self { file, torn: false }
    }

    /// Writes whole entries. One that a full disk cut short is ended before the next begins.
    fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.torn {
            file.write_all(b"\n")?;
            self.torn = false;
        }
        let mut rest = entries;
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.torn = rest[n - 1] != b'\n';
                    rest = &rest[n..];
                }
                Err(again) if again.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map(|()| bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(chunks: &[&[u8]], max: usize) -> Vec<String> {
        let mut log = Vec::new();
        let mut lines = Lines::new(Stream::Stderr, max);
        for chunk in chunks {
            lines.feed(&mut log, chunk).unwrap();
        }
        lines.finish(&mut log).unwrap();
        let text = String::from_utf8(log).unwrap();
        text.lines()
            .map(|l| {
                let (time, rest) = l.split_once(' ').unwrap();
                assert!(
                    DateTime::parse_from_rfc3339(time).is_ok() && time.ends_with('Z') && time.len() == 30,
                    "{time}"
                );
                rest.to_owned()
            })
            .collect()
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(entries(&[b"one\ntwo\n"], 100), ["stderr F one", "stderr F two"]);
        assert_eq!(entries(&[b"o", b"ne", b"\n\ntw", b"o"], 100), ["stderr F one", "stderr F ", "stderr F two"]);
        assert_eq!(entries(&[b""], 100), [""; 0]);
    }

    #[test]
    fn a_long_line_is_split_and_its_parts_but_the_last_are_partial() {
        assert_eq!(entries(&[b"abcdefgh\n"], 3), ["stderr P abc", "stderr P def", "stderr F gh"]);
        assert_eq!(entries(&[b"abc", b"\n"], 3), ["stderr F abc"]);
        assert_eq!(entries(&[b"abc", b"d\n"], 3), ["stderr P abc", "stderr F d"]);
        assert_eq!(entries(&[b"abcdef"], 3), ["stderr P abc", "stderr F def"]);
    }

    #[test]
    fn an_entry_after_a_torn_one_begins_on_its_own_line() {
        let file = tempfile::tempfile().unwrap();
        let mut log = LogFile { file: Some(file.try_clone().unwrap()), torn: true };
        Lines::new(Stream::Stdout, 10).feed(&mut log, b"x\n").unwrap();
        assert!(!log.torn);
        let mut text = String::new();
        io::Seek::rewind(&mut &file).unwrap();
        io::Read::read_to_string(&mut &file, &mut text).unwrap();
        assert!(text.starts_with('\n') && text.ends_with(" stdout F x\n"), "{text:?}");
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut lines = Lines::new(Stream::Stdout, 10);
        let lost = lines.feed(&mut Full, b"abc\n").unwrap_err();
        assert_eq!((lost.bytes, lost.error.kind()), (4, io::ErrorKind::StorageFull));
    }
}
