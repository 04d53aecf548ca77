//! Forged frames of a pod, with and without CAP_NET_RAW.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use model::Protocol;

use super::frames::{self, ALL, Wire, arp, frame, icmp6, tagged, udp4, udp6, v4, v6};
use super::support::*;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

fn soon() -> Duration {
    Duration::from_millis(500) * slowness()
}

/// Frames that a pod may send, and frames that it may not.
fn forgeries(own: &Guest, other: &Guest, wire: &Wire) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mac, wrong) = (wire.mac(), [0x0a, 0x58, 9, 9, 9, 9]);
    let (me, you, gateway) = (v4(own.ips[0]), v4(other.ips[0]), Ipv4Addr::new(10, 213, 0, 1));
    let (me6, you6) = (v6(own.ips[1]), v6(other.ips[1]));
    let local: Ipv6Addr = "fe80::858:aff:fed5:2".parse().unwrap();
    let (every, all6) = (Ipv4Addr::new(10, 213, 0, 3), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let four = |mac, from| frame(ALL, mac, IPV4, &udp4(from, every, b"mark--"));
    let six = |mac, from| frame(ALL, mac, IPV6, &udp6(from, all6, b"mark--"));
    let nd = |from, kind, target| frame(ALL, mac, IPV6, &icmp6(from, all6, kind, target, b"mark--"));
    let tells = |outer, inner, from| frame(ALL, outer, ARP, &arp(2, inner, from, every, b"mark--"));
    let fine = vec![
        four(mac, me),
        six(mac, me6),
        tells(mac, mac, me),
        frame(ALL, mac, ARP, &arp(1, mac, me, you, b"mark--")),
        nd(me6, 136, Some(me6)),
        nd(me6, 135, Some(you6)),
    ];
    let bad = vec![
        four(mac, you),
        four(mac, gateway),
        four(mac, Ipv4Addr::new(192, 0, 2, 2)),
        four(mac, Ipv4Addr::UNSPECIFIED),
        four(wrong, me),
        six(mac, you6),
        six(wrong, me6),
        six(mac, Ipv6Addr::UNSPECIFIED),
        six(mac, "fe80::9".parse().unwrap()),
        tells(mac, mac, you),
        tells(mac, mac, gateway),
        tells(mac, wrong, me),
        tells(wrong, wrong, me),
        frame(ALL, mac, ARP, &arp(1, mac, you, every, b"mark--")),
        nd(me6, 136, Some(you6)),
        nd(local, 134, None),
        nd(me6, 134, None),
        nd(local, 137, Some(you6)),
        nd(local, 133, None),
        tagged(&four(mac, me)),
        tagged(&four(mac, you)),
        tagged(&tells(mac, mac, gateway)),
        frame(ALL, mac, 0x88cc, b"mark-- of another protocol than IP"),
        frame([1, 0x80, 0xc2, 0, 0, 0], mac, 38, b"\x42\x42\x03mark-- as spanning tree"),
    ];
    (fine, bad)
}

#[test]
#[ignore = "needs root"]
fn forged_frames_reach_neither_other_pods_nor_the_host() {
    on_host(|env| {
        let bridge = dual();
        let (own, other) = (attach(&bridge, 1, &[]), attach(&bridge, 2, &[]));
        let wire = Wire::at(&own.netns, "eth0");
        let (fine, bad) = forgeries(&own, &other, &wire);
        let sends = |number: usize, frame: &[u8]| {
            // Each has a different mark.
            let mark = format!("mk{number:04}");
            let at = frame.windows(6).position(|part| part == b"mark--").unwrap();
            let frame = [&frame[..at], mark.as_bytes(), &frame[at + 6..]].concat();
            wire.send(&frame);
            mark
        };
        let (there, here) = (Wire::at(&other.netns, "eth0"), Wire::at(&env.host, "crisp0"));
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        for frame in &fine {
            let mark = sends(next(), frame);
            assert!(there.sees(mark.as_bytes(), soon()), "{frame:02x?}");
            assert!(here.sees(mark.as_bytes(), soon()), "{frame:02x?}");
        }
        for frame in &bad {
            wire.send(frame);
            let closing = sends(next(), &fine[0]);
            assert!(there.sees_without(b"mark--", closing.as_bytes(), soon()), "{frame:02x?}");
            assert!(here.sees_without(b"mark--", closing.as_bytes(), soon()), "{frame:02x?}");
        }
        // Without the filter the same frames pass, so the test can fail.
        sh("nft flush chain bridge crisp prerouting; nft flush chain inet crisp unused");
        for frame in &bad {
            let mark = sends(next(), frame);
            let spanning_tree = frame[0] == 1;
            assert!(spanning_tree || there.sees(mark.as_bytes(), soon()), "{frame:02x?}");
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_pod_with_a_stolen_address_receives_no_packets_for_it() {
    on_host(|env| {
        let bridge = dual();
        let (thief, victim) = (attach(&bridge, 1, &[]), attach(&bridge, 2, &[]));
        // A pod as an earlier version attached it: it resolves its neighbours.
        let asking = attach(&bridge, 3, &[]);
        asking
            .netns
            .sh("ip address replace 10.213.0.4/16 dev eth0; ip address del 10.213.0.4/32 dev eth0 2>/dev/null || true
             ip route replace default via 10.213.0.1");
        let wire = Wire::at(&thief.netns, "eth0");
        let steal = || {
            for _ in 0..20 {
                for claimed in [v4(victim.ips[0]), Ipv4Addr::new(10, 213, 0, 1)] {
                    wire.send(&frame(ALL, wire.mac(), ARP, &arp(2, wire.mac(), claimed, v4(asking.ips[0]), b"")));
                    wire.send(&frame(ALL, wire.mac(), ARP, &arp(1, wire.mac(), claimed, v4(asking.ips[0]), b"")));
                }
            }
        };
        let thief_mac = wire.mac().map(|byte| format!("{byte:02x}")).join(":");
        let to = victim.at(80);
        let (host, outside) = (&env.host, address(OUTSIDE4, 80));
        tcp(&victim.netns, to, &asking.netns, to).unwrap();
        steal();
        for client in [&asking.netns, host] {
            tcp(&victim.netns, to, client, to).unwrap();
            tcp(&env.outside, outside, &asking.netns, outside).unwrap();
            let known = client.sh("ip neigh");
            let own = |line: &str| line.starts_with("10.213.0.2 ") || line.starts_with("fd00:c715::2 ");
            assert!(!known.lines().any(|line| line.contains(&thief_mac) && !own(line)), "{known}");
        }
        sh("nft flush chain bridge crisp prerouting");
        steal();
        let known = asking.netns.sh("ip neigh");
        let stolen = known.lines().any(|line| line.contains(&thief_mac) && line.starts_with("10.213.0.3 "));
        assert!(stolen, "without the filter the attack works: {known}");
    });
}

/// Returns the kernel's neighbour entries in this namespace.
fn neighbors(netns: &Netns) -> usize {
    netns.sh("ip -4 neigh show nud all; ip -6 neigh show nud all").lines().filter(|l| !l.contains("NOARP")).count()
}

#[test]
#[ignore = "needs root"]
fn packets_to_unused_addresses_create_no_neighbours() {
    on_host(|env| {
        let bridge = dual();
        let pod = attach(&bridge, 1, &[]);
        let sends = || {
            pod.netns.enter(|| {
                let four = UdpSocket::bind("0.0.0.0:0").unwrap();
                let six = UdpSocket::bind("[::]:0").unwrap();
                for number in 0..200_u8 {
                    four.send_to(b"x", (Ipv4Addr::new(10, 213, 7, number), 9)).ok();
                    let far = Ipv6Addr::new(0xfd00, 0xc715, 0, 0, 0, 0, 7, number.into());
                    six.send_to(b"x", (far, 9)).ok();
                    let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 7, number.into());
                    let scope = 2;
                    six.send_to(b"x", std::net::SocketAddrV6::new(local, 9, 0, scope)).ok();
                }
            });
        };
        let before = (neighbors(&env.host), neighbors(&pod.netns));
        sends();
        assert_eq!((neighbors(&env.host), neighbors(&pod.netns)), before);
        // From outside too.
        env.outside.sh(&format!("ip route add 10.213.0.0/16 via {HOST4}"));
        env.outside.enter(|| {
            let four = UdpSocket::bind("0.0.0.0:0").unwrap();
            (0..200).for_each(|number| drop(four.send_to(b"x", (Ipv4Addr::new(10, 213, 7, number), 9))));
        });
        let outside = |host: usize| host <= before.0 + 1;
        assert!(outside(neighbors(&env.host)), "only the machine outside");
        sh("nft flush chain inet crisp unused");
        sends();
        assert!(neighbors(&env.host) > before.0 + 100, "without the rule entries are created");
    });
}

#[test]
#[ignore = "needs root"]
fn the_bridge_learns_no_ethernet_address_from_a_pod() {
    on_host(|_| {
        let bridge = dual();
        let (pod, other) = (attach(&bridge, 1, &[]), attach(&bridge, 2, &[]));
        let wire = Wire::at(&pod.netns, "eth0");
        let known = || sh("bridge fdb show br crisp0");
        let before = known();
        assert!(before.contains("0a:58:0a:d5:00:02 dev crisp0-00000001"), "{before}");
        // Learning is off even without the rules.
        sh("nft flush chain bridge crisp prerouting");
        let (me, you) = (v4(pod.ips[0]), v4(other.ips[0]));
        for number in 0..500_u16 {
            let [a, b] = number.to_be_bytes();
            wire.send(&frame(ALL, [2, 0, 0, 0, a, b], IPV4, &udp4(me, you, b"x")));
        }
        let there = Wire::at(&other.netns, "eth0");
        wire.send(&frame([2, 0, 0, 0, 9, 9], wire.mac(), IPV4, &udp4(me, you, b"to no pod")));
        wire.send(&frame(there.mac(), wire.mac(), IPV4, &udp4(me, you, b"to the pod")));
        assert!(there.sees_without(b"to no pod", b"to the pod", soon()), "frames for others are not flooded");
        assert_eq!(known(), before);
    });
}

#[test]
#[ignore = "needs root"]
fn a_pod_without_ipv6_reaches_no_service_of_the_host_by_it() {
    on_host(|env| {
        let bridge = bridge(&["10.213.0.0/16"]);
        let pod = attach(&bridge, 1, &[]);
        let host = env.host.sh("ip -6 address show dev crisp0");
        assert!(!host.contains("fe80"), "{host}");
        assert!(!pod.netns.sh("ip -6 address show dev eth0").contains("fe80"));
        let here = Wire::at(&env.host, "crisp0");
        let wire = Wire::at(&pod.netns, "eth0");
        let local: Ipv6Addr = "fe80::858:aff:fed5:2".parse().unwrap();
        wire.send(&frame(here.mac(), wire.mac(), IPV6, &udp6(local, "fe80::1".parse().unwrap(), b"by IPv6")));
        let me = v4(pod.ips[0]);
        wire.send(&frame(here.mac(), wire.mac(), IPV4, &udp4(me, Ipv4Addr::new(10, 213, 0, 1), b"by IPv4")));
        assert!(here.sees_without(b"by IPv6", b"by IPv4", soon()), "{}", sh("nft list ruleset; ip link"));
        // The pod adds an IPv6 address itself.
        pod.netns.sh("ip -6 address add fe80::2/64 dev eth0 nodad");
        let server = env.host.enter(|| UdpSocket::bind("[::]:7777")).unwrap();
        server.set_read_timeout(Some(soon())).unwrap();
        pod.netns.enter(|| {
            let client = UdpSocket::bind("[::]:0").unwrap();
            for to in ["ff02::1", "fe80::1"] {
                client.send_to(b"x", std::net::SocketAddrV6::new(to.parse().unwrap(), 7777, 0, 2)).ok();
            }
        });
        assert!(server.recv_from(&mut [0; 8]).is_err());
    });
}

#[test]
#[ignore = "needs root"]
fn services_with_rules_of_kube_proxy_reach_pods() {
    for filtered in ["1", "0"] {
        on_host(|env| {
            let knob = "/proc/sys/net/bridge/bridge-nf-call-iptables";
            if std::path::Path::new(knob).exists() {
                sh(&format!("echo {filtered} > {knob}"));
            }
            let bridge = dual();
            let (a, b) = (attach(&bridge, 1, &[]), attach(&bridge, 2, &[]));
            let service = address("10.96.0.10", 80);
            // As kube-proxy: packets back to the pod that sent them get the host's address.
            sh(&format!(
                "nft -f - <<'E'
                 table ip kube {{
                   chain pre {{ type nat hook prerouting priority -100; ip daddr 10.96.0.10 tcp dport 80 dnat to {0}:8080; }}
                   chain out {{ type nat hook output priority -100; ip daddr 10.96.0.10 tcp dport 80 dnat to {0}:8080; }}
                   chain post {{ type nat hook postrouting priority 100; ip saddr {0} ip daddr {0} masquerade; }}
                   chain forward {{ type filter hook forward priority 0; ct state invalid drop; }}
                 }}
E",
                b.ips[0]
            ));
            let at = SocketAddr::new(b.ips[0], 8080);
            tcp(&b.netns, at, &a.netns, service).unwrap();
            tcp(&b.netns, at, &b.netns, service).unwrap();
            tcp(&b.netns, at, &env.host, service).unwrap();
            tcp(&b.netns, at, &a.netns, at).unwrap();
            // From other nodes, with the addresses of nodes and of their pods.
            env.outside.sh(&format!(
                "ip route add 10.213.0.0/16 via {HOST4}; ip route add 10.96.0.0/16 via {HOST4}
                 ip address add 10.244.9.9/32 dev lo"
            ));
            sh(&format!("ip route add 10.244.9.0/24 via {OUTSIDE4}"));
            assert_eq!(tcp(&b.netns, at, &env.outside, at).unwrap().ip(), address(OUTSIDE4, 0).ip());
            tcp(&b.netns, at, &env.outside, service).unwrap();
            env.outside.sh(&format!("ip route replace 10.213.0.0/16 via {HOST4} src 10.244.9.9"));
            let seen = tcp(&b.netns, at, &env.outside, at).unwrap().ip();
            assert_eq!(seen, IpAddr::from([10, 244, 9, 9]));
        });
    }
}

#[test]
#[ignore = "needs root"]
fn pods_of_an_earlier_version_are_filtered_and_stay_connected() {
    on_host(|env| {
        let first = dual();
        let (old, other) = (attach(&first, 1, &[port(Protocol::Tcp, "", 8080, 80)]), attach(&first, 2, &[]));
        drop(first);
        // The state that an earlier version created.
        for (pod, link) in [(&old, "crisp0-00000001"), (&other, "crisp0-00000002")] {
            let IpAddr::V4(four) = pod.ips[0] else { panic!("{:?}", pod.ips) };
            pod.netns.sh(&format!(
                "ip link set eth0 down; ip address flush dev eth0; ip link set eth0 addrgenmode eui64 up
                 ip address add {four}/16 dev eth0; ip address add {}/64 dev eth0 nodad
                 ip route add default via 10.213.0.1; ip route add default via fd00:c715::1; ip neigh flush all nud permanent",
                pod.ips[1]
            ));
            sh(&format!(
                "bridge link set dev {link} learning on flood on; ip link set {link} down; ip link set {link} up"
            ));
        }
        sh("nft delete table bridge crisp; ip neigh flush dev crisp0 nud permanent; bridge fdb show br crisp0 | grep 0a:58 |
            while read mac dev link rest; do bridge fdb del $mac dev $link master; done");
        let next = dual();
        for pod in [&old, &other] {
            next.restore(&pod.pod.id, &pod.ips, &pod.pod.ports).unwrap();
        }
        next.gc().unwrap();
        let new = attach(&next, 3, &[]);
        let links = sh("bridge -d link show");
        assert_eq!(links.matches("learning off flood off").count(), 3, "{links}");
        assert!(sh("bridge fdb show br crisp0").contains("0a:58:0a:d5:00:02 dev crisp0-00000001 master crisp0 static"));
        for family in 0..2 {
            for (server, client) in [(&old, &other), (&old, &new), (&new, &old)] {
                let at = SocketAddr::new(server.ips[family], 80);
                assert_eq!(tcp(&server.netns, at, &client.netns, at).unwrap().ip(), client.ips[family]);
            }
            let at = SocketAddr::new(old.ips[family], 80);
            tcp(&old.netns, at, &env.host, at).unwrap();
        }
        tcp(&old.netns, old.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        let out = address(OUTSIDE6, 80);
        tcp(&env.outside, out, &old.netns, out).unwrap();
        // The pod resolves its gateway with its link-local address from time to time.
        old.netns.sh("ip -6 neigh flush all");
        tcp(&env.outside, out, &old.netns, out).unwrap();
        let wire = frames::Wire::at(&old.netns, "eth0");
        let there = frames::Wire::at(&other.netns, "eth0");
        let (me, you) = (v4(old.ips[0]), v4(other.ips[0]));
        wire.send(&frame(there.mac(), wire.mac(), IPV4, &udp4(Ipv4Addr::new(10, 213, 0, 1), you, b"forged")));
        wire.send(&frame(there.mac(), wire.mac(), IPV4, &udp4(me, you, b"true")));
        assert!(there.sees_without(b"forged", b"true", soon()));
    });
}
