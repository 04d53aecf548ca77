//! The sets and maps of the tables. Only their elements differ between pods.

use std::net::{IpAddr, Ipv6Addr};

use super::octets;
use crate::bridge::host_ports::Forward;
use crate::bridge::link::{Mac, PodLink};

pub(super) const INET: u8 = 1;
pub(super) const BRIDGE: u8 = 7;

/// The data types of nft, with their numbers of six bits and their lengths in multiples of four
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Interface,
    Ethernet,
    Ipv4,
    Ipv6,
    Protocol,
    Service,
}

impl Part {
    fn kind(self) -> u32 {
        match self {
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Ethernet => 9,
            Self::Protocol => 12,
            Self::Service => 13,
            Self::Interface => 41,
        }
    }

    fn length(self) -> u32 {
        match self {
            Self::Protocol | Self::Service | Self::Ipv4 => 4,
            Self::Ethernet => 8,
            Self::Interface | Self::Ipv6 => 16,
        }
    }
}

/// Returns nft's number for a concatenation of types.
pub(super) fn kind(parts: &[Part]) -> u32 {
    parts.iter().fold(0, |kind, part| kind << 6 | part.kind())
}

pub(super) fn length(parts: &[Part]) -> u32 {
    parts.iter().map(|part| part.length()).sum()
}

/// A set; a map if its elements have values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) family: u8,
    pub(super) name: &'static str,
    pub(super) key: &'static [Part],
    pub(super) value: &'static [Part],
}

const fn set(family: u8, name: &'static str, key: &'static [Part]) -> Set {
    Set { family, name, key, value: &[] }
}

const fn map(name: &'static str, key: &'static [Part], value: &'static [Part]) -> Set {
    Set { family: INET, name, key, value }
}

pub(super) static ADDRESS_PORTS4: Set =
    map("address_ports4", &[Part::Ipv4, Part::Protocol, Part::Service], &[Part::Ipv4, Part::Service]);
pub(super) static ADDRESS_PORTS6: Set =
    map("address_ports6", &[Part::Ipv6, Part::Protocol, Part::Service], &[Part::Ipv6, Part::Service]);
pub(super) static PORTS4: Set = map("ports4", &[Part::Protocol, Part::Service], &[Part::Ipv4, Part::Service]);
pub(super) static PORTS6: Set = map("ports6", &[Part::Protocol, Part::Service], &[Part::Ipv6, Part::Service]);
pub(super) static PODS4: Set = set(INET, "pods4", &[Part::Ipv4]);
pub(super) static PODS6: Set = set(INET, "pods6", &[Part::Ipv6]);
pub(super) static LINKS: Set = set(BRIDGE, "links", &[Part::Interface]);
pub(super) static SOURCES4: Set = set(BRIDGE, "sources4", &[Part::Interface, Part::Ethernet, Part::Ipv4]);
pub(super) static SOURCES6: Set = set(BRIDGE, "sources6", &[Part::Interface, Part::Ethernet, Part::Ipv6]);

pub(super) static SETS: [&Set; 9] =
    [&ADDRESS_PORTS4, &ADDRESS_PORTS6, &PORTS4, &PORTS6, &PODS4, &PODS6, &LINKS, &SOURCES4, &SOURCES6];

/// An element of a set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    pub(super) key: Vec<u8>,
    /// Empty for a set that is not a map.
    pub(super) value: Vec<u8>,
}

/// The expected elements of the sets.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::bridge) struct Contents<'a> {
    pub(in crate::bridge) forwards: &'a [Forward],
    pub(in crate::bridge) links: &'a [PodLink],
}

impl Contents<'_> {
    /// Returns the elements of one set.
    pub(super) fn of(&self, set: &Set) -> Vec<Element> {
        let mut elements: Vec<_> = self.forwards.iter().filter(|f| std::ptr::eq(map_of(f), set)).map(forward).collect();
        elements.extend(
            self.links.iter().flat_map(link).filter(|(of, _)| std::ptr::eq(*of, set)).map(|(_, element)| element),
        );
        elements
    }
}

fn map_of(forward: &Forward) -> &'static Set {
    match (forward.from.address.is_some(), forward.from.v6) {
        (true, false) => &ADDRESS_PORTS4,
        (true, true) => &ADDRESS_PORTS6,
        (false, false) => &PORTS4,
        (false, true) => &PORTS6,
    }
}

/// Returns the element, padded to four bytes per part: the host's address if any, protocol, port.
fn forward(forward: &Forward) -> Element {
    let mut key = forward.from.address.map(octets).unwrap_or_default();
    let [a, b] = forward.from.port.to_be_bytes();
    key.extend([forward.from.protocol, 0, 0, 0, a, b, 0, 0]);
    let mut value = octets(forward.to.ip());
    let [a, b] = forward.to.port().to_be_bytes();
    value.extend([a, b, 0, 0]);
    Element { key, value }
}

/// Returns a pod's interface on the host and its allowed sources. Pods that an earlier version
/// attached use the link-local address of their Ethernet address for neighbour discovery.
fn link(PodLink { name, mac, ips }: &PodLink) -> Vec<(&'static Set, Element)> {
    let plain = |key: Vec<u8>| Element { key, value: Vec::new() };
    let interface = padded(name);
    let source = |ip: IpAddr| {
        let ethernet = [&mac[..], &[0, 0]].concat();
        plain([&interface[..], &ethernet, &octets(ip)].concat())
    };
    let mut elements = vec![(&LINKS, plain(interface.clone()))];
    for ip in ips {
        let (pods, sources) = if ip.is_ipv4() { (&PODS4, &SOURCES4) } else { (&PODS6, &SOURCES6) };
        elements.extend([(pods, plain(octets(*ip))), (sources, source(*ip))]);
    }
    if ips.iter().any(IpAddr::is_ipv6) {
        let local = link_local(*mac).into();
        elements.extend([(&PODS6, plain(octets(local))), (&SOURCES6, source(local))]);
    }
    elements
}

/// Returns the link-local address that the kernel derives from an Ethernet address.
fn link_local([a, b, c, d, e, f]: Mac) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Returns the name of an interface, padded as the kernel compares it.
pub(super) fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_may_have_the_link_local_address_of_its_ethernet_address() {
        let expected: Ipv6Addr = "fe80::858:aff:fed5:2".parse().unwrap();
        assert_eq!(link_local([0x0a, 0x58, 10, 213, 0, 2]), expected);
    }

    #[test]
    fn a_pod_of_one_family_has_no_source_of_the_other() {
        let ips = vec![IpAddr::from([10, 213, 0, 2])];
        let links = [PodLink { name: "crisp0-1".to_owned(), mac: [2; 6], ips }];
        let contents = Contents { links: &links, ..Contents::default() };
        let counts: Vec<_> = SETS.iter().map(|set| contents.of(set).len()).collect();
        assert_eq!(counts, [0, 0, 0, 0, 1, 0, 1, 1, 0]);
        for set in SETS {
            let key = usize::try_from(length(set.key)).unwrap();
            assert!(contents.of(set).iter().all(|element| element.key.len() == key), "{}", set.name);
        }
    }
}
