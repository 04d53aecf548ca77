//! What the table says. It is the same for all pods: they differ in the elements of its maps alone.
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
//!     dnat ip to ip daddr . meta l4proto . th dport map @address_ports4
//!     meta nfproto ipv4 fib daddr type local dnat ip to meta l4proto . th dport map @ports4
//! }
//! chain output {
//!     type nat hook output priority -100; policy accept;
//!     (as in prerouting, but for IPv6: ip6 daddr != ::1 …)
//! }
//! chain postrouting {
//!     type nat hook postrouting priority srcnat; policy accept;
//!     oifname "crisp0" ip saddr 127.0.0.0/8 masquerade
//!     oifname "crisp0" ct status dnat ip saddr 10.213.0.0/16 masquerade
//!     oifname != "crisp0" ip saddr 10.213.0.0/16 masquerade
//! }
//! ```
//!
//! - *guard*: the bridge may carry packets of 127.0.0.0/8 (`route_localnet`), so that a port of the host can be reached at
//!   localhost. Pods are to have nothing of it: they would reach what listens on the host's loopback alone.
//! - *prerouting*, *output*: ports of the host, at one address and at any. Not at `::1`: what comes from there cannot come back
//!   to it. It is refused at once, and whoever meant localhost tries 127.0.0.1 next.
//! - *postrouting*: what comes from the host's loopback, and from a pod by way of a port of the host, gets the bridge's
//!   address, or the answer would not come back by the host. What leaves the host gets the host's.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use super::expression::{Expression, IIFNAME, L4PROTO, NETWORK, NFPROTO, OIFNAME, TRANSPORT, Value};

/// A chain that the kernel calls at one of its hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) hook: u32,
    pub(super) priority: i32,
}

const GUARD: Chain = Chain { name: "guard", kind: "filter", hook: 0, priority: -300 };
const PREROUTING: Chain = Chain { name: "prerouting", kind: "nat", hook: 0, priority: -100 };
const OUTPUT: Chain = Chain { name: "output", kind: "nat", hook: 3, priority: -100 };
const POSTROUTING: Chain = Chain { name: "postrouting", kind: "nat", hook: 4, priority: 100 };
pub(super) const CHAINS: [Chain; 4] = [GUARD, PREROUTING, OUTPUT, POSTROUTING];

/// A map from ports of the host to pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) name: &'static str,
    pub(super) v6: bool,
    /// Whether the address of the host is part of the key.
    pub(super) addressed: bool,
}

pub(super) const MAPS: [Map; 4] = [
    Map { name: "address_ports4", v6: false, addressed: true },
    Map { name: "address_ports6", v6: true, addressed: true },
    Map { name: "ports4", v6: false, addressed: false },
    Map { name: "ports6", v6: true, addressed: false },
];

/// The bit of a connection's status that says that its destination was changed.
const IPS_DST_NAT: u32 = 0x20;
/// The type of the host's own addresses.
const RTN_LOCAL: u32 = 2;

/// All rules, in order, each with its chain.
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
    let masquerade = vec![Expression::Masquerade];
    let leaves = || interface(OIFNAME, bridge);
    all.push(into(POSTROUTING)([leaves(), from(&loopback), masquerade.clone()].concat()));
    let own = nets.iter().map(|net| [leaves(), redirected(), from(net), masquerade.clone()].concat());
    all.extend(own.map(into(POSTROUTING)));
    let away = nets.iter().map(|net| [other_interface(bridge), from(net), masquerade.clone()].concat());
    all.extend(away.map(into(POSTROUTING)));
    all
}

/// Looks a connection up in a map and sends it to the pod.
fn redirect(map: &Map, chain: Chain) -> Vec<Expression> {
    let mut rule = family(map.v6);
    let (offset, length) = if map.v6 { (24, 16) } else { (16, 4) };
    let destination = Expression::Load(Value::Header { which: NETWORK, offset, length }, 0);
    let mut place = 0;
    if map.addressed {
        rule.push(destination);
        place = if map.v6 { 4 } else { 1 };
    } else {
        if map.v6 && chain == OUTPUT {
            rule.extend([destination, Expression::Differ(Ipv6Addr::LOCALHOST.octets().to_vec())]);
        }
        rule.push(Expression::Load(Value::DestinationType, 0));
        rule.push(Expression::Equal(RTN_LOCAL.to_ne_bytes().to_vec()));
    }
    rule.push(Expression::Load(Value::Meta(L4PROTO), place));
    // The port is at the same place in TCP, UDP and SCTP, and other protocols are in no map.
    rule.push(Expression::Load(Value::Header { which: TRANSPORT, offset: 2, length: 2 }, place + 1));
    rule.push(Expression::Find(map.name));
    rule.push(Expression::Redirect { v6: map.v6 });
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

fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

fn redirected() -> Vec<Expression> {
    let bit = IPS_DST_NAT.to_ne_bytes().to_vec();
    vec![Expression::Load(Value::ConnectionStatus, 0), Expression::Mask(bit), Expression::Differ(vec![0; 4])]
}

/// Whether the source or destination is in a network. Whole bytes are compared as such, as nft does it.
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
