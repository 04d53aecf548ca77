//! The settings of the built-in network.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use model::{ErrorClass, ErrorKind};

/// The names and addresses of the built-in network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The name of the bridge. The names of the pods' interfaces on the host begin with it.
    pub bridge: String,
    /// The pools for pods: one of IPv4, one of IPv6, or both. The first address of a pod is from
    /// the first pool.
    pub pools: Vec<IpNet>,
    /// The name of the nftables tables, which contain nothing else.
    pub table: String,
    /// `None`: the MTU of the interface of the default route.
    pub mtu: Option<u32>,
}

/// Rarely used by others: docker uses 172.17.0.0 to 172.31.0.0, podman and the CNI examples
/// 10.88.0.0, flannel 10.244.0.0, home networks 192.168.0.0 and the beginning of 10.0.0.0.
const DEFAULT_POOL: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 213, 0, 0), 16);

impl Default for Settings {
    fn default() -> Self {
        let (address, prefix) = DEFAULT_POOL;
        let pool = Ipv4Net::new_assert(address, prefix);
        Self { bridge: "crisp0".to_owned(), pools: vec![pool.into()], table: "crisp".to_owned(), mtu: None }
    }
}

/// An invalid setting.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    #[error("invalid network.bridge.name {0:?}: expected one to {BRIDGE_LENGTH} letters, digits, '-', '_' or '.'")]
    Bridge(String),
    #[error(
        "invalid name {0:?} of the bridge's nftables table: expected a letter, then up to 31 letters, digits or '_'"
    )]
    Table(String),
    #[error("network.bridge.mtu is {0}: must be {MTU_MIN} to {MTU_MAX}")]
    Mtu(u32),
    #[error(transparent)]
    Pools(#[from] PoolsError),
}

impl ErrorClass for SettingsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Bridge(_) | Self::Table(_) | Self::Mtu(_) => ErrorKind::Invalid,
            Self::Pools(e) => e.kind(),
        }
    }
}

/// Invalid pools.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PoolsError {
    #[error("the built-in bridge requires at least one address pool (network.bridge.pools, or a pod CIDR)")]
    None,
    #[error("address pools {0} and {1} are of one family: expected one IPv4 and one IPv6 pool at most")]
    Twice(IpNet, IpNet),
    #[error("address pool {net} has bits set after the prefix: expected {}", net.trunc())]
    HostBits { net: IpNet },
    #[error("address pool {0} is too small: it has no address for a pod beside the bridge's")]
    Small(IpNet),
    #[error("address pool {0} is not for pods: it is loopback, link-local, multicast or reserved")]
    Special(IpNet),
}

impl ErrorClass for PoolsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::None | Self::Twice(..) | Self::HostBits { .. } | Self::Small(_) | Self::Special(_) => {
                ErrorKind::Invalid
            }
        }
    }
}

/// With a dash and eight digits, the longest name of an interface.
const BRIDGE_LENGTH: usize = 6;
/// The minimum of IPv6, and the maximum of a veth pair.
pub(super) const MTU_MIN: u32 = 1280;
pub(super) const MTU_MAX: u32 = 65535;

impl Settings {
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        let Self { bridge, pools, table, mtu } = self;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let dots = matches!(bridge.as_str(), "." | "..");
        if bridge.is_empty() || bridge.len() > BRIDGE_LENGTH || dots || !bridge.bytes().all(allowed) {
            return Err(SettingsError::Bridge(bridge.clone()));
        }
        let begins = table.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
        if !begins || table.len() > 32 || !table.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(SettingsError::Table(table.clone()));
        }
        if let Some(mtu) = mtu.filter(|mtu| !(MTU_MIN..=MTU_MAX).contains(mtu)) {
            return Err(SettingsError::Mtu(mtu));
        }
        Ok(check_pools(pools)?)
    }
}

pub(super) fn check_pools(pools: &[IpNet]) -> Result<(), PoolsError> {
    if pools.is_empty() {
        return Err(PoolsError::None);
    }
    for (place, pool) in pools.iter().enumerate() {
        let before = pools[..place].iter().find(|p| p.addr().is_ipv4() == pool.addr().is_ipv4());
        if let Some(before) = before {
            return Err(PoolsError::Twice(*before, *pool));
        }
        if pool.trunc() != *pool {
            return Err(PoolsError::HostBits { net: *pool });
        }
        if pool.max_prefix_len() - pool.prefix_len() < 2 {
            return Err(PoolsError::Small(*pool));
        }
        if special(pool) {
            return Err(PoolsError::Special(*pool));
        }
    }
    Ok(())
}

fn special(pool: &IpNet) -> bool {
    let refused = match pool.addr() {
        IpAddr::V4(_) => &["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"][..],
        IpAddr::V6(_) => &["::/8", "fe80::/10", "ff00::/8"],
    };
    refused.iter().filter_map(|net| net.parse::<IpNet>().ok()).any(|net| overlap(&net, pool))
}

/// Returns whether two networks have an address in common.
pub(super) fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Settings)) -> Result<(), SettingsError> {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check()
    }

    #[test]
    fn the_default_and_two_families_are_accepted() {
        assert_eq!(Settings::default().check(), Ok(()));
        let pools = ["fd00:c715::/64", "10.244.3.0/24"].map(|p| p.parse().unwrap()).to_vec();
        assert_eq!(with(|s| s.pools = pools), Ok(()));
    }

    #[test]
    fn names_that_the_kernel_or_nft_rejects_are_refused() {
        for bad in ["", "crisp00", "a/b", "a b", "a:b", ".", "..", "brü"] {
            assert_eq!(with(|s| s.bridge = bad.into()), Err(SettingsError::Bridge(bad.into())));
        }
        for bad in ["", "1a", "a-b", "a b", "a\"", &"a".repeat(33)] {
            assert_eq!(with(|s| s.table = bad.into()), Err(SettingsError::Table(bad.into())));
        }
        assert_eq!(with(|s| s.mtu = Some(1279)), Err(SettingsError::Mtu(1279)));
    }

    #[test]
    fn pools_without_pod_addresses_are_refused() {
        let net = |p: &str| p.parse::<IpNet>().unwrap();
        let refused = |pools: &[&str]| check_pools(&pools.iter().map(|p| net(p)).collect::<Vec<_>>()).unwrap_err();
        assert_eq!(refused(&[]), PoolsError::None);
        assert_eq!(refused(&["10.1.0.0/16", "10.2.0.0/16"]), PoolsError::Twice(net("10.1.0.0/16"), net("10.2.0.0/16")));
        assert_eq!(refused(&["10.1.2.3/16"]), PoolsError::HostBits { net: net("10.1.2.3/16") });
        assert!(refused(&["10.1.2.3/16"]).to_string().ends_with("expected 10.1.0.0/16"));
        for small in ["10.1.0.0/31", "10.1.0.0/32", "fd00::/127"] {
            assert_eq!(refused(&[small]), PoolsError::Small(net(small)));
        }
        for special in ["127.0.0.0/16", "169.254.0.0/24", "224.0.0.0/4", "0.0.0.0/0", "fe80::/64", "ff00::/8", "::/0"] {
            assert_eq!(refused(&[special]), PoolsError::Special(net(special)));
        }
    }
}
