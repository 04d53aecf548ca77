//! Recovery from changes by other processes and from what an earlier daemon left.

use model::{ErrorClass as _, ErrorKind, Protocol};

use super::support::*;
use crate::bridge::{GcError, NotReady, PoolInUse};

fn web() -> [model::PortMapping; 1] {
    [port(Protocol::Tcp, "", 8080, 80)]
}

#[test]
#[ignore = "needs root"]
fn the_next_daemon_keeps_running_pods_and_removes_what_others_left() {
    on_host(|env| {
        let first = dual();
        let (alive, gone) = (attach(&first, 1, &web()), attach(&first, 2, &[port(Protocol::Tcp, "", 8081, 80)]));
        // Objects of other programs with similar names.
        sh("ip link add crisp1-00000002 type veth peer name other; ip link add crisp0x type veth peer name crisp0y
            nft add table inet crisp1; nft add table ip crisp");
        drop(first);
        let next = dual();
        next.restore(&alive.pod.id, &alive.ips, &alive.pod.ports).unwrap();
        let (names, removal) = next.gc().unwrap();
        assert_eq!(names, ["crisp0-00000002"]);
        removal.wait();
        let links = sh("ip -o link");
        assert!(!links.contains("crisp0-00000002"), "{links}");
        assert!(links.contains("crisp1-00000002") && links.contains("crisp0x"), "{links}");
        assert!(sh("nft list tables").contains("inet crisp1") && sh("nft list tables").contains("ip crisp"));
        let table = sh("nft list table inet crisp");
        assert!(table.contains("tcp . 8080") && !table.contains("8081"), "{table}");
        assert!(!gone.netns.sh("ip link").contains("eth0"));
        tcp(&alive.netns, alive.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        let third = attach(&next, 3, &[port(Protocol::Tcp, "", 8081, 80)]);
        assert!(third.ips[0] != alive.ips[0]);
        tcp(&third.netns, third.at(80), &env.outside, address(HOST4, 8081)).unwrap();
        next.detach(&alive.pod.id).unwrap().wait();
        assert!(!sh("nft list table inet crisp").contains("tcp . 8080"));
    });
}

#[test]
#[ignore = "needs root"]
fn two_daemons_of_one_network_namespace_do_not_share_a_bridge() {
    on_host(|env| {
        let first = dual();
        let pod = attach(&first, 1, &web());
        let seen = || sh("ip -o link; nft list table inet crisp");
        let before = seen();
        let second = bridge(&["10.99.0.0/24"]);
        second.restore(&id(2), &["10.99.0.2".parse().unwrap()], &[port(Protocol::Tcp, "", 8081, 80)]).unwrap();
        let error = second.set_up().unwrap_err().to_string();
        for hint in ["crisp0", "network.bridge.name", "network.mode"] {
            assert!(error.contains(hint), "{error}");
        }
        assert!(matches!(second.gc().unwrap_err(), GcError::NotReady(NotReady::Taken { .. })));
        second.detach(&id(2)).unwrap().wait();
        assert_eq!(seen(), before, "nothing was changed");
        env.outside.enter(|| dual().set_up()).unwrap();
        sh("nft flush ruleset");
        assert!(dual().set_up().is_err(), "flushing all rules does not free the bridge");
        first.set_up().unwrap();
        tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        drop(first);
        assert!(second.set_up().is_err(), "the pods of the first daemon still exist");
        let next = dual();
        next.restore(&pod.pod.id, &pod.ips, &pod.pod.ports).unwrap();
        next.gc().unwrap();
        tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, 8080)).unwrap();
    });
}

#[test]
#[ignore = "needs root"]
fn a_start_leaves_connections_and_host_ports_as_they_were() {
    on_host(|env| {
        let first = dual();
        let pod = attach(&first, 1, &web());
        let listener = pod.netns.enter(|| std::net::TcpListener::bind(pod.at(80))).unwrap();
        let mut client = env.outside.enter(|| std::net::TcpStream::connect(address(HOST4, 8080))).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        drop(first);
        let next = dual();
        next.restore(&pod.pod.id, &pod.ips, &pod.pod.ports).unwrap();
        assert_eq!(next.gc().unwrap().0, Vec::<String>::new());
        std::io::Write::write_all(&mut client, b"still").unwrap();
        let mut bytes = [0; 5];
        std::io::Read::read_exact(&mut server, &mut bytes).unwrap();
        assert_eq!(&bytes, b"still");
    });
}

#[test]
#[ignore = "needs root"]
fn a_deleted_bridge_is_created_again_with_its_pods() {
    on_host(|env| {
        let bridge = dual();
        let (a, b) = (attach(&bridge, 1, &web()), attach(&bridge, 2, &[]));
        sh("ip link del crisp0");
        let c = attach(&bridge, 3, &[]);
        tcp(&c.netns, c.at(80), &a.netns, c.at(80)).unwrap();
        tcp(&b.netns, b.at(80), &a.netns, b.at(80)).unwrap();
        tcp(&a.netns, a.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        tcp(&a.netns, a.at(80), &env.host, address("127.0.0.1", 8080)).unwrap();
        assert!(sh("bridge -d link show dev crisp0-00000001").contains("hairpin on"));
        sh("ip link del crisp0");
        assert_eq!(bridge.set_up().unwrap(), Vec::<String>::new());
        tcp(&b.netns, b.at(80), &c.netns, b.at(80)).unwrap();
        // The bridge is down, without an address, or without one of its ports.
        sh("ip link set crisp0 down");
        bridge.set_up().unwrap();
        tcp(&b.netns, b.at(80), &env.host, b.at(80)).unwrap();
        sh("ip address flush dev crisp0; ip link set crisp0-00000002 nomaster");
        bridge.set_up().unwrap();
        tcp(&b.netns, b.at(80), &env.host, b.at(80)).unwrap();
        tcp(&b.netns, b.at(80), &c.netns, b.at(80)).unwrap();
    });
}

#[test]
#[ignore = "needs root"]
fn a_flushed_table_is_created_again_with_all_host_ports() {
    on_host(|env| {
        let bridge = dual();
        let a = attach(&bridge, 1, &web());
        let out = address(OUTSIDE4, 80);
        let all_is_well = || {
            tcp(&a.netns, a.at(80), &env.outside, address(HOST4, 8080)).unwrap();
            tcp(&env.outside, out, &a.netns, out).unwrap();
        };
        sh("nft add table inet foreign; nft add chain inet foreign c; nft add rule inet foreign c accept");
        for harm in [
            "nft delete table inet crisp",
            "nft flush table inet crisp",
            "nft flush map inet crisp ports4",
            "nft flush chain inet crisp postrouting",
            "nft add element inet crisp ports4 '{ tcp . 9999 : 10.213.9.9 . 1 }'",
            "nft flush ruleset",
        ] {
            sh(harm);
            bridge.set_up().unwrap();
            all_is_well();
            assert!(!sh("nft list table inet crisp").contains("9999"), "{harm}");
            sh("nft list tables | grep -q foreign || nft add table inet foreign");
        }
        // A change by another program beside the tables does not replace them.
        let before = sh("nft -a list table inet crisp");
        sh("nft add table inet foreign2");
        let b = attach(&bridge, 2, &[port(Protocol::Tcp, "", 8081, 80)]);
        bridge.detach(&b.pod.id).unwrap().wait();
        assert_eq!(sh("nft -a list table inet crisp"), before, "the same table, not a new one");
        sh("nft delete table inet crisp");
        let c = attach(&bridge, 3, &[port(Protocol::Tcp, "", 8081, 80)]);
        all_is_well();
        tcp(&c.netns, c.at(80), &env.outside, address(HOST4, 8081)).unwrap();
        sh("nft delete table inet crisp");
        bridge.detach(&c.pod.id).unwrap().wait();
        all_is_well();
        assert!(!sh("nft list table inet crisp").contains("8081"));
    });
}

#[test]
#[ignore = "needs root"]
fn a_foreign_change_that_keeps_the_number_of_rules_is_reverted() {
    on_host(|env| {
        let bridge = dual();
        let a = attach(&bridge, 1, &web());
        let without_handles = |family: &str| sh(&format!("nft list table {family} crisp"));
        let wanted = [without_handles("inet"), without_handles("bridge")];
        let handle = |family: &str, chain: &str, find: &str| {
            format!("$(nft -a list chain {family} crisp {chain} | grep -m1 '{find}' | sed 's/.*handle //')")
        };
        let replace = |family: &str, chain: &str, find: &str, by: &str| {
            format!("nft replace rule {family} crisp {chain} handle {} {by}", handle(family, chain, find))
        };
        for harm in [
            replace("inet", "guard", "ip saddr", "iifname crisp0 ip saddr 127.0.0.0/9 drop"),
            replace("inet", "postrouting", "oifname !=", "oifname != crisp0 ip saddr 10.214.0.0/16 masquerade"),
            replace("bridge", "prerouting", "sources6 drop", "accept"),
            format!(
                "nft delete rule inet crisp guard handle {}
                 nft add rule inet crisp guard iifname crisp0 ip saddr 127.0.0.0/8 drop",
                handle("inet", "guard", "saddr")
            ),
            "nft 'add chain inet crisp unused { type filter hook postrouting priority 0; policy drop; }'".to_owned(),
            "nft 'add table inet crisp { flags dormant; }'".to_owned(),
            "nft 'add chain inet crisp other'".to_owned(),
        ] {
            sh(&harm);
            assert_ne!([without_handles("inet"), without_handles("bridge")], wanted, "{harm}");
            bridge.set_up().unwrap();
            assert_eq!([without_handles("inet"), without_handles("bridge")], wanted, "{harm}");
            tcp(&a.netns, a.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_pool_with_a_foreign_route_is_not_ready() {
    on_host(|_| {
        for route in ["10.213.7.0/24", "10.0.0.0/8"] {
            sh(&format!("ip route add {route} via {OUTSIDE4}"));
            let error = dual().set_up().unwrap_err();
            let text = format!(
                "address pool 10.213.0.0/16 overlaps the host's route to {route} through up0: set other network.bridge.pools"
            );
            assert_eq!((error.to_string(), error.kind()), (text, ErrorKind::Precondition));
            assert!(!sh("ip link").contains("crisp0"), "nothing was made");
            let netns = Netns::new();
            let bridge = dual();
            let refused = pod(1, &netns, &[]);
            let ips = bridge.reserve(&refused.id).unwrap();
            assert!(bridge.attach(&refused, &ips).is_err());
            sh(&format!("ip route del {route}"));
        }
        sh("ip address add 10.213.9.9/32 dev up0");
        let text = "address pool 10.213.0.0/16 overlaps the host's route to 10.213.9.9/32 through up0: set other network.bridge.pools";
        assert_eq!(dual().set_up().unwrap_err().to_string(), text);
        sh("ip address del 10.213.9.9/32 dev up0");
        let bridge = dual();
        bridge.set_up().unwrap();
        // A later wider route is accepted; a narrower one is not.
        sh(&format!("ip route add 10.0.0.0/8 via {OUTSIDE4}"));
        bridge.set_up().unwrap();
        drop(bridge);
        let bridge = dual();
        bridge.set_up().unwrap();
        sh(&format!("ip -6 route add fd00:c715::/80 via {OUTSIDE6}"));
        let error = bridge.set_up().unwrap_err();
        assert!(matches!(error, NotReady::Overlap { .. }), "{error}");
    });
}

#[test]
#[ignore = "needs root"]
fn another_interface_with_the_name_of_the_bridge_is_not_changed() {
    on_host(|_| {
        sh("ip link add crisp0 type veth peer name other");
        let error = dual().set_up().unwrap_err();
        assert_eq!(
            error.to_string(),
            "network interface crisp0 already exists as veth, expected a bridge: remove it, or change network.bridge.name"
        );
        assert_eq!(error.kind(), ErrorKind::Precondition);
        assert!(!sh("ip address show crisp0").contains("10.213"));
    });
}

#[test]
#[ignore = "needs root"]
fn pod_cidrs_replace_the_pool_unless_a_pod_has_another_address() {
    on_host(|env| {
        let bridge = dual();
        bridge.set_up().unwrap();
        let nets = |texts: &[&str]| texts.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>();
        bridge.set_pod_cidrs(nets(&["10.244.3.0/24"])).unwrap();
        let pod = attach(&bridge, 1, &web());
        assert_eq!(pod.ips, [address("10.244.3.2", 0).ip()]);
        let shown = sh("ip address show crisp0; nft list table inet crisp");
        assert!(
            shown.contains("10.244.3.1/24") && !shown.contains("10.213") && !shown.contains("fd00:c715::1"),
            "{shown}"
        );
        let out = address(OUTSIDE4, 80);
        assert_eq!(tcp(&env.outside, out, &pod.netns, out).unwrap().ip(), address(HOST4, 0).ip());
        bridge.set_pod_cidrs(nets(&["10.244.3.0/24"])).unwrap();
        let error = bridge.set_pod_cidrs(nets(&["10.9.0.0/24", "fd00:9::/64"])).unwrap_err();
        assert!(matches!(&error, PoolInUse::Lives { pod: lives, .. } if *lives == pod.pod.id), "{error}");
        let text = format!(
            "cannot change the address pools: pod {} uses 10.244.3.2, outside of 10.9.0.0/24, fd00:9::/64",
            pod.pod.id
        );
        assert_eq!((error.to_string(), error.kind()), (text, ErrorKind::Precondition));
        assert_eq!(bridge.pools(), nets(&["10.244.3.0/24"]));
        // Wider ranges that contain the pod's are accepted.
        bridge.set_pod_cidrs(nets(&["10.244.0.0/16", "fd00:9::/64"])).unwrap();
        let second = attach(&bridge, 2, &[]);
        assert_eq!(second.ips.len(), 2);
        tcp(&pod.netns, pod.at(80), &second.netns, pod.at(80)).unwrap();
        tcp(&env.outside, out, &pod.netns, out).unwrap();
        assert!(matches!(bridge.set_pod_cidrs(nets(&["10.1.1.1/8"])), Err(PoolInUse::Pools(_))));
    });
}

#[test]
#[ignore = "needs root"]
fn pods_of_an_older_pool_keep_their_route() {
    on_host(|env| {
        let pod = attach(&dual(), 1, &web());
        let next = bridge(&["10.99.0.0/24"]);
        next.restore(&pod.pod.id, &pod.ips, &pod.pod.ports).unwrap();
        next.gc().unwrap();
        let out = address(OUTSIDE4, 80);
        assert_eq!(tcp(&env.outside, out, &pod.netns, out).unwrap().ip(), address(HOST4, 0).ip());
        let new = attach(&next, 2, &[]);
        tcp(&pod.netns, pod.at(80), &new.netns, pod.at(80)).unwrap();
        tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        next.detach(&pod.pod.id).unwrap().wait();
        next.set_up().unwrap();
        let shown = sh("ip address show crisp0; nft list table inet crisp");
        assert!(!shown.contains("10.213.") && !shown.contains("fd00:c715"), "{shown}");
    });
}

#[test]
#[ignore = "needs root"]
fn a_forwarding_host_still_accepts_router_advertisements() {
    on_host(|_| {
        let listens =
            |interface: &str| sh(&format!("cat /proc/sys/net/ipv6/conf/{interface}/accept_ra")).trim().to_owned();
        sh("ip link add deaf type veth peer name deaf2; echo 0 > /proc/sys/net/ipv6/conf/deaf/accept_ra");
        assert_eq!(listens("up0"), "1");
        dual().set_up().unwrap();
        assert_eq!(sh("cat /proc/sys/net/ipv6/conf/all/forwarding").trim(), "1");
        assert_eq!((listens("up0"), listens("deaf"), listens("crisp0")), ("2".into(), "0".into(), "0".into()));
    });
}

#[test]
#[ignore = "needs root"]
fn a_chain_that_drops_forwarded_packets_is_named() {
    on_host(|_| {
        sh("nft add table ip filter; nft 'add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'
            nft 'add chain ip filter INPUT { type filter hook input priority 0; policy drop; }'");
        let warnings = dual().set_up().unwrap();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].starts_with("the chain ip filter FORWARD drops forwarded packets"), "{warnings:?}");
    });
}
