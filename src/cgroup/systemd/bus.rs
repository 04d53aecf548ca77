//! A connection to systemd for a few calls.
//!
//! systemd listens on a private socket, for root only, where it speaks D-Bus without a bus daemon,
//! on every host. If the socket is missing, the system bus is used. A connection is never kept:
//! systemd would queue its signals for it.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use zbus::Type;

use super::message::{self, Incoming, Method, START};

const PRIVATE: &str = "/run/systemd/private";
const SYSTEM: &str = "/run/dbus/system_bus_socket";

/// Time limit for a response. systemd does not respond while it reloads.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Maximum line of the authentication.
const LINE_MAX: usize = 512;

/// Why a call got no response, or an error.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    #[error("connecting to systemd at the D-Bus socket {path}")]
    Connect { path: &'static str, source: io::Error },
    #[error("unexpected response of systemd in the D-Bus authentication: {0}")]
    Greeting(String),
    #[error("exchanging D-Bus messages with systemd")]
    Io(#[from] io::Error),
    #[error("systemd did not answer the D-Bus call {member} within {} s", ANSWER_WITHIN.as_secs())]
    Late { member: String },
    #[error("systemd sent an invalid D-Bus message in response to a cgroup request")]
    Noise,
    #[error("encoding or decoding a D-Bus message for systemd")]
    Form(#[from] zbus::Error),
    #[error("systemd refused the D-Bus call {member}: {text} ({name})")]
    Refused { member: String, name: String, text: String },
}

impl BusError {
    /// Whether systemd returned the error with this last component of its name.
    pub(super) fn is(&self, short: &str) -> bool {
        matches!(self, Self::Refused { name, .. } if name.rsplit('.').next() == Some(short))
    }
}

#[derive(Debug)]
pub(super) struct Bus {
    stream: UnixStream,
    serial: u32,
}

impl Bus {
    pub(super) fn connect() -> Result<Self, BusError> {
        match UnixStream::connect(PRIVATE) {
            Ok(stream) => Self::greet(stream),
            Err(missing) if matches!(missing.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                let connected = UnixStream::connect(SYSTEM);
                // The error of the private socket is the one to report.
                let stream = connected.map_err(|_| BusError::Connect { path: PRIVATE, source: missing })?;
                let mut bus = Self::greet(stream)?;
                bus.call(HELLO, &())?;
                Ok(bus)
            }
            Err(source) => Err(BusError::Connect { path: PRIVATE, source }),
        }
    }

    /// Sends this process's uid, which the server verifies with SO_PEERCRED. The authentication is
    /// sent in one piece, as systemd's programs do: a busy systemd reads following data together
    /// with it, and processes that only when more arrives. So nothing is sent before the response.
    fn greet(mut stream: UnixStream) -> Result<Self, BusError> {
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes())?;
        let line = read_line(&mut stream)?;
        if !line.starts_with("OK ") {
            return Err(BusError::Greeting(format!("{line:?}")));
        }
        Ok(Self { stream, serial: 0 })
    }

    /// Calls a method, and waits for the body of its response.
    pub(super) fn call<B: Serialize + Type>(&mut self, method: Method<'_>, body: &B) -> Result<Vec<u8>, BusError> {
        self.serial += 1;
        let member = || method.member.to_owned();
        let late = |e: io::Error| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => BusError::Late { member: member() },
            _ => BusError::Io(e),
        };
        self.stream.write_all(&message::call(method, self.serial, body)?).map_err(late)?;
        let begin = Instant::now();
        while begin.elapsed() < ANSWER_WITHIN {
            match self.read().map_err(|e| if let BusError::Io(e) = e { late(e) } else { e })? {
                Incoming::Return { serial, body } if serial == self.serial => return Ok(body),
                Incoming::Error { serial, name, text } if serial == self.serial => {
                    return Err(BusError::Refused { member: member(), name, text });
                }
                Incoming::Return { .. } | Incoming::Error { .. } | Incoming::Other => {}
            }
        }
        Err(BusError::Late { member: member() })
    }

    fn read(&mut self) -> Result<Incoming, BusError> {
        let mut start = [0; START];
        self.stream.read_exact(&mut start)?;
        let rest = message::rest_of(&start).ok_or(BusError::Noise)?;
        let mut bytes = start.to_vec();
        bytes.resize(START + rest, 0);
        self.stream.read_exact(&mut bytes[START..])?;
        Ok(message::read(&bytes)?)
    }
}

const HELLO: Method<'_> = Method {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
    member: "Hello",
};

/// Reads byte by byte: data after the line belongs to the first message.
fn read_line(stream: &mut UnixStream) -> Result<String, BusError> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        if line.len() == LINE_MAX {
            return Err(BusError::Greeting("a line without end".to_owned()));
        }
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A server that performs systemd's handshake, checks the client's, and then sends `after`.
    fn peer(greeting: &'static [u8], after: Vec<u8>) -> UnixStream {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let line = read_line(&mut theirs).unwrap();
            assert!(line.starts_with("\0AUTH EXTERNAL 3"), "{line:?}");
            assert_eq!(read_line(&mut theirs).unwrap(), "BEGIN", "before the answer");
            theirs.write_all(greeting).unwrap();
            if greeting.starts_with(b"OK") {
                theirs.write_all(&after).unwrap();
                // Closes only the write side, so that the client can still send the call.
                theirs.shutdown(std::net::Shutdown::Write).unwrap();
                theirs.read_to_end(&mut Vec::new()).unwrap();
            }
        });
        ours
    }

    /// A response to the first call: `l`, type, no fields but the serial, the body `"text"`.
    fn answer(kind: u8, serial: u8) -> Vec<u8> {
        let mut bytes = vec![b'l', kind, 1, 1, 9, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0];
        bytes.extend_from_slice(&[5, 1, b'u', 0, serial, 0, 0, 0]);
        bytes.extend_from_slice(b"\x04\0\0\0text\0");
        bytes
    }

    #[test]
    fn other_messages_before_the_reply_are_skipped() {
        let told = [answer(4, 9), answer(2, 7), answer(2, 1)].concat();
        let mut bus = Bus::greet(peer(b"OK 0123456789abcdef0123456789abcdef\r\n", told)).unwrap();
        assert_eq!(bus.call(HELLO, &()).unwrap(), b"\x04\0\0\0text\0");
    }

    #[test]
    fn a_refused_or_closed_connection_is_an_error() {
        let refused = Bus::greet(peer(b"REJECTED EXTERNAL\r\n", Vec::new())).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "unexpected response of systemd in the D-Bus authentication: \"REJECTED EXTERNAL\""
        );
        let mut bus = Bus::greet(peer(b"OK 0\r\n", answer(2, 1)[..20].to_vec())).unwrap();
        assert!(matches!(bus.call(HELLO, &()), Err(BusError::Io(_))));
        let mut bus = Bus::greet(peer(b"OK 0\r\n", b"HTTP/1.1 400 Bad Request".to_vec())).unwrap();
        assert!(matches!(bus.call(HELLO, &()), Err(BusError::Noise)));
    }

    #[test]
    fn an_error_is_recognised_by_the_last_part_of_its_name() {
        let name = "org.freedesktop.systemd1.NoSuchUnit".to_owned();
        let refused = BusError::Refused { member: "StopUnit".to_owned(), name, text: "Unit a not loaded.".to_owned() };
        assert!(refused.is("NoSuchUnit") && !refused.is("UnitExists"));
        assert!(!BusError::Noise.is("NoSuchUnit"));
    }
}
