//! The CRI log: a time, a stream, a tag and a line per entry.
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
pub enum Stream {
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
pub struct DroppedBytes {
    pub bytes: u64,
    pub error: io::Error,
}

/// The size of the buffer for one write, in bytes.
const GATHER: usize = 64 << 10;

/// Splits one stream into log entries. Holds at most one unfinished line.
#[derive(Debug)]
pub(crate) struct Lines {
    stream: Stream,
    max: usize,
    held: Vec<u8>,
    /// Lost bytes that the log does not mention yet.
    dropped: Option<DroppedBytes>,
    /// The last entry was the beginning of a line, so a reader joins the next one to it.
    partial: bool,
}

impl Lines {
    pub(crate) fn new(stream: Stream, max: usize) -> Self {
        Self { stream, max: max.max(1), held: Vec::new(), dropped: None, partial: false }
    }

    /// Takes output and writes every line that is complete or at its maximum length.
    pub(crate) fn feed(&mut self, log: &mut impl Write, bytes: &[u8]) -> Result<(), DroppedBytes> {
        self.state_dropped(log);
        let was_partial = self.partial;
        let written = self.write_lines(log, bytes);
        // The end of that line may be among the dropped bytes.
        self.partial |= was_partial && written.is_err();
        self.record_dropped(&written);
        written
    }

    fn write_lines(&mut self, log: &mut impl Write, mut bytes: &[u8]) -> Result<(), DroppedBytes> {
        let mut batch = Batch::new(log, self.stream, self.held.len() + bytes.len());
        while !bytes.is_empty() {
            let room = self.max - self.held.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            match memchr::memchr(b'\n', now) {
                Some(end) => {
                    batch.entry(Tag::Full, &self.held, &now[..end]);
                    self.partial = false;
                    bytes = &bytes[end + 1..];
                }
                None if later.first() == Some(&b'\n') => {
                    batch.entry(Tag::Full, &self.held, now);
                    self.partial = false;
                    bytes = &later[1..];
                }
                None if !later.is_empty() => {
                    batch.entry(Tag::Partial, &self.held, now);
                    self.partial = true;
                    bytes = later;
                }
                None => {
                    self.held.extend_from_slice(now);
                    return batch.finish();
                }
            }
            self.held.clear();
        }
        // An unfinished line is rare: do not keep memory for it.
        self.held = Vec::new();
        batch.finish()
    }

    /// Writes the last line if it has no newline. Its tag is P: a reader adds a newline after every
    /// F.
    pub(crate) fn finish(&mut self, log: &mut impl Write) -> Result<(), DroppedBytes> {
        self.state_dropped(log);
        if self.held.is_empty() {
            return Ok(());
        }
        let held = std::mem::take(&mut self.held);
        let mut batch = Batch::new(log, self.stream, held.len());
        batch.entry(Tag::Partial, &held, &[]);
        batch.finish()
    }

    fn record_dropped(&mut self, written: &Result<(), DroppedBytes>) {
        let Err(DroppedBytes { bytes, error }) = written else { return };
        let before = self.dropped.as_ref().map_or(0, |dropped| dropped.bytes);
        let error = io::Error::new(error.kind(), error.to_string());
        self.dropped = Some(DroppedBytes { bytes: before.saturating_add(*bytes), error });
    }

    /// Writes to the log how much is missing before the next entry.
    fn state_dropped(&mut self, log: &mut impl Write) {
        let Some(DroppedBytes { bytes, error }) = &self.dropped else { return };
        let words = format!("crisp: {bytes} bytes of output were dropped here: {error}");
        let mut batch = Batch::new(log, self.stream, words.len());
        if self.partial {
            // The rest of that line may be among the missing bytes.
            batch.entry(Tag::Full, &[], &[]);
        }
        batch.entry(Tag::Full, words.as_bytes(), &[]);
        if batch.finish().is_ok() {
            (self.dropped, self.partial) = (None, false);
        }
    }
}

/// Returns whether an entry is the end of its line.
#[derive(Debug, Clone, Copy)]
enum Tag {
    Full,
    Partial,
}

impl Tag {
    fn byte(self) -> u8 {
        match self {
            Self::Full => b'F',
            Self::Partial => b'P',
        }
    }
}

/// Entries of one moment that are not written yet.
struct Batch<'a, W> {
    log: &'a mut W,
    /// The beginning of every entry: only its tag changes.
    head: Vec<u8>,
    entries: Vec<u8>,
    /// How many bytes of the entries are the container's output.
    printed: u64,
    lost: Option<DroppedBytes>,
}

impl<'a, W: Write> Batch<'a, W> {
    /// Allocates room for `bytes` and a few prefixes.
    fn new(log: &'a mut W, stream: Stream, bytes: usize) -> Self {
        let head = format!("{} {} F ", stamp(), stream.name()).into_bytes();
        let room = (bytes + 2 * head.len()).min(GATHER);
        Self { log, head, entries: Vec::with_capacity(room), printed: 0, lost: None }
    }

    fn entry(&mut self, tag: Tag, held: &[u8], rest: &[u8]) {
        let length = self.head.len() + held.len() + rest.len() + 1;
        if self.entries.len() + length > GATHER {
            self.write();
        }
        if let [.., at, _] = self.head.as_mut_slice() {
            *at = tag.byte();
        }
        self.entries.reserve(length);
        for part in [&self.head, held, rest, b"\n"] {
            self.entries.extend_from_slice(part);
        }
        self.printed += (held.len() + rest.len()) as u64 + u64::from(matches!(tag, Tag::Full));
    }

    fn write(&mut self) {
        let printed = std::mem::take(&mut self.printed);
        if let Err(error) = self.log.write_all(&self.entries) {
            let before = self.lost.take().map_or(0, |lost| lost.bytes);
            self.lost = Some(DroppedBytes { bytes: before + printed, error });
        }
        self.entries.clear();
    }

    fn finish(mut self) -> Result<(), DroppedBytes> {
        if !self.entries.is_empty() {
            self.write();
        }
        self.lost.map_or(Ok(()), Err)
    }
}

fn stamp() -> String {
    DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Nanos, true)
}

/// A log file, or none: then all output is dropped, as requested.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: Option<File>,
    /// The last write ended in the middle of an entry.
    torn: bool,
    /// The bytes of all entries so far, written or not.
    pub(crate) entered: u64,
}

impl LogFile {
    pub(crate) fn new(file: Option<File>) -> Self {
        Self { file, torn: false, entered: 0 }
    }

    /// Continues in another file.
    pub(crate) fn reopen(&mut self, file: File) {
        *self = Self { entered: self.entered, ..Self::new(Some(file)) };
    }

    /// Writes whole entries. Ends an entry that a full disk cut short before the next begins.
    fn append(&mut self, entries: &[u8]) -> io::Result<()> {
        self.entered = self.entered.saturating_add(u64::try_from(entries.len()).unwrap_or(u64::MAX));
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
    fn lines_are_complete_for_every_split_of_the_input() {
        assert_eq!(entries(&[b"one\ntwo\n"], 100), ["stderr F one", "stderr F two"]);
        assert_eq!(entries(&[b"o", b"ne", b"\n\ntw", b"o"], 100), ["stderr F one", "stderr F ", "stderr P two"]);
        assert_eq!(entries(&[b""], 100), [""; 0]);
    }

    #[test]
    fn a_long_line_is_split_and_all_parts_except_the_last_are_partial() {
        assert_eq!(entries(&[b"abcdefgh\n"], 3), ["stderr P abc", "stderr P def", "stderr F gh"]);
        assert_eq!(entries(&[b"abc", b"\n"], 3), ["stderr F abc"]);
        assert_eq!(entries(&[b"abc", b"d\n"], 3), ["stderr P abc", "stderr F d"]);
        assert_eq!(entries(&[b"abcdef"], 3), ["stderr P abc", "stderr P def"]);
    }

    /// Much output, in pieces of all sizes, with lines shorter and longer than allowed.
    #[test]
    fn every_split_of_the_output_is_logged_completely_in_short_entries() {
        let text: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 17).to_le_bytes()[0]).collect();
        for (max, size) in [(1, 7), (10, 1), (100, 99_999), (256, 256), (16 << 10, 1 << 17), (100_000, 1000)] {
            let (mut log, mut lines) = (Vec::new(), Lines::new(Stream::Stdout, max));
            text.chunks(size).for_each(|piece| lines.feed(&mut log, piece).unwrap());
            lines.finish(&mut log).unwrap();
            let mut back = Vec::new();
            let entries: Vec<_> = log.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n').collect();
            for (at, entry) in entries.iter().enumerate() {
                let (head, line) = entry.split_at("2026-11-16T10:00:00.000000001Z stdout F ".len());
                assert!(line.len() <= max, "{} bytes of at most {max}", line.len());
                back.extend_from_slice(line);
                match &head[30..] {
                    b" stdout F " => back.push(b'\n'),
                    // Only the last line has no newline.
                    b" stdout P " => assert!(line.len() == max || at + 1 == entries.len()),
                    other => panic!("{:?}", String::from_utf8_lossy(other)),
                }
            }
            assert!(back == text, "{max} {size}");
        }
    }

    #[test]
    fn only_unwritten_bytes_are_counted_as_lost() {
        /// Accepts the first write only.
        struct Small(bool);
        impl Write for Small {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if std::mem::replace(&mut self.0, true) {
                    Err(io::ErrorKind::StorageFull.into())
                } else {
                    Ok(bytes.len())
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let line = [&[b'x'; 999][..], b"\n"].concat();
        let entry = line.len() + "2026-11-16T10:00:00.000000001Z stdout F ".len();
        let lost = Lines::new(Stream::Stdout, 10_000).feed(&mut Small(false), &line.repeat(100)).unwrap_err();
        assert_eq!(lost.bytes, (100 - GATHER / entry) as u64 * 1000);
    }

    /// Accepts nothing while it is full.
    struct Disk {
        full: bool,
        log: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.full { Err(io::ErrorKind::StorageFull.into()) } else { self.log.write(bytes) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn missing_output_is_logged_once_where_the_log_continues() {
        let mut disk = Disk { full: false, log: Vec::new() };
        let mut lines = Lines::new(Stream::Stdout, 4);
        lines.feed(&mut disk, b"one\nlong").unwrap();
        disk.full = true;
        lines.feed(&mut disk, b"er\n").unwrap_err();
        lines.feed(&mut disk, b"two\n").unwrap_err();
        disk.full = false;
        lines.feed(&mut disk, b"after\n").unwrap();
        lines.finish(&mut disk).unwrap();
        let text = String::from_utf8(disk.log).unwrap();
        let entries: Vec<&str> = text.lines().map(|line| line.split_once(" stdout ").unwrap().1).collect();
        let words = "F crisp: 11 bytes of output were dropped here: no storage space";
        assert_eq!(entries, ["F one", words, "P afte", "F r"]);
    }

    #[test]
    fn missing_output_does_not_join_two_lines() {
        let mut disk = Disk { full: false, log: Vec::new() };
        let mut lines = Lines::new(Stream::Stdout, 4);
        lines.feed(&mut disk, b"long line").unwrap();
        disk.full = true;
        lines.feed(&mut disk, b" that goes on\n").unwrap_err();
        disk.full = false;
        lines.finish(&mut disk).unwrap();
        let text = String::from_utf8(disk.log).unwrap();
        let entries: Vec<&str> = text.lines().map(|line| line.split_once(" stdout ").unwrap().1).collect();
        assert_eq!(entries[..3], ["P long", "P  lin", "F "]);
        assert!(entries[3].starts_with("F crisp: 15 bytes"), "{entries:?}");
        assert_eq!(entries.len(), 4);
    }

    #[test]
    fn an_entry_after_a_truncated_one_begins_on_its_own_line() {
        let file = tempfile::tempfile().unwrap();
        let mut log = LogFile { torn: true, ..LogFile::new(Some(file.try_clone().unwrap())) };
        Lines::new(Stream::Stdout, 10).feed(&mut log, b"x\n").unwrap();
        assert!(!log.torn);
        let mut text = String::new();
        io::Seek::rewind(&mut &file).unwrap();
        io::Read::read_to_string(&mut &file, &mut text).unwrap();
        assert!(text.starts_with('\n') && text.ends_with(" stdout F x\n"), "{text:?}");
    }

    #[test]
    fn unwritten_bytes_are_counted() {
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
