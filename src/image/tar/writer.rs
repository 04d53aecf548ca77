//! Writes a tar archive of regular files, whose sizes are known and whose contents may be written
//! in pieces.

use std::io::{self, Write};

/// The block size of a tar stream.
const BLOCK: u64 = 512;

pub(crate) struct TarWriter<W> {
    to: W,
}

impl<W: Write> TarWriter<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to }
    }

    /// Writes a whole file.
    pub(crate) fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let size = u64::try_from(content.len()).map_err(io::Error::other)?;
        self.begin(name, size)?;
        self.to.write_all(content)?;
        self.end(size)
    }

    /// Writes the header of a file; exactly `size` bytes must follow, and [`TarWriter::end`].
    pub(crate) fn begin(&mut self, name: &str, size: u64) -> io::Result<()> {
        let mut header = header(b'0', size);
        if header.set_path(name).is_err() {
            // Too long for the header: an extension header has it.
            let record = pax_record("path", name);
            let mut long = self::header(b'x', u64::try_from(record.len()).map_err(io::Error::other)?);
            long.set_path("long")?;
            long.set_cksum();
            self.to.write_all(long.as_bytes())?;
            self.to.write_all(record.as_bytes())?;
            self.end(u64::try_from(record.len()).map_err(io::Error::other)?)?;
            header.set_path("long")?;
        }
        header.set_cksum();
        self.to.write_all(header.as_bytes())
    }

    /// Returns the writer for the content of a file.
    pub(crate) fn content(&mut self) -> &mut W {
        &mut self.to
    }

    /// Pads the last block of a file of `size` bytes.
    pub(crate) fn end(&mut self, size: u64) -> io::Result<()> {
        let padding = usize::try_from(size.next_multiple_of(BLOCK) - size).map_err(io::Error::other)?;
        self.to.write_all(&[0; 512][..padding])
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.to.write_all(&[0; 1024])?;
        self.to.flush()
    }
}

/// Returns the same header fields for every file, so that the same images yield the same archive.
fn header(kind: u8, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

/// Returns `LENGTH KEY=VALUE\n`, where the length includes itself.
fn pax_record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    format!("{length} {key}={value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar::reader::TarReader;

    #[test]
    fn names_of_any_length_are_read_back() {
        let names = ["short".to_owned(), format!("blobs/sha512/{}", "a".repeat(128))];
        let mut bytes = Vec::new();
        let mut pack = TarWriter::new(&mut bytes);
        for name in &names {
            pack.file(name, b"content").unwrap();
        }
        pack.finish().unwrap();
        let mut archive = TarReader::new(&bytes[..]);
        for name in &names {
            let entry = archive.next().unwrap().unwrap();
            assert_eq!((entry.path, entry.size), (name.clone().into_bytes(), 7));
        }
        assert!(archive.next().unwrap().is_none());
    }
}
