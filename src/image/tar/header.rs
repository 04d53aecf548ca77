//! Fields of a tar header block: numbers, names and the checksum.

pub(crate) const BLOCK: usize = 512;

/// One header block.
pub(crate) type Block = [u8; BLOCK];

/// Parses a field of octal digits, or base 256 if the first bit is set; blank is 0.
pub(crate) fn number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        return u64::try_from(signed(field)?).ok();
    }
    let text = field.split(|&b| b == 0).next()?.trim_ascii();
    text.iter().try_fold(0u64, |sum, &digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Parses as [`number`] does, where base 256 may also be negative.
pub(crate) fn signed(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 == 0 {
        return i64::try_from(number(field)?).ok();
    }
    // Two's complement; the marker bit is in the place of the sign bit.
    let negative = first & 0x40 != 0;
    let start = if negative { -1i64 } else { 0 };
    field.iter().enumerate().try_fold(start, |sum, (at, &byte)| {
        let byte = if at == 0 && !negative { byte & 0x7f } else { byte };
        sum.checked_mul(256)?.checked_add(i64::from(byte))
    })
}

/// Refuses -1, which `chown` takes as "no change", so no file can have it.
pub(crate) fn checked_id(id: u64) -> Option<u32> {
    u32::try_from(id).ok().filter(|&id| id != u32::MAX)
}

/// Returns the name, with the prefix of POSIX headers.
pub(crate) fn path(header: &Block) -> Vec<u8> {
    let name = until_nul(header[..100].to_vec());
    let prefix = until_nul(header[345..500].to_vec());
    // GNU tar has "ustar  " as magic and other data in place of the prefix.
    if &header[257..263] == b"ustar\0" && !prefix.is_empty() { [prefix, name].join(&b'/') } else { name }
}

/// Truncates at the first NUL, if there is one.
pub(crate) fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|&b| b == 0) {
        bytes.truncate(end);
    }
    bytes
}

/// Returns whether the checksum of the header is correct.
pub(crate) fn is_whole(header: &Block) -> bool {
    let summed = |byte: fn(u8) -> i64| -> i64 {
        let spaces = 8 * i64::from(b' ');
        header[..148].iter().chain(&header[156..]).map(|&b| byte(b)).sum::<i64>() + spaces
    };
    let stated = number(&header[148..156]).and_then(|sum| i64::try_from(sum).ok());
    // Some old writers summed signed bytes.
    stated == Some(summed(i64::from)) || stated == Some(summed(|b| i64::from(b.cast_signed())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"  644 \0\0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"9"), None);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 1, 0]), Some(256));
        assert_eq!(number(&[0xff; 12]), None);
        assert_eq!(signed(&[0xff; 12]), Some(-1));
        assert_eq!(signed(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00]), Some(-256));
        assert_eq!(number(&[0xbf; 12]), None);
    }
}
