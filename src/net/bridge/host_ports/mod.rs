//! The host ports of pods, and which pod has which.

pub(super) mod conntrack;
pub(super) mod sockets;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::{fmt, io};

use model::{ErrorClass, ErrorKind, PortMapping, Protocol, RequestField};

use self::sockets::Sockets;
use super::netlink::NetlinkError;

/// A host port that a pod cannot have.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error("host port {port} is already used by pod {pod}")]
    Taken { port: HostPort, pod: String },
    #[error("host_port {port} is in use by a process of the host: stop that, or set another host_port")]
    InUse { port: HostPort },
    #[error("host_ip {host_ip} is not an address of this host")]
    NotLocal { host_ip: IpAddr },
    #[error("host_ip {host_ip} is link-local: expected an address that is valid without an interface")]
    LinkLocal { host_ip: IpAddr },
    #[error("reading the host's addresses for host ports")]
    Look(#[source] NetlinkError),
    #[error("reserving host port {port} for a pod")]
    Hold { port: HostPort, source: io::Error },
    #[error("host port {port} is mapped twice by one pod, to {first} and to {second}")]
    Twice { port: HostPort, first: SocketAddr, second: SocketAddr },
    #[error("host port {port}: invalid host_ip {host_ip:?}")]
    NoAddress { port: u16, host_ip: String },
    #[error("host port {port}: host_ip {host_ip} is IPv4 or IPv6, and the pod has no address of that family")]
    NoFamily { port: u16, host_ip: IpAddr },
    #[error("host port {port} cannot use host_ip ::1: the kernel does not route packets from ::1 to a pod")]
    Loopback { port: u16 },
}

impl ErrorClass for PortError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Taken { .. } | Self::InUse { .. } | Self::NotLocal { .. } => ErrorKind::Precondition,
            Self::Twice { .. } | Self::NoAddress { .. } | Self::NoFamily { .. } => ErrorKind::Invalid,
            Self::Loopback { .. } | Self::LinkLocal { .. } => ErrorKind::Unsupported,
            Self::Look(_) | Self::Hold { .. } => ErrorKind::Internal,
        }
    }

    fn field(&self) -> Option<RequestField> {
        match self {
            Self::Look(_) | Self::Hold { .. } => None,
            Self::Taken { .. } | Self::InUse { .. } | Self::NotLocal { .. } => Some(RequestField::PortMappings),
            Self::Twice { .. } | Self::NoAddress { .. } | Self::NoFamily { .. } => Some(RequestField::PortMappings),
            Self::Loopback { .. } | Self::LinkLocal { .. } => Some(RequestField::PortMappings),
        }
    }
}

/// A host port, at one address or at all addresses of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub(super) v6: bool,
    /// The IP protocol number.
    pub(super) protocol: u8,
    pub(super) port: u16,
    pub(super) address: Option<IpAddr>,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

impl HostPort {
    /// Returns the ports that overlap with this one: the same port at any address, or at one.
    fn of_same_number(&self) -> std::ops::RangeInclusive<Self> {
        let last = IpAddr::V6(Ipv6Addr::from_bits(u128::MAX));
        Self { address: None, ..*self }..=Self { address: Some(last), ..*self }
    }

    /// Returns whether a packet can match both.
    fn meets(&self, other: &Self) -> bool {
        let Self { v6, protocol, port, address } = *other;
        let same_port = (self.v6, self.protocol, self.port) == (v6, protocol, port);
        same_port && (self.address == address || self.address.is_none() || address.is_none())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            TCP => "TCP",
            UDP => "UDP",
            _ => "SCTP",
        };
        match (self.address, self.v6) {
            (Some(address), _) => write!(f, "{}/{protocol}", SocketAddr::new(address, self.port)),
            (None, false) => write!(f, "{}/{protocol}", self.port),
            (None, true) => write!(f, "{}/{protocol} of IPv6", self.port),
        }
    }
}

/// The target of packets to a host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Forward {
    pub(super) from: HostPort,
    pub(super) to: SocketAddr,
}

/// All host ports of pods.
#[derive(Debug, Default)]
pub(super) struct Ports {
    claims: BTreeMap<HostPort, (Arc<str>, SocketAddr)>,
    pub(super) sockets: Sockets,
}

impl Ports {
    /// Reserves a pod's ports, all of them or none.
    pub(super) fn claim(
        &mut self,
        pod: &str,
        mappings: &[PortMapping],
        ips: &[IpAddr],
    ) -> Result<Vec<Forward>, PortError> {
        let forwards = expand(mappings, ips)?;
        for forward in &forwards {
            let mut near = self.claims.range(forward.from.of_same_number());
            let other = near.find(|(port, (owner, _))| &**owner != pod && port.meets(&forward.from));
            if let Some((port, (owner, _))) = other {
                return Err(PortError::Taken { port: *port, pod: owner.to_string() });
            }
        }
        let owner: Arc<str> = pod.into();
        self.claims.extend(forwards.iter().map(|f| (f.from, (Arc::clone(&owner), f.to))));
        self.sockets.want(pod, &forwards);
        Ok(forwards)
    }

    /// Removes and returns the ports of a pod. Its sockets hold them until [`Sockets::release`].
    pub(super) fn release(&mut self, pod: &str) -> Vec<Forward> {
        let mut released = Vec::new();
        self.claims.retain(|from, (owner, to)| {
            let others = &**owner != pod;
            if !others {
                released.push(Forward { from: *from, to: *to });
            }
            others
        });
        released
    }

    pub(super) fn all(&self) -> Vec<Forward> {
        self.claims.iter().map(|(from, (_, to))| Forward { from: *from, to: *to }).collect()
    }
}

/// Returns one forward for each address family of a mapping, none for a mapping without a host
/// port.
fn expand(mappings: &[PortMapping], ips: &[IpAddr]) -> Result<Vec<Forward>, PortError> {
    let mut all: BTreeMap<HostPort, SocketAddr> = BTreeMap::new();
    for mapping in mappings.iter().filter(|m| m.host_port != 0) {
        let PortMapping { protocol, container_port, host_port, host_ip } = mapping;
        let port = *host_port;
        let wanted = match host_ip.as_str() {
            "" => None,
            text => match text.parse::<IpAddr>() {
                Ok(ip) => Some(ip.to_canonical()),
                Err(_) => return Err(PortError::NoAddress { port, host_ip: host_ip.clone() }),
            },
        };
        if wanted.is_some_and(|ip| ip.is_ipv6() && ip.is_loopback()) {
            return Err(PortError::Loopback { port });
        }
        if let Some(host_ip) = wanted.filter(|ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())) {
            return Err(PortError::LinkLocal { host_ip });
        }
        let meant = |ip: &&IpAddr| wanted.is_none_or(|wanted| wanted.is_ipv4() == ip.is_ipv4());
        let mut targets = ips.iter().filter(meant).peekable();
        if let Some(host_ip) = wanted.filter(|_| targets.peek().is_none()) {
            return Err(PortError::NoFamily { port, host_ip });
        }
        for ip in targets {
            let address = wanted.filter(|wanted| !wanted.is_unspecified());
            let from = HostPort { v6: ip.is_ipv6(), protocol: number(*protocol), port, address };
            let to = SocketAddr::new(*ip, *container_port);
            match all.insert(from, to) {
                Some(first) if first != to => return Err(PortError::Twice { port: from, first, second: to }),
                _ => {}
            }
        }
    }
    Ok(all.into_iter().map(|(from, to)| Forward { from, to }).collect())
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
        Protocol::Sctp => SCTP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(protocol: Protocol, host_ip: &str, host_port: u16, container_port: u16) -> PortMapping {
        PortMapping { protocol, container_port, host_port, host_ip: host_ip.to_owned() }
    }

    fn tcp(host_ip: &str, host_port: u16) -> PortMapping {
        mapping(Protocol::Tcp, host_ip, host_port, 80)
    }

    fn both() -> [IpAddr; 2] {
        ["10.1.0.2", "fd00::2"].map(|ip| ip.parse().unwrap())
    }

    fn shown(forwards: &[Forward]) -> Vec<String> {
        forwards.iter().map(|f| format!("{} to {}", f.from, f.to)).collect()
    }

    #[test]
    fn a_mapping_applies_to_every_family_that_it_does_not_exclude() {
        let ports = [
            tcp("", 8080),
            mapping(Protocol::Udp, "0.0.0.0", 53, 5353),
            mapping(Protocol::Sctp, "::", 9, 10),
            tcp("192.0.2.1", 81),
            tcp("2001:db8::1", 82),
            tcp("::ffff:192.0.2.1", 83),
            tcp("", 0),
        ];
        let forwards = Ports::default().claim("a", &ports, &both()).unwrap();
        let mut expected = [
            "8080/TCP to 10.1.0.2:80",
            "8080/TCP of IPv6 to [fd00::2]:80",
            "53/UDP to 10.1.0.2:5353",
            "9/SCTP of IPv6 to [fd00::2]:10",
            "192.0.2.1:81/TCP to 10.1.0.2:80",
            "[2001:db8::1]:82/TCP to [fd00::2]:80",
            "192.0.2.1:83/TCP to 10.1.0.2:80",
        ];
        let mut shown = shown(&forwards);
        shown.sort_unstable();
        expected.sort_unstable();
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_port_conflicts_if_one_of_two_mappings_has_all_addresses() {
        let mut ports = Ports::default();
        ports.claim("a", &[tcp("", 80), tcp("192.0.2.1", 81)], &both()).unwrap();
        for clash in [tcp("", 80), tcp("127.0.0.1", 80), tcp("::", 80), tcp("", 81), tcp("192.0.2.1", 81)] {
            let error = ports.claim("b", &[tcp("", 7), clash.clone()], &both()).unwrap_err();
            assert!(matches!(&error, PortError::Taken { pod, .. } if pod == "a"), "{clash:?}: {error}");
            assert_eq!(error.kind(), ErrorKind::Precondition);
        }
        let free = [tcp("192.0.2.2", 81), tcp("::", 81), mapping(Protocol::Udp, "", 80, 80), tcp("", 7)];
        ports.claim("b", &free, &both()).unwrap();
        assert_eq!(ports.release("a").len(), 3);
        assert_eq!(ports.release("a"), []);
        ports.claim("c", &[tcp("", 80)], &both()).unwrap();
    }

    #[test]
    fn the_error_names_port_and_pod() {
        let mut ports = Ports::default();
        ports.claim("a", &[tcp("", 80)], &both()).unwrap();
        let error = ports.claim("b", &[tcp("127.0.0.1", 80)], &both()).unwrap_err();
        assert_eq!(error.to_string(), "host port 80/TCP is already used by pod a");
    }

    #[test]
    fn a_pod_may_repeat_a_port_but_not_change_it() {
        let mut ports = Ports::default();
        assert_eq!(ports.claim("a", &[tcp("", 80), tcp("", 80)], &both()[..1]).unwrap().len(), 1);
        assert_eq!(ports.claim("a", &[tcp("", 80)], &both()[..1]).unwrap().len(), 1, "a repeated request");
        let error = ports.claim("b", &[tcp("", 81), mapping(Protocol::Tcp, "", 81, 82)], &both()).unwrap_err();
        assert!(matches!(error, PortError::Twice { .. }), "{error}");
        assert_eq!(ports.all().len(), 1);
    }

    #[test]
    fn an_address_that_the_pod_cannot_be_reached_at_is_refused() {
        let mut ports = Ports::default();
        let error = ports.claim("a", &[tcp("2001:db8::1", 80)], &both()[..1]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "host port 80: host_ip 2001:db8::1 is IPv4 or IPv6, and the pod has no address of that family"
        );
        assert!(matches!(ports.claim("a", &[tcp("::1", 80)], &both()), Err(PortError::Loopback { port: 80 })));
        assert!(matches!(ports.claim("a", &[tcp("fe80::1", 80)], &both()), Err(PortError::LinkLocal { .. })));
        assert!(matches!(ports.claim("a", &[tcp("here", 80)], &both()), Err(PortError::NoAddress { .. })));
        assert_eq!(ports.all(), []);
    }
}
