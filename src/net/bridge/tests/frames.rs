//! Ethernet frames as a pod with CAP_NET_RAW can send them, and packet sockets that receive.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, sendto, socket,
};

use super::support::Netns;

pub(super) type Mac = [u8; 6];
pub(super) const ALL: Mac = [0xff; 6];

/// A packet socket at one interface.
pub(super) struct Wire {
    socket: OwnedFd,
    address: LinkAddr,
}

impl Wire {
    pub(super) fn at(netns: &Netns, interface: &str) -> Self {
        netns.enter(|| {
            let (family, flags) = (AddressFamily::Packet, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
            let socket = socket(family, SockType::Raw, flags, SockProtocol::EthAll).unwrap();
            let address = getifaddrs().unwrap().filter(|found| found.interface_name == interface);
            let address = address.filter_map(|found| found.address?.as_link_addr().copied()).next().unwrap();
            bind(socket.as_raw_fd(), &address).unwrap();
            Self { socket, address }
        })
    }

    pub(super) fn mac(&self) -> Mac {
        self.address.addr().unwrap()
    }

    pub(super) fn send(&self, frame: &[u8]) {
        let sent = sendto(self.socket.as_raw_fd(), frame, &self.address, MsgFlags::empty()).unwrap();
        assert_eq!(sent, frame.len());
    }

    /// Returns whether a frame with these bytes arrives in time.
    pub(super) fn sees(&self, mark: &[u8], within: Duration) -> bool {
        self.first_of(&[mark], within) == Some(0)
    }

    /// Returns whether the second arrives in time, and the first not before it.
    pub(super) fn sees_without(&self, first: &[u8], second: &[u8], within: Duration) -> bool {
        self.first_of(&[first, second], within) == Some(1)
    }

    fn first_of(&self, marks: &[&[u8]], within: Duration) -> Option<usize> {
        let begin = Instant::now();
        let mut bytes = [0; 2048];
        loop {
            match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::empty()).map_err(io::Error::from) {
                Ok(count) => {
                    let has = |mark: &&[u8]| bytes[..count].windows(mark.len()).any(|part| part == *mark);
                    if let Some(place) = marks.iter().position(has) {
                        return Some(place);
                    }
                }
                Err(_) if begin.elapsed() > within => return None,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

pub(super) fn frame(to: Mac, from: Mac, kind: u16, body: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), body].concat()
}

/// The same with a tag of VLAN 0, which means no VLAN.
pub(super) fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 0], &frame[12..]].concat()
}

/// A datagram to port 9 of the broadcast address.
pub(super) fn udp4(from: Ipv4Addr, to: Ipv4Addr, mark: &[u8]) -> Vec<u8> {
    let udp = udp(mark);
    let length = u16::try_from(20 + udp.len()).unwrap().to_be_bytes();
    let mut head = vec![0x45, 0, length[0], length[1], 0, 1, 0, 0, 64, 17, 0, 0];
    head.extend(from.octets());
    head.extend(to.octets());
    let sum = checksum(&head).to_be_bytes();
    head[10..12].copy_from_slice(&sum);
    [head, udp].concat()
}

fn udp(mark: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + mark.len()).unwrap().to_be_bytes();
    [&[0, 9, 0, 9, length[0], length[1], 0, 0][..], mark].concat()
}

pub(super) fn udp6(from: Ipv6Addr, to: Ipv6Addr, mark: &[u8]) -> Vec<u8> {
    ip6(from, to, 17, &udp(mark))
}

fn ip6(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [&[0x60, 0, 0, 0, length[0], length[1], protocol, 255][..], &from.octets(), &to.octets(), body].concat()
}

/// Returns a neighbour discovery message, with eight bytes of options or with a target.
pub(super) fn icmp6(from: Ipv6Addr, to: Ipv6Addr, kind: u8, target: Option<Ipv6Addr>, mark: &[u8]) -> Vec<u8> {
    let target = target.map(|ip| ip.octets().to_vec()).unwrap_or_else(|| vec![0; 8]);
    let option = u8::try_from((2 + mark.len()).div_ceil(8)).unwrap();
    let mut body = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target, &[14, option], mark].concat();
    body.resize(8 + target.len() + usize::from(option) * 8, 0);
    let pseudo = [&from.octets()[..], &to.octets(), &u32::try_from(body.len()).unwrap().to_be_bytes(), &[0, 0, 0, 58]];
    let sum = checksum(&[&pseudo.concat(), &body[..]].concat()).to_be_bytes();
    body[2..4].copy_from_slice(&sum);
    ip6(from, to, 58, &body)
}

/// Returns an ARP packet: 1 is a request, 2 a reply.
pub(super) fn arp(operation: u8, mac: Mac, from: Ipv4Addr, to: Ipv4Addr, mark: &[u8]) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, operation][..], &mac, &from.octets(), &ALL, &to.octets(), mark].concat()
}

fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

pub(super) fn v4(ip: IpAddr) -> Ipv4Addr {
    match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => panic!("{ip}"),
    }
}

pub(super) fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V6(ip) => ip,
        IpAddr::V4(ip) => panic!("{ip}"),
    }
}
