//! Packets between pods, the host and the outside.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use model::Protocol;

use super::support::*;

/// Shorter than the time after which a lost packet is sent again, 1 s.
fn at_once() -> Duration {
    Duration::from_millis(900) * slowness()
}

#[test]
#[ignore = "needs root"]
fn pods_reach_each_other_at_once_in_both_families() {
    on_host(|_| {
        let bridge = dual();
        let (a, b) = (attach(&bridge, 1, &[]), attach(&bridge, 2, &[]));
        assert_eq!(a.ips, ["10.213.0.2", "fd00:c715::2"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        let begin = Instant::now();
        for family in 0..2 {
            let to = SocketAddr::new(b.ips[family], 80);
            assert_eq!(tcp(&b.netns, to, &a.netns, to).unwrap().ip(), a.ips[family]);
            assert_eq!(udp(&b.netns, to, &a.netns, to).unwrap().ip(), a.ips[family]);
        }
        assert!(begin.elapsed() < at_once(), "{:?}", begin.elapsed());
    });
}

#[test]
#[ignore = "needs root"]
fn the_first_pod_of_all_is_reached_at_once_from_outside() {
    for (family, host) in [HOST4, HOST6].into_iter().enumerate() {
        on_host(|env| {
            // Both have neighbour entries for each other now.
            tcp(&env.host, address(host, 81), &env.outside, address(host, 81)).unwrap();
            let bridge = dual();
            let pod = attach(&bridge, 1, &[port(Protocol::Tcp, "", 8080, 80)]);
            let begin = Instant::now();
            let at = SocketAddr::new(pod.ips[family], 80);
            tcp(&pod.netns, at, &env.outside, address(host, 8080)).unwrap();
            assert!(begin.elapsed() < at_once(), "{:?}", begin.elapsed());
        });
    }
}

#[test]
#[ignore = "needs root"]
fn pods_and_the_host_reach_each_other_with_their_own_addresses() {
    on_host(|env| {
        let bridge = dual();
        let pod = attach(&bridge, 1, &[]);
        for (family, host) in [HOST4, HOST6].into_iter().enumerate() {
            let to_pod = SocketAddr::new(pod.ips[family], 80);
            let gateway = bridge.lock().pool.gateways().nth(family).unwrap().addr();
            assert_eq!(tcp(&pod.netns, to_pod, &env.host, to_pod).unwrap().ip(), gateway);
            for at in [gateway, host.parse().unwrap()] {
                let to_host = SocketAddr::new(at, 81);
                assert_eq!(tcp(&env.host, to_host, &pod.netns, to_host).unwrap().ip(), pod.ips[family]);
            }
        }
    });
}

#[test]
#[ignore = "needs root"]
fn packets_that_leave_the_node_have_its_address() {
    on_host(|env| {
        let bridge = dual();
        let pod = attach(&bridge, 1, &[]);
        for (outside, host) in [(OUTSIDE4, HOST4), (OUTSIDE6, HOST6)] {
            let to = address(outside, 80);
            assert_eq!(tcp(&env.outside, to, &pod.netns, to).unwrap().ip(), address(host, 0).ip());
            assert_eq!(udp(&env.outside, to, &pod.netns, to).unwrap().ip(), address(host, 0).ip());
        }
        // Packets have the MTU of the outgoing interface at once, without path MTU discovery.
        assert!(pod.netns.sh("ip link show eth0").contains("mtu 1450"));
        assert!(sh("ip link show crisp0").contains("mtu 1450"));
    });
}

#[test]
#[ignore = "needs root"]
fn a_pod_has_one_address_if_there_is_one_pool() {
    on_host(|env| {
        let four = bridge(&["10.213.0.0/16"]);
        let pod = attach(&four, 1, &[]);
        assert_eq!(pod.ips.len(), 1);
        let to = address(OUTSIDE4, 80);
        tcp(&env.outside, to, &pod.netns, to).unwrap();
        assert!(!pod.netns.sh("ip -6 address").contains("scope global"));
        assert_eq!(sh("cat /proc/sys/net/ipv6/conf/all/forwarding").trim(), "0", "not needed");
    });
    on_host(|env| {
        let six = bridge(&["fd00:c715::/64"]);
        let (pod, other) = (attach(&six, 1, &[]), attach(&six, 2, &[]));
        assert_eq!(pod.ips, [address("fd00:c715::2", 0).ip()]);
        let to = address(OUTSIDE6, 80);
        tcp(&env.outside, to, &pod.netns, to).unwrap();
        tcp(&other.netns, other.at(80), &pod.netns, other.at(80)).unwrap();
        assert_eq!(sh("cat /proc/sys/net/ipv4/ip_forward").trim(), "0", "not needed");
    });
}

#[test]
#[ignore = "needs root"]
fn a_pods_interface_has_the_usual_name_addresses_and_routes() {
    on_host(|_| {
        let bridge = dual();
        let pod = attach(&bridge, 1, &[]);
        let shown = pod.netns.sh("ip address show eth0; ip route; ip -6 route");
        for expected in [
            "state UP",
            "link/ether 0a:58:0a:d5:00:02",
            "inet 10.213.0.2/32 scope global eth0",
            "inet6 fd00:c715::2/128 scope global nodad",
            "default via 10.213.0.1 dev eth0",
            "10.213.0.1 dev eth0 scope link",
            "default via fd00:c715::1 dev eth0",
            "fd00:c715::1 dev eth0",
        ] {
            assert!(shown.contains(expected), "no {expected}: {shown}");
        }
        assert_eq!(pod.netns.sh("cat /proc/sys/net/ipv6/conf/eth0/accept_ra").trim(), "0");
        let host = sh("bridge -d link show; ip link show crisp0; cat /proc/sys/net/ipv4/conf/crisp0/rp_filter");
        assert!(host.contains("crisp0-00000001") && host.contains("hairpin on"), "{host}");
        assert!(host.contains("state forwarding"), "{host}");
        assert!(host.contains("link/ether 0a:57:"), "{host}");
        assert!(host.contains("learning off flood off"), "{host}");
        assert!(!shown.contains("fe80"), "link-local address: {shown}");
        assert_eq!(sh("cat /proc/sys/net/ipv6/conf/crisp0/accept_ra").trim(), "0");
    });
}

#[test]
#[ignore = "needs root"]
fn the_bridge_keeps_its_ethernet_address_when_pods_are_added_and_removed() {
    on_host(|env| {
        let bridge = dual();
        let pods: Vec<_> = (1..5).map(|number| attach(&bridge, number, &[])).collect();
        let first = &pods[0];
        tcp(&env.host, address("10.213.0.1", 80), &first.netns, address("10.213.0.1", 80)).unwrap();
        let before = sh("cat /sys/class/net/crisp0/address 2>/dev/null || ip -o link show crisp0");
        for pod in &pods[1..] {
            bridge.detach(&pod.pod.id).unwrap().wait();
        }
        assert_eq!(sh("cat /sys/class/net/crisp0/address 2>/dev/null || ip -o link show crisp0"), before);
        let begin = Instant::now();
        tcp(&env.host, address("10.213.0.1", 80), &first.netns, address("10.213.0.1", 80)).unwrap();
        assert!(begin.elapsed() < at_once(), "{:?}", begin.elapsed());
    });
}

#[test]
#[ignore = "needs root"]
fn the_next_pod_with_an_address_is_reached_at_once() {
    on_host(|env| {
        let bridge = bridge(&["10.213.0.0/29", "fd00:c715::/64"]);
        let neighbour = attach(&bridge, 1, &[]);
        let mut last = attach(&bridge, 2, &[]);
        for number in 3..12 {
            for family in 0..2 {
                let to = SocketAddr::new(last.ips[family], 80);
                let begin = Instant::now();
                tcp(&last.netns, to, &neighbour.netns, to).unwrap();
                tcp(&last.netns, to, &env.host, to).unwrap();
                assert!(begin.elapsed() < at_once(), "{number}: {:?}", begin.elapsed());
            }
            bridge.detach(&last.pod.id).unwrap().wait();
            last = attach(&bridge, number, &[]);
        }
    });
}
