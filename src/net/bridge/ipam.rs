//! Allocates addresses. In memory only: the caller restores those of running pods after a start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use model::{ErrorClass, ErrorKind};

use super::link::Mac;

/// An address that could not be allocated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReserveError {
    #[error("all {count} pod addresses of {} are in use: set larger network.bridge.pools", join(.pools))]
    Exhausted { pools: Vec<IpNet>, count: u32 },
}

impl ErrorClass for ReserveError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Exhausted { .. } => ErrorKind::Exhausted,
        }
    }
}

/// An address of another pod.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("pod address {address} is already used by pod {pod}")]
pub struct AddressTaken {
    pub address: IpAddr,
    pub pod: String,
}

impl ErrorClass for AddressTaken {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Exists
    }
}

fn join(pools: &[IpNet]) -> String {
    pools.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
}

/// The bridge's own index in each pool.
const GATEWAY: u32 = 1;
const FIRST: u32 = 2;
/// The stored position may be ahead by this part of the pool, so that it is rarely written.
const POSITIONS_AHEAD: u32 = 64;

/// An address with its network, and the gateway of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressConfig {
    pub(super) address: IpNet,
    pub(super) gateway: IpAddr,
}

/// Pods have the same index in each pool, so allocating two addresses is as simple as one.
#[derive(Debug)]
pub(super) struct AddressPool {
    nets: Vec<IpNet>,
    /// The last index that all pools have.
    last: u32,
    /// The next index to try. It wraps around, so that a freed address is used last.
    next: u32,
    /// The position stored for the next daemon.
    kept_next: Option<u32>,
    /// Also contains addresses in older pools, of pods that still run.
    taken: BTreeMap<IpAddr, String>,
    /// The bridge's addresses in older pools, which may be inside of newer ones.
    kept: BTreeSet<IpAddr>,
}

impl AddressPool {
    /// `nets` must be checked: each has at least one address for a pod.
    pub(super) fn new(nets: Vec<IpNet>) -> Self {
        let last = nets.iter().map(last_place).min().unwrap_or_default();
        Self { nets, last, next: FIRST, kept_next: None, taken: BTreeMap::new(), kept: BTreeSet::new() }
    }

    /// Replaces the pools for new allocations. Allocated addresses stay.
    pub(super) fn move_to(&mut self, nets: Vec<IpNet>) {
        let taken = std::mem::take(&mut self.taken);
        let mut kept = std::mem::take(&mut self.kept);
        kept.extend(self.gateways().map(|net| net.addr()));
        *self = Self { kept, ..Self::new(nets) };
        for (ip, pod) in taken {
            self.mark(ip, &pod);
        }
    }

    /// Excludes an address that the bridge has for pods of an older pool.
    pub(super) fn keep(&mut self, ip: IpAddr) {
        self.kept.insert(ip);
    }

    pub(super) fn nets(&self) -> &[IpNet] {
        &self.nets
    }

    /// Returns the bridge's addresses with their networks.
    pub(super) fn gateways(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.nets.iter().map(gateway)
    }

    /// Returns `None` for an address outside of all pools.
    pub(super) fn address_config(&self, ip: IpAddr) -> Option<AddressConfig> {
        let net = self.nets.iter().find(|net| is_for_pods(net, ip))?;
        Some(AddressConfig { address: IpNet::new(ip, net.prefix_len()).ok()?, gateway: gateway(net).addr() })
    }

    pub(super) fn taken(&self) -> impl Iterator<Item = (&IpAddr, &str)> {
        self.taken.iter().map(|(ip, pod)| (ip, pod.as_str()))
    }

    /// Allocates addresses for a pod, or returns those that it has.
    pub(super) fn reserve(&mut self, pod: &str) -> Result<Vec<IpAddr>, ReserveError> {
        let had: Vec<_> = self.nets.iter().filter_map(|net| self.of(pod).find(|ip| net.contains(ip))).collect();
        if had.len() == self.nets.len() {
            return Ok(had);
        }
        let round = (self.next..=self.last).chain(FIRST..self.next);
        for place in round {
            let places: Vec<_> = self.nets.iter().map(|net| address(net, place)).collect();
            if places.iter().any(|ip| self.taken.contains_key(ip) || self.kept.contains(ip)) {
                continue;
            }
            self.next = place.saturating_add(1);
            self.taken.extend(places.iter().map(|ip| (*ip, pod.to_owned())));
            return Ok(places);
        }
        Err(ReserveError::Exhausted { pools: self.nets.clone(), count: self.last - GATEWAY })
    }

    /// Continues at a stored position.
    pub(super) fn resume(&mut self, next: u32) {
        self.next = next.clamp(FIRST, self.last.saturating_add(1));
    }

    /// Returns the position to store, if the stored one is passed or far ahead. It is ahead of the
    /// pool's own by a part of the pool.
    pub(super) fn position_to_keep(&mut self) -> Option<u32> {
        let places = self.last.saturating_sub(FIRST).saturating_add(1);
        let ahead = (places / 8).min(POSITIONS_AHEAD);
        let round = |place: u32| (place - FIRST) % places;
        let next = round(self.next);
        let fits = |kept: u32| (u64::from(round(kept)) + u64::from(places) - u64::from(next)) % u64::from(places);
        if self.kept_next.is_some_and(|kept| fits(kept) <= u64::from(ahead)) {
            return None;
        }
        let kept = (u64::from(next) + u64::from(ahead)) % u64::from(places);
        self.kept_next = u32::try_from(kept).ok().map(|kept| kept + FIRST);
        self.kept_next
    }

    /// Marks addresses as used by a pod, all of them or none.
    pub(super) fn take(&mut self, pod: &str, ips: &[IpAddr]) -> Result<(), AddressTaken> {
        let other = |ip: &&IpAddr| self.taken.get(ip).is_some_and(|owner| owner != pod);
        if let Some(address) = ips.iter().find(other) {
            return Err(AddressTaken { address: *address, pod: self.taken[address].clone() });
        }
        ips.iter().for_each(|ip| self.mark(*ip, pod));
        Ok(())
    }

    fn mark(&mut self, ip: IpAddr, pod: &str) {
        if self.taken.insert(ip, pod.to_owned()).is_none() {
            let place = self.nets.iter().find_map(|net| place(net, ip)).filter(|place| *place <= self.last);
            self.next = self.next.max(place.map_or(FIRST, |place| place.saturating_add(1)));
        }
    }

    pub(super) fn release(&mut self, pod: &str) {
        self.taken.retain(|_, owner| owner != pod);
    }

    fn of<'a>(&'a self, pod: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
        self.taken.iter().filter(move |(_, owner)| *owner == pod).map(|(ip, _)| *ip)
    }
}

/// Returns the bridge's address in a network.
pub(super) fn gateway(net: &IpNet) -> IpNet {
    IpNet::new(address(net, GATEWAY), net.prefix_len()).unwrap_or(*net)
}

/// Derives an Ethernet address from an IP address, so that stale neighbour entries for the last pod
/// also reach the next one.
pub(super) fn mac(ip: IpAddr) -> Mac {
    let [a, b, c, d] = last_four(ip);
    [0x0a, if ip.is_ipv4() { 0x58 } else { 0x59 }, a, b, c, d]
}

/// The bridge's Ethernet address, constant and never that of a pod: pods have it as a permanent
/// neighbour.
pub(super) fn bridge_mac(name: &str) -> Mac {
    // FNV-1a.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    [0x0a, 0x57, a, b, c, d]
}

fn last_four(ip: IpAddr) -> [u8; 4] {
    match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => ip.octets().last_chunk().copied().unwrap_or_default(),
    }
}

/// The number of usable addresses: without broadcast, and for IPv6 at most as many as IPv4 can
/// have.
fn last_place(net: &IpNet) -> u32 {
    let bits = u32::from(net.max_prefix_len() - net.prefix_len());
    let last = 1_u32.checked_shl(bits).map_or(u32::MAX, |count| count - 1);
    if net.addr().is_ipv4() { last - 1 } else { last }
}

fn address(net: &IpNet, place: u32) -> IpAddr {
    match net.network() {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add(place)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add(u128::from(place))).into(),
    }
}

/// Returns whether pods can have this address of the network.
pub(super) fn is_for_pods(net: &IpNet, ip: IpAddr) -> bool {
    place(net, ip).is_some_and(|place| (FIRST..=last_place(net)).contains(&place))
}

fn place(net: &IpNet, ip: IpAddr) -> Option<u32> {
    match (net.network(), ip) {
        _ if !net.contains(&ip) => None,
        (IpAddr::V4(net), IpAddr::V4(ip)) => ip.to_bits().checked_sub(net.to_bits()),
        (IpAddr::V6(net), IpAddr::V6(ip)) => u32::try_from(ip.to_bits().checked_sub(net.to_bits())?).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(nets: &[&str]) -> AddressPool {
        AddressPool::new(nets.iter().map(|net| net.parse().unwrap()).collect())
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn network_gateway_and_broadcast_are_never_allocated() {
        let mut pool = pool(&["10.1.0.0/29"]);
        assert_eq!(pool.gateways().collect::<Vec<_>>(), ["10.1.0.1/29".parse().unwrap()]);
        for last in 2..=6 {
            assert_eq!(pool.reserve(&format!("p{last}")).unwrap(), ips(&[&format!("10.1.0.{last}")]));
        }
        let full = pool.reserve("one more").unwrap_err();
        assert_eq!(full.to_string(), "all 5 pod addresses of 10.1.0.0/29 are in use: set larger network.bridge.pools");
        assert_eq!(full.kind(), ErrorKind::Exhausted);
        pool.release("p4");
        assert_eq!(pool.reserve("one more").unwrap(), ips(&["10.1.0.4"]));
    }

    #[test]
    fn freed_addresses_are_used_last() {
        let mut pool = pool(&["10.1.0.0/29"]);
        for expected in ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.2"] {
            assert_eq!(pool.reserve("p").unwrap(), ips(&[expected]));
            pool.release("p");
        }
    }

    #[test]
    fn the_stored_position_is_never_behind_and_changes_rarely() {
        let mut large = pool(&["10.1.0.0/16"]);
        let mut kept = Vec::new();
        for number in 0..200 {
            large.reserve(&number.to_string()).unwrap();
            kept.extend(large.position_to_keep());
            assert!(kept.last().is_some_and(|kept| *kept >= large.next), "{kept:?}");
        }
        assert_eq!(kept, [67, 132, 197, 262]);
        let mut next = pool(&["10.1.0.0/16"]);
        next.resume(262);
        assert_eq!(next.reserve("a").unwrap(), ips(&["10.1.1.6"]));
        let mut small = pool(&["10.1.0.0/29"]);
        for expected in [3, 4, 5, 6, 2, 3] {
            small.reserve("p").unwrap();
            small.release("p");
            assert_eq!(small.position_to_keep(), Some(expected));
            assert_eq!(small.position_to_keep(), None);
        }
        small.resume(u32::MAX);
        assert_eq!(small.reserve("p").unwrap(), ips(&["10.1.0.2"]));
    }

    #[test]
    fn a_pod_has_an_address_of_each_family_and_keeps_it_on_a_repeated_request() {
        let mut pool = pool(&["10.1.0.0/16", "fd00:1::/64"]);
        assert_eq!(pool.reserve("a").unwrap(), ips(&["10.1.0.2", "fd00:1::2"]));
        assert_eq!(pool.reserve("a").unwrap(), ips(&["10.1.0.2", "fd00:1::2"]));
        assert_eq!(pool.reserve("b").unwrap(), ips(&["10.1.0.3", "fd00:1::3"]));
        pool.release("a");
        pool.release("a");
        assert_eq!(pool.taken().count(), 2);
    }

    #[test]
    fn addresses_of_running_pods_are_not_reused() {
        let mut pool = pool(&["10.1.0.0/29", "fd00:1::/64"]);
        pool.take("old", &ips(&["10.9.0.7"])).unwrap();
        pool.take("a", &ips(&["10.1.0.3"])).unwrap();
        pool.take("b", &ips(&["10.1.0.6", "fd00:1::4"])).unwrap();
        pool.take("b", &ips(&["10.1.0.6", "fd00:1::4"])).unwrap();
        let taken = pool.take("c", &ips(&["10.1.0.2", "fd00:1::4"])).unwrap_err();
        assert_eq!(taken.to_string(), "pod address fd00:1::4 is already used by pod b");
        assert_eq!(
            pool.reserve("d").unwrap(),
            ips(&["10.1.0.2", "fd00:1::2"]),
            "after the highest, from the beginning"
        );
        assert_eq!(pool.reserve("e").unwrap(), ips(&["10.1.0.5", "fd00:1::5"]), "3 and 4 are taken in one family");
    }

    #[test]
    fn running_pods_keep_their_addresses_when_the_pool_changes() {
        let mut pool = pool(&["10.1.0.0/24"]);
        assert_eq!(pool.reserve("a").unwrap(), ips(&["10.1.0.2"]));
        pool.move_to(vec!["10.0.255.254/15".parse::<IpNet>().unwrap().trunc()]);
        pool.take("last", &ips(&["10.0.255.255"])).unwrap();
        pool.keep("10.1.0.4".parse().unwrap());
        let next: Vec<_> = (0..3).map(|n| pool.reserve(&format!("b{n}")).unwrap()).collect();
        assert_eq!(next, [ips(&["10.1.0.3"]), ips(&["10.1.0.5"]), ips(&["10.1.0.6"])], "after the highest");
        pool.next = 0x1_0000;
        assert_eq!(pool.reserve("c").unwrap(), ips(&["10.1.0.0"]), "the network address of the earlier pool is free");
        assert_eq!(pool.reserve("d").unwrap(), ips(&["10.1.0.7"]), "10.1.0.1 still belongs to the bridge");
        let net = "10.1.0.0/24".parse().unwrap();
        let fits = |ip: &str| is_for_pods(&net, ip.parse().unwrap());
        assert!(fits("10.1.0.2") && fits("10.1.0.254"));
        assert!(!fits("10.1.0.0") && !fits("10.1.0.1") && !fits("10.1.0.255") && !fits("10.1.1.2") && !fits("fd00::2"));
    }

    #[test]
    fn the_number_of_addresses_of_a_large_network_is_bounded() {
        let mut pool = pool(&["fd00:1::/48"]);
        assert_eq!(pool.last, u32::MAX);
        assert_eq!(pool.reserve("a").unwrap(), ips(&["fd00:1::2"]));
        assert_eq!(last_place(&"10.0.0.0/8".parse().unwrap()), (1 << 24) - 2);
        assert_eq!(last_place(&"fd00::/126".parse().unwrap()), 3);
    }

    #[test]
    fn an_address_has_one_ethernet_address() {
        assert_eq!(mac(IpAddr::from([10, 213, 0, 2])), [0x0a, 0x58, 10, 213, 0, 2]);
        assert_eq!(mac("fd00::1:2".parse().unwrap()), [0x0a, 0x59, 0, 1, 0, 2]);
        assert_eq!(bridge_mac("crisp0")[..2], [0x0a, 0x57]);
        assert_ne!(bridge_mac("crisp0"), bridge_mac("crisp1"));
    }
}
