//! Parses the attributes of netlink messages; truncated ones are skipped.

/// Iterates over all attributes in `bytes` with their kinds, without a truncated one.
pub(crate) fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

/// Returns the first attribute of a kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// Returns a nested attribute.
pub(crate) fn find_in<const N: usize>(bytes: &[u8], path: [u16; N]) -> Option<&[u8]> {
    path.iter().try_fold(bytes, |bytes, kind| find(bytes, *kind))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

/// Returns a text without its terminating zero byte.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[derive(Debug)]
pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_at(self.rest, 0)?);
        // Without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER.
        let kind = u16_at(self.rest, 2)? & 0x3fff;
        let value = self.rest.get(4..length)?;
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Batch, Operation};
    use super::*;

    #[test]
    fn written_attributes_are_read() {
        let mut batch = Batch::new();
        batch.message(Operation::new("it"), 0x10, 0, &[]).text(5, "eth0").nest(6, |m| {
            m.byte(1, 9).nest(2, |m| {
                m.u32(7, 42);
            });
        });
        let body = &batch.bytes[16..];
        assert_eq!(find(body, 5).map(text).as_deref(), Some("eth0"));
        assert_eq!(find_in(body, [6, 2, 7]).and_then(|v| u32_at(v, 0)), Some(42));
        assert_eq!(find_in(body, [6, 3]), None);
    }

    #[test]
    fn truncated_and_invalid_attributes_are_skipped() {
        for bad in [&[][..], &[4], &[4, 0, 1], &[3, 0, 1, 0], &[0, 0, 0, 0, 0], &[9, 0, 1, 0, 5]] {
            assert_eq!(attributes(bad).count(), 0, "{bad:?}");
        }
    }
}
