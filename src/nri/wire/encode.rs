//! Writes ttrpc messages as trunk frames.

use super::{Kind, MESSAGE_HEADER, Service};

/// Messages up to this size are copied behind their headers and written at once.
const JOINED: usize = 64 << 10;

/// Returns the bytes of a message: its header in a frame, and its payload in another.
///
/// The library of plugins in Go reads the 10 bytes of the header first and fails if the frame has
/// more than its buffer, and closes the trunk at 256 unread frames: neither one frame per message
/// nor many small ones work. The second part is the payload if it was not copied.
pub(crate) fn frames(service: Service, kind: Kind, stream: u32, payload: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    // Callers check the bound of messages, which is far below that of the header.
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut head = Vec::with_capacity(32 + if payload.len() <= JOINED { payload.len() } else { 0 });
    head.extend_from_slice(&service.id().to_be_bytes());
    head.extend_from_slice(&[0, 0, 0, 10]);
    debug_assert_eq!(MESSAGE_HEADER, 10);
    head.extend_from_slice(&length);
    head.extend_from_slice(&stream.to_be_bytes());
    head.extend_from_slice(&[kind.number(), 0]);
    if payload.is_empty() {
        return (head, payload);
    }
    head.extend_from_slice(&service.id().to_be_bytes());
    head.extend_from_slice(&length);
    if payload.len() <= JOINED {
        head.extend_from_slice(&payload);
        return (head, Vec::new());
    }
    (head, payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_frame_of_its_header_and_a_frame_of_its_payload() {
        let (bytes, rest) = frames(Service::Plugin, Kind::Request, 5, b"abc".to_vec());
        let header = [0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 3, 0, 0, 0, 5, 1, 0];
        assert_eq!(bytes, [&header[..], &[0, 0, 0, 1, 0, 0, 0, 3], b"abc"].concat());
        assert!(rest.is_empty());
    }

    #[test]
    fn an_empty_message_is_a_single_frame() {
        let (bytes, rest) = frames(Service::Runtime, Kind::Response, 1, Vec::new());
        assert_eq!(bytes, [0, 0, 0, 2, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0]);
        assert!(rest.is_empty());
    }

    #[test]
    fn a_large_payload_is_not_copied() {
        let (bytes, rest) = frames(Service::Plugin, Kind::Request, 1, vec![7; JOINED + 1]);
        assert_eq!((bytes.len(), rest.len()), (26, JOINED + 1));
    }
}
