//! Writes netlink messages: several per batch, each a header, a fixed part and attributes.

/// The purpose of a message, and the errors that mean there was nothing to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    /// A gerund phrase for errors, such as "listing rules".
    pub(crate) doing: &'static str,
    /// Errors that count as success: an object to create exists, an object to remove does not.
    pub(crate) fine: &'static [i32],
}

impl Operation {
    pub(crate) const fn new(doing: &'static str) -> Self {
        Self { doing, fine: &[] }
    }

    pub(crate) const fn or(doing: &'static str, fine: &'static [i32]) -> Self {
        Self { doing, fine }
    }
}

pub(super) const HEADER: usize = 16;

const NLM_F_REQUEST: u16 = 0x1;
pub(super) const NLM_F_ACK: u16 = 0x4;
/// Flags for `message`.
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const REPLACE: u16 = 0x100;
pub(crate) const APPEND: u16 = 0x800;

const NLA_F_NESTED: u16 = 0x8000;

/// Messages that are sent with one system call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(super) bytes: Vec<u8>,
    /// One for each message; the index is the message's sequence number.
    pub(super) steps: Vec<Operation>,
    /// The offset of the last message that the kernel acknowledges.
    pub(super) last: usize,
    /// An attribute or message was too long for its length field.
    pub(super) overlong: bool,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Begins a message; it ends when the value is dropped.
    pub(crate) fn message(&mut self, step: Operation, kind: u16, flags: u16, fixed: &[u8]) -> Message<'_> {
        self.last = self.bytes.len();
        let message = self.begin(kind, flags, fixed);
        message.batch.steps.push(step);
        message
    }

    /// Appends a last message without an acknowledgement.
    pub(crate) fn close(&mut self, kind: u16, fixed: &[u8]) {
        drop(self.begin(kind, 0, fixed));
    }

    fn begin(&mut self, kind: u16, flags: u16, fixed: &[u8]) -> Message<'_> {
        let start = self.bytes.len();
        let number = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&number.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(fixed);
        self.pad();
        Message { start, batch: self }
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A message under construction.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    batch: &'a mut Batch,
    start: usize,
}

impl Message<'_> {
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let start = self.open(kind);
        self.batch.bytes.extend_from_slice(value);
        self.close(start)
    }

    pub(crate) fn byte(&mut self, kind: u16, value: u8) -> &mut Self {
        self.bytes(kind, &[value])
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub(crate) fn u32_be(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a text with a terminating zero byte, which most of the kernel requires.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let start = self.open(kind);
        self.batch.bytes.extend_from_slice(value.as_bytes());
        self.batch.bytes.push(0);
        self.close(start)
    }

    /// Adds nested attributes.
    pub(crate) fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.open(kind | NLA_F_NESTED);
        inner(self);
        self.close(start)
    }

    /// Adds a fixed part at the beginning of a nested attribute.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.batch.bytes.extend_from_slice(bytes);
        self.batch.pad();
        self
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(&[0; 2]);
        self.batch.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) -> &mut Self {
        match u16::try_from(self.batch.bytes.len() - start) {
            Ok(length) => self.batch.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.batch.overlong = true,
        }
        self.batch.pad();
        self
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        match u32::try_from(self.batch.bytes.len() - self.start) {
            Ok(length) => self.batch.bytes[self.start..self.start + 4].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.batch.overlong = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_length_and_padded_attributes() {
        let mut batch = Batch::new();
        batch.message(Operation::new("first"), 0x10, CREATE, &[7; 6]).byte(1, 0xaa).nest(2, |m| {
            m.text(3, "ab");
        });
        batch.message(Operation::new("second"), 0x11, 0, &[]);
        assert_eq!(batch.bytes.len(), 16 + 8 + 8 + 12 + 16);
        assert_eq!(batch.bytes[..4], 44_u32.to_ne_bytes());
        assert_eq!(batch.bytes[6..8], (CREATE | 1).to_ne_bytes());
        assert_eq!(batch.bytes[22..24], [0, 0], "the fixed part is padded");
        assert_eq!(batch.bytes[24..26], 5_u16.to_ne_bytes(), "lengths leave the padding out");
        assert_eq!(batch.bytes[34..36], (2 | NLA_F_NESTED).to_ne_bytes());
        assert_eq!(batch.bytes[40..43], *b"ab\0");
        assert_eq!(batch.bytes[52..56], 1_u32.to_ne_bytes(), "the second message");
        assert_eq!(batch.last, 44);
        assert!(!batch.overlong);
    }

    #[test]
    fn an_attribute_that_is_too_long_is_an_error() {
        let mut batch = Batch::new();
        batch.message(Operation::new("it"), 0x10, 0, &[]).bytes(1, &vec![0; 70_000]);
        assert!(batch.overlong);
    }
}
