//! Checks the host's routes for the pools and for the default route.

use ipnet::IpNet;

use super::{Link, Route};
use crate::bridge::settings::overlap;

/// Returns a route for addresses of the pool that does not lead to the bridge.
///
/// Before the bridge has the pool, any overlapping route counts, since another network uses these
/// addresses. Later only routes that take addresses from the bridge count, which are at least as
/// narrow: a VPN's route to 10.0.0.0/8 does not affect the pods.
pub(in crate::bridge) fn clash(pool: &IpNet, settled: bool, bridge: Option<u32>, routes: &[Route]) -> Option<Route> {
    let elsewhere = |route: &&Route| route.index.is_none() || route.index != bridge;
    let takes = |route: &&Route| {
        let (to, narrow) = (&route.to, route.to.prefix_len() >= pool.prefix_len());
        to.prefix_len() > 0 && overlap(to, pool) && (!settled || narrow)
    };
    routes.iter().filter(elsewhere).find(takes).copied()
}

/// Returns the MTU of the interface of the default route.
pub(in crate::bridge) fn uplink_mtu(routes: &[Route], links: &[Link]) -> Option<u32> {
    let defaults = routes.iter().filter(|route| route.to.prefix_len() == 0);
    let best = defaults.min_by_key(|route| (route.to.addr().is_ipv6(), route.metric))?;
    links.iter().find(|link| Some(link.index) == best.index).map(|link| link.mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(to: &str, index: u32, metric: u32) -> Route {
        Route { to: to.parse().unwrap(), index: Some(index), metric }
    }

    #[test]
    fn a_pool_with_another_route_is_not_free() {
        let pool = "10.213.0.0/16".parse().unwrap();
        let clashes = |to: &str, settled| clash(&pool, settled, Some(9), &[route(to, 2, 0)]).is_some();
        for to in ["10.213.0.0/16", "10.213.4.0/24", "10.213.7.7/32"] {
            assert!(clashes(to, false) && clashes(to, true), "{to}");
        }
        assert!(clashes("10.0.0.0/8", false), "another network has the addresses");
        assert!(!clashes("10.0.0.0/8", true), "the bridge's route is narrower");
        for to in ["0.0.0.0/0", "10.214.0.0/16", "192.0.2.0/24", "fd00::/8"] {
            assert!(!clashes(to, false), "{to}");
        }
        assert_eq!(clash(&pool, false, Some(9), &[route("10.213.0.0/16", 9, 0)]), None, "the bridge's own");
        let several = Route { index: None, ..route("10.213.0.0/16", 0, 0) };
        assert_eq!(clash(&pool, true, None, &[several]), Some(several), "a multipath route");
    }

    #[test]
    fn the_default_route_with_the_lowest_metric_is_used() {
        let link = |index, mtu| Link {
            index,
            name: format!("e{index}"),
            kind: String::new(),
            mtu,
            master: None,
            mac: [0; 6],
            closed: false,
            up: true,
            running: true,
        };
        let links = [link(1, 65536), link(2, 1400), link(3, 9000)];
        let routes =
            [route("::/0", 1, 0), route("0.0.0.0/0", 3, 100), route("0.0.0.0/0", 2, 50), route("10.0.0.0/8", 1, 0)];
        assert_eq!(uplink_mtu(&routes, &links), Some(1400));
        assert_eq!(uplink_mtu(&routes[..1], &links), Some(65536), "IPv6 where there is no other");
        assert_eq!(uplink_mtu(&[], &links), None);
    }
}
