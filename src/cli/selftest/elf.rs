//! Strips this program's ELF file to the parts that are needed to run it.

use std::io;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const PT_INTERP: u32 = 3;
/// Fields of the header about sections: offset of the section table, and number of sections and index of the names.
const SECTIONS_AT: std::ops::Range<usize> = 0x28..0x30;
const SECTIONS: std::ops::Range<usize> = 0x3C..0x40;

/// The part of a program that the kernel loads, and its interpreter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loaded {
    /// The file without symbols and debug information, which make it several times larger.
    pub(super) bytes: Vec<u8>,
    /// Path of the dynamic linker; None for a static program.
    pub(super) interpreter: Option<String>,
}

fn odd(what: &str) -> io::Error {
    io::Error::other(format!("/proc/self/exe: {what}"))
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    let piece = bytes.get(at..at + N).and_then(|piece| piece.try_into().ok());
    piece.ok_or_else(|| odd("truncated"))
}

fn long(bytes: &[u8], at: usize) -> io::Result<usize> {
    usize::try_from(u64::from_le_bytes(number(bytes, at)?)).map_err(io::Error::other)
}

fn short(bytes: &[u8], at: usize) -> io::Result<usize> {
    Ok(u16::from_le_bytes(number(bytes, at)?).into())
}

/// Truncates the file after the last segment that is loaded.
pub(super) fn loaded(mut bytes: Vec<u8>) -> io::Result<Loaded> {
    if !bytes.starts_with(MAGIC) {
        return Err(odd("not a 64-bit little-endian ELF file"));
    }
    let (table, size, count) = (long(&bytes, 0x20)?, short(&bytes, 0x36)?, short(&bytes, 0x38)?);
    let mut end = table + size * count;
    let mut interpreter = None;
    for index in 0..count {
        let header = table + index * size;
        let kind = u32::from_le_bytes(number(&bytes, header)?);
        let (offset, length) = (long(&bytes, header + 8)?, long(&bytes, header + 32)?);
        end = end.max(offset.checked_add(length).ok_or_else(|| odd("a segment is too large"))?);
        if kind == PT_INTERP {
            let text = bytes.get(offset..offset + length).ok_or_else(|| odd("invalid PT_INTERP"))?;
            let text = String::from_utf8_lossy(text);
            interpreter = Some(text.trim_end_matches('\0').to_owned());
        }
    }
    if end > bytes.len() {
        return Err(odd("truncated"));
    }
    bytes.truncate(end);
    for range in [SECTIONS_AT, SECTIONS] {
        bytes.get_mut(range).ok_or_else(|| odd("truncated"))?.fill(0);
    }
    Ok(Loaded { bytes, interpreter })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_stripped_program_still_runs() {
        let whole = std::fs::read("/bin/true").unwrap();
        let size = whole.len();
        let Loaded { bytes, interpreter } = loaded(whole).unwrap();
        assert!(bytes.len() <= size);
        assert!(interpreter.is_none_or(|path| path.starts_with('/')));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("true");
        std::fs::write(&file, bytes).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(std::process::Command::new(&file).status().unwrap().success());
    }

    #[test]
    fn an_invalid_elf_file_is_refused() {
        for bad in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", &[0x7f; 64]] {
            assert!(loaded(bad.to_vec()).is_err());
        }
    }
}
