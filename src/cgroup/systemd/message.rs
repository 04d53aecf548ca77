//! Encodes D-Bus calls and decodes the messages that systemd sends.

use serde::Serialize;
use zbus::wire::serialized::{Context, Data};
use zbus::wire::{LE, to_bytes};
use zbus::{ObjectPath, Type, Variant};

use super::properties::{Property, Value};

/// Maximum length of a message; a reply has a few hundred bytes.
const SIZE_MAX: usize = 1 << 20;

/// The fixed part at the start of every message, including the length of the header's fields.
pub(super) const START: usize = 16;

// Types of messages and codes of header fields, as the D-Bus specification numbers them.
const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// Endianness, type, flags, protocol, length of the body, serial, fields.
type Header<'a> = (u8, u8, u8, u8, u32, u32, Vec<(u8, Variant<'a>)>);

/// The destination and method of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method<'a> {
    pub(super) destination: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
}

/// The kind of a received message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// The response to the call with this serial: its body.
    Return { serial: u32, body: Vec<u8> },
    /// The error of the call with this serial: its name and text.
    Error { serial: u32, name: String, text: String },
    /// A signal, or another message that is not a reply.
    Other,
}

/// Encodes a call.
pub(super) fn call<B: Serialize + Type>(method: Method<'_>, serial: u32, body: &B) -> zbus::Result<Vec<u8>> {
    let context = Context::new(LE, 0);
    let body = to_bytes(context, body)?;
    let length = u32::try_from(body.bytes().len()).map_err(|_| zbus::Error::OutOfBounds)?;
    let fields = vec![
        (PATH, Variant::new(ObjectPath::try_from(method.path)?)),
        (INTERFACE, Variant::new(method.interface)),
        (MEMBER, Variant::new(method.member)),
        (DESTINATION, Variant::new(method.destination)),
    ];
    let header: Header<'_> = (b'l', CALL, 0, 1, length, serial, fields);
    let mut bytes = to_bytes(context, &header)?.bytes().to_vec();
    if length > 0 {
        add_types(&mut bytes, &B::SIGNATURE.to_string_no_parens())?;
    }
    pad(&mut bytes);
    bytes.extend_from_slice(body.bytes());
    Ok(bytes)
}

/// Adds the field with the types of the arguments. zbus would put them in parentheses, as one
/// structure.
fn add_types(header: &mut Vec<u8>, types: &str) -> zbus::Result<()> {
    let length = u8::try_from(types.len()).map_err(|_| zbus::Error::OutOfBounds)?;
    pad(header);
    header.extend_from_slice(&[SIGNATURE, 1, b'g', 0, length]);
    header.extend_from_slice(types.as_bytes());
    header.push(0);
    let fields = u32::try_from(header.len() - START).map_err(|_| zbus::Error::OutOfBounds)?;
    header[START - 4..START].copy_from_slice(&fields.to_le_bytes());
    Ok(())
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// Returns the number of bytes after the first [`START`] of a message; `None` if it is invalid or
/// too large.
pub(super) fn rest_of(start: &[u8; START]) -> Option<usize> {
    let number = |at: usize| {
        let bytes = start.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let (body, fields) = (number(4)?, number(12)?);
    if start[0] != b'l' || body > SIZE_MAX || fields > SIZE_MAX {
        return None;
    }
    Some(fields.next_multiple_of(8) + body)
}

/// Decodes a whole message.
pub(super) fn read(bytes: &[u8]) -> zbus::Result<Incoming> {
    let context = Context::new(LE, 0);
    let data = Data::new(bytes, context);
    let (header, read): (Header<'_>, usize) = data.deserialize()?;
    let (_, kind, _, _, _, _, fields) = header;
    let field = |code: u8| fields.iter().find(|(have, _)| *have == code).map(|(_, value)| value);
    let Some(Variant::U32(serial)) = field(REPLY_SERIAL) else { return Ok(Incoming::Other) };
    let body = bytes.get(read.next_multiple_of(8)..).unwrap_or_default();
    Ok(match kind {
        RETURN => Incoming::Return { serial: *serial, body: body.to_vec() },
        ERROR => {
            let name = match field(ERROR_NAME) {
                Some(Variant::Str(name)) => name.as_str().to_owned(),
                _ => String::new(),
            };
            // By convention the first string of an error's body is its message.
            let text = match field(SIGNATURE) {
                Some(Variant::Signature(signature)) if signature.to_string_no_parens().starts_with('s') => {
                    text_of(body)?
                }
                _ => String::new(),
            };
            Incoming::Error { serial: *serial, name, text }
        }
        _ => Incoming::Other,
    })
}

/// A body that is, or begins with, a string or object path.
pub(super) fn text_of(body: &[u8]) -> zbus::Result<String> {
    Ok(Data::new(body, Context::new(LE, 0)).deserialize::<&str>()?.0.to_owned())
}

/// A body that is a variant with a string in it.
pub(super) fn variant_text_of(body: &[u8]) -> zbus::Result<String> {
    match Data::new(body, Context::new(LE, 0)).deserialize::<Variant<'_>>()?.0 {
        Variant::Str(text) => Ok(text.as_str().to_owned()),
        _ => Err(zbus::Error::IncorrectType),
    }
}

/// Properties in systemd's form, `a(sv)`.
pub(super) fn properties(list: &[Property]) -> Vec<(&str, Variant<'_>)> {
    let variant = |value| match value {
        &Value::Flag(flag) => Variant::new(flag),
        &Value::Number(number) => Variant::new(number),
        Value::Text(text) => Variant::new(text.as_str()),
        Value::Mask(bytes) => Variant::new(bytes.clone()),
        Value::Processes(pids) => Variant::new(pids.clone()),
        Value::Pairs(pairs) => Variant::new(pairs.clone()),
    };
    list.iter().map(|Property { name, value }| (*name, variant(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Method<'_> = Method {
        destination: "org.freedesktop.DBus",
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        member: "Hello",
    };

    /// Encoded as by systemd, with one unknown field.
    fn message(kind: u8, fields: Vec<(u8, Variant<'_>)>, body: &[u8]) -> Vec<u8> {
        let header: Header<'_> = (b'l', kind, 1, 1, u32::try_from(body.len()).unwrap(), 7, fields);
        let mut bytes = to_bytes(Context::new(LE, 0), &header).unwrap().bytes().to_vec();
        pad(&mut bytes);
        bytes.extend_from_slice(body);
        bytes
    }

    fn body_of(text: &str) -> Vec<u8> {
        to_bytes(Context::new(LE, 0), &text).unwrap().bytes().to_vec()
    }

    #[test]
    fn a_call_without_arguments_is_encoded_as_in_the_specification() {
        let bytes = call(HELLO, 1, &()).unwrap();
        assert_eq!(bytes[..16], [b'l', 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0x6d, 0, 0, 0]);
        assert_eq!(bytes.len(), 16 + 0x6d_usize.next_multiple_of(8));
        assert_eq!(bytes[16..21], [1, 1, b'o', 0, 21]);
        assert_eq!(rest_of(bytes[..16].try_into().unwrap()), Some(bytes.len() - 16));
    }

    #[test]
    fn a_call_names_the_types_of_its_arguments() {
        let list = properties(&[]);
        let bytes = call(HELLO, 1, &("a", true, &list)).unwrap();
        let types = b"\x08\x01g\0\x07sba(sv)\0";
        let at = bytes.windows(types.len()).position(|window| window == types).unwrap();
        let fields = u32::from_le_bytes(bytes[12..16].try_into().unwrap());
        assert_eq!((at % 8, usize::try_from(fields).unwrap()), (0, at + types.len() - START));
        assert_eq!(rest_of(bytes[..START].try_into().unwrap()), Some(bytes.len() - START));
    }

    #[test]
    fn systemds_own_name_as_the_sender_is_accepted() {
        // systemd has no unique name on its private socket.
        let fields = vec![(REPLY_SERIAL, Variant::new(3_u32)), (7, Variant::new("org.freedesktop.systemd1"))];
        let bytes = message(RETURN, fields, &body_of("/job/1"));
        let Incoming::Return { serial, body } = read(&bytes).unwrap() else { panic!("no answer") };
        assert_eq!((serial, text_of(&body).unwrap().as_str()), (3, "/job/1"));
    }

    #[test]
    fn an_error_has_its_name_and_text() {
        let fields = vec![
            (ERROR_NAME, Variant::new("org.freedesktop.systemd1.NoSuchUnit")),
            (REPLY_SERIAL, Variant::new(3_u32)),
            (SIGNATURE, Variant::new(zbus::Signature::try_from("s").unwrap())),
        ];
        let read = read(&message(ERROR, fields, &body_of("Unit a.scope not loaded."))).unwrap();
        let name = "org.freedesktop.systemd1.NoSuchUnit".to_owned();
        assert_eq!(read, Incoming::Error { serial: 3, name, text: "Unit a.scope not loaded.".to_owned() });
    }

    #[test]
    fn signals_replies_and_invalid_messages_are_distinguished() {
        let signal = message(4, vec![(MEMBER, Variant::new("JobRemoved"))], &[]);
        assert_eq!(read(&signal).unwrap(), Incoming::Other);
        assert_eq!(rest_of(b"HTTP/1.1 400 Bad"), None);
        assert_eq!(rest_of(&[b'l', 2, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert!(read(&[b'l'; 16]).is_err());
    }
}
