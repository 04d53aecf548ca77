//! The rules of the inet table. They are the same for all pods, which differ only in set elements.
//!
//! `nft list table inet crisp` shows:
//!
//! ```text
//! chain guard {
//!     type filter hook prerouting priority raw; policy accept;
//!     iifname "crisp0" ip saddr 127.0.0.0/8 drop
//!     iifname "crisp0" ip daddr 127.0.0.0/8 drop
//! }
//! chain prerouting {
//!     type nat hook prerouting priority dstnat; policy accept;
//!     fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @address_ports4
//!     fib daddr type local dnat ip to meta l4proto . th dport map @ports4
//! }
//! chain output {
//!     type nat hook output priority -100; policy accept;
//!     (as in prerouting, but for IPv6: ip6 daddr != ::1 …)
//! }
//! chain unused {
//!     type filter hook postrouting priority filter; policy accept;
//!     oifname "crisp0" ip daddr 10.213.0.0/16 ip daddr != @pods4 drop
//!     oifname "crisp0" ip6 daddr fe80::/10 ip6 daddr != @pods6 drop
//!     oifname "crisp0" icmp type redirect drop
//! }
//! chain postrouting {
//!     type nat hook postrouting priority srcnat; policy accept;
//!     oifname "crisp0" ip saddr 127.0.0.0/8 masquerade
//!     oifname "crisp0" ct status dnat ip saddr 10.213.0.0/16 masquerade
//!     oifname != "crisp0" ip saddr 10.213.0.0/16 masquerade
//! }
//! ```
//!
//! - *guard*: `route_localnet` lets the bridge carry packets of 127.0.0.0/8, so that host ports
//!   work at localhost. Pods must not send or receive them: they would reach services that listen
//!   only on the host's loopback.
//! - *prerouting*, *output*: host ports, at one address or at all addresses of the host. Not at
//!   `::1`, since replies to it are not routed: connections are refused, and clients of localhost
//!   continue with 127.0.0.1.
//! - *unused*: drops packets to addresses without a pod before neighbour discovery. The node has
//!   one neighbour table, which a pod could fill. Redirects between pods are dropped, since they
//!   would cause neighbour discovery, too.
//! - *postrouting*: packets from the host's loopback, and from pods to host ports, get the bridge's
//!   address, or the replies would bypass the host. Packets that leave the host get the host's
//!   address.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use super::expression::{Expression, IIFNAME, L4PROTO, NETWORK, NFPROTO, OIFNAME, TRANSPORT, Value};
use super::set::{ADDRESS_PORTS4, ADDRESS_PORTS6, INET, PODS4, PODS6, PORTS4, PORTS6, Set, padded};

/// A base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) family: u8,
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) hook: u32,
    pub(super) priority: i32,
}

const fn chain(name: &'static str, kind: &'static str, hook: u32, priority: i32) -> Chain {
    Chain { family: INET, name, kind, hook, priority }
}

const GUARD: Chain = chain("guard", "filter", 0, -300);
const PREROUTING: Chain = chain("prerouting", "nat", 0, -100);
const OUTPUT: Chain = chain("output", "nat", 3, -100);
const UNUSED: Chain = chain("unused", "filter", 4, 0);
const POSTROUTING: Chain = chain("postrouting", "nat", 4, 100);
pub(super) const CHAINS: [Chain; 5] = [GUARD, PREROUTING, OUTPUT, UNUSED, POSTROUTING];

/// A map from host ports to pods.
#[derive(Debug, Clone, Copy)]
struct Map {
    set: &'static Set,
    v6: bool,
    /// The host's address is part of the key.
    addressed: bool,
}

static MAPS: [Map; 4] = [
    Map { set: &ADDRESS_PORTS4, v6: false, addressed: true },
    Map { set: &ADDRESS_PORTS6, v6: true, addressed: true },
    Map { set: &PORTS4, v6: false, addressed: false },
    Map { set: &PORTS6, v6: true, addressed: false },
];

/// Bit of the connection status: the destination was changed.
const IPS_DST_NAT: u32 = 0x20;
/// The route type of the host's own addresses.
const RTN_LOCAL: u32 = 2;
/// ICMP redirects: IPv6 or not, the protocol, the type.
const REDIRECTS: [(bool, u8, u8); 2] = [(false, 1, 5), (true, 58, 137)];

/// Returns all rules in order, each with its chain.
pub(super) fn rules(bridge: &str, nets: &[IpNet]) -> Vec<(Chain, Vec<Expression>)> {
    let into = |chain: Chain| move |rule: Vec<Expression>| (chain, rule);
    let from = |source: &IpNet| address(source, false);
    let loopback = IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8);
    let mut all = Vec::new();
    all.push(into(GUARD)([interface(IIFNAME, bridge), from(&loopback), vec![Expression::Drop]].concat()));
    all.push(into(GUARD)([interface(IIFNAME, bridge), address(&loopback, true), vec![Expression::Drop]].concat()));
    for chain in [PREROUTING, OUTPUT] {
        all.extend(MAPS.iter().map(|map| redirect(map, chain)).map(into(chain)));
    }
    let leaves = || interface(OIFNAME, bridge);
    // The kernel also forwards to link-local addresses.
    let link_local = IpNet::new_assert(IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 0]), 10);
    let behind = nets.iter().chain([&link_local]);
    all.extend(behind.map(|net| [leaves(), address(net, true), no_pod(net)].concat()).map(into(UNUSED)));
    all.extend(REDIRECTS.iter().map(|kind| [leaves(), icmp(*kind), vec![Expression::Drop]].concat()).map(into(UNUSED)));
    let masquerade = vec![Expression::Masquerade];
    all.push(into(POSTROUTING)([leaves(), from(&loopback), masquerade.clone()].concat()));
    let own = nets.iter().map(|net| [leaves(), redirected(), from(net), masquerade.clone()].concat());
    all.extend(own.map(into(POSTROUTING)));
    let away = nets.iter().map(|net| [other_interface(bridge), from(net), masquerade.clone()].concat());
    all.extend(away.map(into(POSTROUTING)));
    all
}

/// Returns the rule that looks a connection up in a map and redirects it to the pod.
fn redirect(map: &Map, chain: Chain) -> Vec<Expression> {
    let mut rule = family(map.v6);
    let (offset, length) = if map.v6 { (24, 16) } else { (16, 4) };
    let destination = Expression::Load(Value::Header { which: NETWORK, offset, length }, 0);
    if !map.addressed && map.v6 && chain == OUTPUT {
        rule.extend([destination.clone(), Expression::Differ(Ipv6Addr::LOCALHOST.octets().to_vec())]);
    }
    rule.push(Expression::Load(Value::DestinationType, 0));
    rule.push(Expression::Equal(RTN_LOCAL.to_ne_bytes().to_vec()));
    let mut place = 0;
    if map.addressed {
        rule.push(destination);
        place = if map.v6 { 4 } else { 1 };
    }
    rule.push(Expression::Load(Value::Meta(L4PROTO), place));
    // The port has the same offset in TCP, UDP and SCTP; the maps have no other protocols.
    rule.push(Expression::Load(Value::Header { which: TRANSPORT, offset: 2, length: 2 }, place + 1));
    rule.push(Expression::Map(map.set.name));
    rule.push(Expression::Redirect { v6: map.v6 });
    rule
}

/// Drops packets to addresses in `net` that no pod has.
fn no_pod(net: &IpNet) -> Vec<Expression> {
    let (set, offset, length) = if net.addr().is_ipv4() { (&PODS4, 16, 4) } else { (&PODS6, 24, 16) };
    let destination = Expression::Load(Value::Header { which: NETWORK, offset, length }, 0);
    vec![destination, Expression::Find { set: set.name, absent: true }, Expression::Drop]
}

fn icmp((v6, protocol, kind): (bool, u8, u8)) -> Vec<Expression> {
    let mut rule = family(v6);
    rule.extend([Expression::Load(Value::Meta(L4PROTO), 0), Expression::Equal(vec![protocol])]);
    let header = Value::Header { which: TRANSPORT, offset: 0, length: 1 };
    rule.extend([Expression::Load(header, 0), Expression::Equal(vec![kind])]);
    rule
}

fn family(v6: bool) -> Vec<Expression> {
    vec![Expression::Load(Value::Meta(NFPROTO), 0), Expression::Equal(vec![if v6 { 10 } else { 2 }])]
}

fn interface(which: u32, name: &str) -> Vec<Expression> {
    vec![Expression::Load(Value::Meta(which), 0), Expression::Equal(padded(name))]
}

fn other_interface(name: &str) -> Vec<Expression> {
    vec![Expression::Load(Value::Meta(OIFNAME), 0), Expression::Differ(padded(name))]
}

fn redirected() -> Vec<Expression> {
    let bit = IPS_DST_NAT.to_ne_bytes().to_vec();
    vec![Expression::Load(Value::ConnectionStatus, 0), Expression::Mask(bit), Expression::Differ(vec![0; 4])]
}

/// Compares the source or destination with a network. A prefix of whole bytes is compared without a
/// mask, as nft does it.
fn address(net: &IpNet, destination: bool) -> Vec<Expression> {
    let (v6, offset, length) = match (net.addr(), destination) {
        (IpAddr::V4(_), false) => (false, 12, 4),
        (IpAddr::V4(_), true) => (false, 16, 4),
        (IpAddr::V6(_), false) => (true, 8, 16),
        (IpAddr::V6(_), true) => (true, 24, 16),
    };
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut rule = family(v6);
    let mut value = bytes(net.network());
    if net.prefix_len().is_multiple_of(8) {
        let length = net.prefix_len() / 8;
        value.truncate(usize::from(length));
        rule.push(Expression::Load(Value::Header { which: NETWORK, offset, length: u32::from(length) }, 0));
    } else {
        rule.push(Expression::Load(Value::Header { which: NETWORK, offset, length }, 0));
        rule.push(Expression::Mask(bytes(net.netmask())));
    }
    rule.push(Expression::Equal(value));
    rule
}
