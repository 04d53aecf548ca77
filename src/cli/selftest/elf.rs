//! As much of an ELF file as it takes to run it elsewhere.

use std::io;

const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const PT_INTERP: u32 = 3;
/// Where the header tells of sections: the offset of their table, and in the end their number and that of their names.
const SECTIONS_AT: std::ops::Range<usize> = 0x28..0x30;
const SECTIONS: std::ops::Range<usize> = 0x3C..0x40;

/// What the kernel loads of a program, and by what.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loaded {
    /// The file without symbols and debug information, which are several times as large.
    pub(super) bytes: Vec<u8>,
    /// The dynamic linker; none where the program needs none.
    pub(super) interpreter: Option<String>,
}

fn odd(what: &str) -> io::Error {
    io::Error::other(format!("this program's own file: {what}"))
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    let piece = bytes.get(at..at + N).and_then(|piece| piece.try_into().ok());
    piece.ok_or_else(|| odd("it ends too early"))
}

fn long(bytes: &[u8], at: usize) -> io::Result<usize> {
    usize::try_from(u64::from_le_bytes(number(bytes, at)?)).map_err(io::Error::other)
}

fn short(bytes: &[u8], at: usize) -> io::Result<usize> {
    Ok(u16::from_le_bytes(number(bytes, at)?).into())
}

/// Cuts off what is behind the last piece that is loaded.
pub(super) fn loaded(mut bytes: Vec<u8>) -> io::Result<Loaded> {
    if !bytes.starts_with(MAGIC) {
        return Err(odd("it is no ELF file of 64 bits"));
    }
    let (table, size, count) = (long(&bytes, 0x20)?, short(&bytes, 0x36)?, short(&bytes, 0x38)?);
    let mut end = table + size * count;
    let mut interpreter = None;
    for index in 0..count {
        let header = table + index * size;
        let kind = u32::from_le_bytes(number(&bytes, header)?);
        let (offset, length) = (long(&bytes, header + 8)?, long(&bytes, header + 32)?);
        end = end.max(offset.checked_add(length).ok_or_else(|| odd("a piece of it is endless"))?);
        if kind == PT_INTERP {
            let text = bytes.get(offset..offset + length).ok_or_else(|| odd("its linker has no name"))?;
            let text = String::from_utf8_lossy(text);
            interpreter = Some(text.trim_end_matches('\0').to_owned());
        }
    }
    if end > bytes.len() {
        return Err(odd("it ends too early"));
    }
    bytes.truncate(end);
    for range in [SECTIONS_AT, SECTIONS] {
        bytes.get_mut(range).ok_or_else(|| odd("it ends too early"))?.fill(0);
    }
    Ok(Loaded { bytes, interpreter })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_left_of_a_program_still_runs() {
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
    fn what_is_no_program_is_refused() {
        for bad in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", &[0x7f; 64]] {
            assert!(loaded(bad.to_vec()).is_err());
        }
    }
}
