//! Netlink requests for a pair of interfaces, its address and its route.

use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
const IPV4: u8 = 2;
const UP: u32 = 1;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Prefix length of the bridge's network.
const PREFIX: u8 = 16;

/// A socket for requests in the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Route(Socket);

impl Route {
    pub(super) fn open() -> io::Result<Self> {
        Socket::new(NETLINK_ROUTE).map(Self)
    }

    /// Creates a bridge that is up.
    pub(super) fn create_bridge(&self, name: &str) -> io::Result<()> {
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE);
        message.link(UP).text(3, name);
        message.nest(18, |info| info.text(1, "bridge"));
        self.send(message)
    }

    /// Creates a pair of interfaces: `name` as a port of `bridge`, and `peer` in the network namespace with this
    /// descriptor. The kernel cannot create `peer` up.
    pub(super) fn create_pair(&self, name: &str, bridge: u32, peer: &str, namespace: i32) -> io::Result<()> {
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE);
        message.link(UP).text(3, name).bytes(10, &bridge.to_ne_bytes());
        message.nest(18, |info| {
            info.text(1, "veth")
                .nest(2, |data| data.nest(1, |other| other.link(0).text(3, peer).bytes(28, &namespace.to_ne_bytes())))
        });
        self.send(message)
    }

    pub(super) fn set_up(&self, index: u32) -> io::Result<()> {
        let mut message = Message::new(NEW_LINK, 0);
        message.raw(&[0; 4]).raw(&index.to_ne_bytes()).raw(&UP.to_ne_bytes()).raw(&UP.to_ne_bytes());
        self.send(message)
    }

    pub(super) fn add_address(&self, index: u32, address: [u8; 4]) -> io::Result<()> {
        let mut message = Message::new(NEW_ADDRESS, CREATE | EXCLUSIVE);
        message.raw(&[IPV4, PREFIX, 0, 0]).raw(&index.to_ne_bytes()).bytes(2, &address).bytes(1, &address);
        self.send(message)
    }

    pub(super) fn add_default_route(&self, index: u32, gateway: [u8; 4]) -> io::Result<()> {
        let mut message = Message::new(NEW_ROUTE, CREATE | EXCLUSIVE);
        // Main table, protocol boot, universal scope, unicast; no flags.
        message.raw(&[IPV4, 0, 0, 0, 254, 3, 0, 1]).raw(&[0; 4]);
        message.bytes(5, &gateway).bytes(4, &index.to_ne_bytes());
        self.send(message)
    }

    /// Sends a request, and reads the kernel's acknowledgement.
    fn send(&self, message: Message) -> io::Result<()> {
        self.0.send(&message.finish(), 0)?;
        let mut answer = Vec::with_capacity(4096);
        self.0.recv_from(&mut answer, 0)?;
        result_of(&answer)
    }
}

/// Returns the error in an acknowledgement, if any.
fn result_of(answer: &[u8]) -> io::Result<()> {
    let code = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::Error::other("the kernel's netlink response is too short")),
    }
}

struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST | ACKNOWLEDGE).to_ne_bytes());
        Self(bytes)
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a `struct ifinfomsg` that sets flags.
    fn link(&mut self, flags: u32) -> &mut Self {
        self.raw(&[0; 8]).raw(&flags.to_ne_bytes()).raw(&flags.to_ne_bytes())
    }

    fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.nest(kind, |inner| inner.raw(value))
    }

    fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.nest(kind, |inner| inner.raw(value.as_bytes()).raw(&[0]))
    }

    /// Appends an attribute with the content that `fill` appends, padded to 4 bytes.
    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        let start = self.0.len();
        self.raw(&[0; 2]).raw(&kind.to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_nested_ones_contain_the_others() {
        let mut message = Message::new(NEW_LINK, CREATE);
        message.link(UP).text(3, "a").nest(18, |info| info.text(1, "veth"));
        let bytes = message.finish();
        assert_eq!(bytes.len(), 16 + 16 + 8 + 16);
        assert_eq!(bytes[..4], 56u32.to_ne_bytes());
        assert_eq!((&bytes[32..34], &bytes[36..38]), (&6u16.to_ne_bytes()[..], &b"a\0"[..]));
        assert_eq!((&bytes[40..42], &bytes[44..46]), (&16u16.to_ne_bytes()[..], &9u16.to_ne_bytes()[..]));
    }

    #[test]
    fn a_refusal_is_an_error() {
        let answer = |code: i32| [vec![0; HEADER], code.to_ne_bytes().to_vec()].concat();
        assert!(result_of(&answer(0)).is_ok());
        assert_eq!(result_of(&answer(-17)).unwrap_err().raw_os_error(), Some(17));
        assert!(result_of(&[0; 8]).is_err());
    }
}
