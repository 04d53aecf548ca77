//! The rules of the bridge table: pods may send only from their own Ethernet and IP addresses, and
//! may not act as a router or as the neighbour of another.
//!
//! `nft list table bridge crisp` shows:
//!
//! ```text
//! chain prerouting {
//!     type filter hook prerouting priority dstnat; policy accept;
//!     iifname != @links accept
//!     iifname . ether saddr . ip saddr @sources4 accept
//!     arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . ether saddr . arp saddr ip @sources4
//!         iifname . arp saddr ether . arp saddr ip @sources4 accept
//!     iifname . ether saddr . ip6 saddr != @sources6 drop
//!     icmpv6 type nd-router-solicit drop
//!     icmpv6 type nd-router-advert drop
//!     icmpv6 type nd-redirect drop
//!     icmpv6 type nd-neighbor-advert iifname . ether saddr . icmpv6 taddr != @sources6 drop
//!     ether type ip6 accept
//!     drop
//! }
//! ```
//!
//! Interfaces outside of *links* belong to no pod, or to a pod of a version without the filter. The
//! type is that of the outer frame, so frames with a VLAN tag match no rule and are dropped.

use super::expression::{Expression, IIFNAME, L4PROTO, LINK, NETWORK, TRANSPORT, Value};
use super::rules::Chain;
use super::set::{BRIDGE, LINKS, SOURCES4, SOURCES6, Set};

/// Before br_netfilter passes bridged packets to the IP rules, which may change addresses.
pub(super) const PREROUTING: Chain =
    Chain { family: BRIDGE, name: "prerouting", kind: "filter", hook: 0, priority: -300 };

const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
const ROUTER_SOLICIT: u8 = 133;
const ROUTER_ADVERT: u8 = 134;
const NEIGHBOR_ADVERT: u8 = 136;
const REDIRECT: u8 = 137;

/// Returns all rules in order.
pub(super) fn rules() -> Vec<(Chain, Vec<Expression>)> {
    let ethernet = header(LINK, 6, 6);
    let frame = |kind: [u8; 2]| compare(header(LINK, 12, 2), &kind);
    let source4 = |ethernet, ip| source(ethernet, ip, &SOURCES4, false);
    let other6 = |ip| source(ethernet, ip, &SOURCES6, true);
    let icmp = |kind: u8| {
        let protocol = compare(Value::Meta(L4PROTO), &[ICMPV6]);
        [frame(IPV6), protocol, compare(header(TRANSPORT, 0, 1), &[kind])].concat()
    };
    let drop = || vec![Expression::Drop];
    let accept = || vec![Expression::Accept];
    // ARP for Ethernet and IPv4, with their address lengths.
    let form = [compare(header(NETWORK, 0, 4), &[0, 1, 8, 0]), compare(header(NETWORK, 4, 2), &[6, 4])].concat();
    let sender = header(NETWORK, 14, 4);
    let link = vec![Expression::Load(Value::Meta(IIFNAME), 0), Expression::Find { set: LINKS.name, absent: true }];
    let all = vec![
        [link, accept()].concat(),
        [frame(IPV4), source4(ethernet, header(NETWORK, 12, 4)), accept()].concat(),
        [frame(ARP), form, source4(ethernet, sender), source4(header(NETWORK, 8, 6), sender), accept()].concat(),
        [frame(IPV6), other6(header(NETWORK, 8, 16)), drop()].concat(),
        [icmp(ROUTER_SOLICIT), drop()].concat(),
        [icmp(ROUTER_ADVERT), drop()].concat(),
        [icmp(REDIRECT), drop()].concat(),
        [icmp(NEIGHBOR_ADVERT), other6(header(TRANSPORT, 8, 16)), drop()].concat(),
        [frame(IPV6), accept()].concat(),
        drop(),
    ];
    all.into_iter().map(|rule| (PREROUTING, rule)).collect()
}

fn header(which: u32, offset: u32, length: u32) -> Value {
    Value::Header { which, offset, length }
}

fn compare(value: Value, bytes: &[u8]) -> Vec<Expression> {
    vec![Expression::Load(value, 0), Expression::Equal(bytes.to_vec())]
}

/// Finds the interface and addresses in a set, or checks that they are not in it.
fn source(ethernet: Value, ip: Value, set: &'static Set, absent: bool) -> Vec<Expression> {
    let interface = Expression::Load(Value::Meta(IIFNAME), 0);
    let find = Expression::Find { set: set.name, absent };
    vec![interface, Expression::Load(ethernet, 4), Expression::Load(ip, 6), find]
}
