//! Restricts the servers that the response of a registry may name: none that only this node can
//! reach.
//!
//! Servers in the configuration or in an image reference may have any address. A server that only a
//! response names, in a redirect or as a token realm, is chosen by the registry: its name is
//! resolved here, the addresses are checked, and the connection goes to an address that was
//! checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Metadata services of clouds that are not at a link-local address: Alibaba, Azure, Amazon,
/// Google.
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// A name that resolves only to addresses that a response may not name.
#[derive(Debug, thiserror::Error)]
#[error("a host name in the registry's response resolves to this node, a link-local address or a metadata service")]
pub(crate) struct LocalAddress;

/// Returns whether an address is this node's own, link-local, or of a metadata service.
pub(crate) fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_local_v4(address),
        IpAddr::V6(address) => is_local_v6(address) || embedded_v4(address).is_some_and(is_local_v4),
    }
}

/// Returns whether an IPv4 address is in a local range, or of this node.
fn is_local_v4(address: Ipv4Addr) -> bool {
    is_local_range_v4(address) || is_of_node(address.into())
}

/// Returns whether an IPv6 address is in a local range, or of this node.
fn is_local_v6(address: Ipv6Addr) -> bool {
    is_local_range_v6(address) || is_of_node(address.into())
}

/// Returns whether the kernel delivers packets for an address to this node: the address of an
/// interface, or one with a local route.
fn is_of_node(address: IpAddr) -> bool {
    is_of_interface(address) || has_local_route(address)
}

fn is_of_interface(address: IpAddr) -> bool {
    let Ok(mut interfaces) = nix::ifaddrs::getifaddrs() else { return false };
    interfaces.any(|interface| {
        let own = interface.address.as_ref();
        match address {
            IpAddr::V4(address) => own.and_then(|own| own.as_sockaddr_in()).is_some_and(|own| own.ip() == address),
            IpAddr::V6(address) => own.and_then(|own| own.as_sockaddr_in6()).is_some_and(|own| own.ip() == address),
        }
    })
}

/// Connecting a datagram socket sends nothing. The kernel uses a local destination as the source too,
/// unless its route names another source; that is the case for addresses of interfaces only.
fn has_local_route(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

/// Returns whether the host of a URL is such an address.
pub(crate) fn names_local(url: &Url) -> bool {
    // Host names go through the resolver, in the client too.
    let host = url.host_str().unwrap_or_default();
    let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    is_localhost(host) || literal.parse().is_ok_and(is_local)
}

/// Returns whether a host name is `localhost` or below it (RFC 6761).
fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

fn is_local_range_v4(address: Ipv4Addr) -> bool {
    address.octets()[0] == 0
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || METADATA_V4.contains(&address)
}

fn is_local_range_v6(address: Ipv6Addr) -> bool {
    address.is_loopback()
        || address.is_unspecified()
        || address.is_unicast_link_local()
        || address.is_multicast()
        || METADATA_V6.contains(&address)
}

/// Returns the IPv4 address embedded in an IPv6 one: mapped, compatible, NAT64 and 6to4.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, high, low] = address.segments();
    let of = |high: u16, low: u16| Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0 | 0xffff) | (0, 0, 0, 0, 0xffff, 0) => of(high, low),
        (0x64, 0xff9b, 0, 0, 0, 0) | (0x64, 0xff9b, 1, ..) => of(high, low),
        (0x2002, ..) => of(b, c),
        _ => None,
    }
}

/// Resolves names, but refuses local addresses.
#[derive(Debug)]
pub(crate) struct CheckedResolver {
    /// Host names of proxies from the environment: these may have any address, and resolve other
    /// names themselves.
    proxies: Vec<String>,
}

impl CheckedResolver {
    pub(crate) fn new() -> Self {
        let names = ["http_proxy", "https_proxy", "all_proxy"];
        let names = names.into_iter().flat_map(|name| [name.to_owned(), name.to_ascii_uppercase()]);
        let host = |name: String| {
            let text = std::env::var(name).ok()?;
            let url: Url = text.parse().or_else(|_| format!("http://{text}").parse()).ok()?;
            url.host_str().map(str::to_owned)
        };
        Self { proxies: names.filter_map(host).collect() }
    }
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let may_be_local = self.proxies.iter().any(|proxy| proxy.eq_ignore_ascii_case(name.as_str()));
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let checked: Vec<SocketAddr> =
                found.iter().copied().filter(|address| may_be_local || !is_local(address.ip())).collect();
            if checked.is_empty() && !found.is_empty() {
                return Err(LocalAddress.into());
            }
            Ok(Box::new(checked.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_link_local_and_metadata_addresses_are_local_in_every_spelling() {
        for url in [
            "http://127.0.0.1/",
            "http://127.9.9.9:2379/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://0/",
            "http://0.0.0.0/",
            "http://0.1.2.3/",
            "http://169.254.169.254/latest/meta-data/",
            "http://224.0.0.1/",
            "http://255.255.255.255/",
            "http://100.100.100.200/",
            "http://168.63.129.16/",
            "http://[::1]/",
            "http://[::]/",
            "http://[fe80::1]/",
            "http://[febf::1]/",
            "http://[ff02::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[::127.0.0.1]/",
            "http://[64:ff9b::127.0.0.1]/",
            "http://[64:ff9b:1::169.254.169.254]/",
            "http://[2002:7f00:1::]/",
            "http://[fd00:ec2::254]/",
            "http://[fd20:ce::254]/",
        ] {
            assert!(names_local(&url.parse().unwrap()), "{url}");
        }
        for url in [
            "http://10.0.0.1/",
            "http://192.168.1.1/",
            "http://172.16.0.1/",
            "http://93.184.216.34/",
            "http://[2001:db8::1]/",
            "http://[fd00::1]/",
            "http://[64:ff9b::10.0.0.1]/",
            "http://cdn.example/",
        ] {
            assert!(!names_local(&url.parse().unwrap()), "{url}");
        }
    }

    #[test]
    fn the_addresses_of_this_node_are_local() {
        let addresses = nix::ifaddrs::getifaddrs().unwrap().filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
        });
        let addresses: Vec<IpAddr> = addresses.collect();
        assert!(addresses.len() > 1, "{addresses:?}");
        for address in addresses {
            assert!(is_of_node(address) && is_local(address), "{address}");
        }
        for other in ["192.0.2.99", "2001:db8::99"] {
            assert!(!is_of_node(other.parse().unwrap()), "{other}");
        }
        for name in ["http://localhost/", "http://LocalHost.:5000/", "http://a.localhost/"] {
            assert!(names_local(&name.parse().unwrap()), "{name}");
        }
    }

    #[tokio::test]
    async fn a_name_of_this_node_does_not_resolve_unless_it_is_a_proxy() {
        let resolve = |resolver: &CheckedResolver| resolver.resolve("localhost".parse().unwrap());
        let refused = resolve(&CheckedResolver { proxies: Vec::new() }).await;
        assert!(refused.err().is_some_and(|error| error.is::<LocalAddress>()));
        let proxy = CheckedResolver { proxies: vec!["LocalHost".to_owned()] };
        assert!(resolve(&proxy).await.is_ok_and(|mut found| found.all(|address| address.ip().is_loopback())));
    }
}
