//! Host ports: the addresses that reach them, and the requests that are refused.

use std::net::{SocketAddr, UdpSocket};

use model::{ErrorClass as _, ErrorKind, Protocol};

use super::support::*;
use crate::bridge::{AttachError, PortError};

const FILTERED_BRIDGES: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// Runs a test with iptables rules applied to bridged packets, as Kubernetes requires, and without.
fn on_both_kinds_of_hosts(test: impl Fn(&TestEnv) + Send + Sync) {
    for filtered in ["1", "0"] {
        on_host(|env| {
            if std::path::Path::new(FILTERED_BRIDGES).exists() {
                sh(&format!(
                    "echo {filtered} > {FILTERED_BRIDGES}; echo {filtered} > /proc/sys/net/bridge/bridge-nf-call-ip6tables"
                ));
            }
            test(env);
        });
    }
}

#[test]
#[ignore = "needs root"]
fn a_host_port_is_reached_from_everywhere() {
    on_both_kinds_of_hosts(|env| {
        let bridge = dual();
        let ports = [port(Protocol::Tcp, "", 8080, 80), port(Protocol::Udp, "", 5353, 53)];
        let (pod, other) = (attach(&bridge, 1, &ports), attach(&bridge, 2, &[]));
        for (family, (host, outside)) in [(HOST4, OUTSIDE4), (HOST6, OUTSIDE6)].into_iter().enumerate() {
            let gateway = bridge.lock().pool.gateways().nth(family).unwrap().addr();
            let (outside, host_ip) = (address(outside, 0).ip(), address(host, 0).ip());
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let (inside, port) = if protocol == Protocol::Tcp { (80, 8080) } else { (53, 5353) };
                let at = SocketAddr::new(pod.ips[family], inside);
                let from = |client: &Netns, to| {
                    let talk = if protocol == Protocol::Tcp { tcp } else { udp };
                    let seen = talk(&pod.netns, at, client, SocketAddr::new(to, port));
                    seen.unwrap_or_else(|e| panic!("{protocol:?} to {to}: {e}")).ip()
                };
                assert_eq!(from(&env.outside, host_ip), outside, "the pod sees the address of outside clients");
                assert_eq!(from(&env.host, host_ip), host_ip, "the host by its own address");
                assert_eq!(from(&env.host, gateway), gateway);
                assert_eq!(from(&other.netns, host_ip), gateway, "another pod");
                assert_eq!(from(&other.netns, gateway), gateway, "another pod, by the bridge");
                assert_eq!(from(&pod.netns, host_ip), gateway, "the pod itself");
                if host_ip.is_ipv4() {
                    assert_eq!(from(&env.host, [127, 0, 0, 1].into()), gateway, "localhost");
                    assert_eq!(from(&env.host, [127, 9, 9, 9].into()), gateway, "all of localhost");
                } else if protocol == Protocol::Tcp {
                    // Refused at once, so that clients of localhost try the other address family.
                    let refused = env.host.enter(|| std::net::TcpStream::connect(address("::1", port))).unwrap_err();
                    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
                }
            }
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_host_port_at_one_address_is_closed_at_others() {
    on_both_kinds_of_hosts(|env| {
        let bridge = dual();
        let ports = [
            port(Protocol::Tcp, "127.0.0.1", 8080, 80),
            port(Protocol::Tcp, HOST4, 8081, 80),
            port(Protocol::Tcp, HOST6, 8081, 80),
            port(Protocol::Tcp, "0.0.0.0", 8082, 80),
        ];
        let pod = attach(&bridge, 1, &ports);
        let (four, six) = (SocketAddr::new(pod.ips[0], 80), SocketAddr::new(pod.ips[1], 80));
        tcp(&pod.netns, four, &env.host, address("127.0.0.1", 8080)).unwrap();
        tcp(&pod.netns, four, &env.outside, address(HOST4, 8081)).unwrap();
        tcp(&pod.netns, six, &env.outside, address(HOST6, 8081)).unwrap();
        tcp(&pod.netns, four, &env.outside, address(HOST4, 8082)).unwrap();
        for (client, to) in [
            (&env.outside, address(HOST4, 8080)),
            (&env.host, address(HOST4, 8080)),
            (&env.host, address("127.0.0.1", 8081)),
            (&env.outside, address(HOST6, 8080)),
            (&env.outside, address(HOST6, 8082)),
        ] {
            assert!(tcp(&pod.netns, four, client, to).is_err(), "{to}");
        }
    });
}

#[test]
#[ignore = "needs root"]
fn pods_do_not_reach_services_on_the_loopback_of_the_host() {
    on_both_kinds_of_hosts(|env| {
        let bridge = dual();
        let pod = attach(&bridge, 1, &[port(Protocol::Tcp, "", 8080, 80)]);
        assert_eq!(sh("cat /proc/sys/net/ipv4/conf/crisp0/route_localnet").trim(), "1");
        // The pod sends such packets to the bridge.
        pod.netns.sh(
            "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; ip route del local 127.0.0.0/8 dev lo table local
             ip route del local 127.0.0.1 dev lo table local; ip route add 127.0.0.1 via 10.213.0.1 src 10.213.0.2",
        );
        let server = env.host.enter(|| UdpSocket::bind("127.0.0.1:7777")).unwrap();
        let client = pod.netns.enter(|| UdpSocket::bind("10.213.0.2:0")).unwrap();
        server.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
        let reach = || client.send_to(b"in", "127.0.0.1:7777").and_then(|_| server.recv_from(&mut [0; 8]));
        let reached = reach();
        assert!(reached.is_err(), "{reached:?}");
        // Without the rule the connection works, so the test can fail.
        sh("nft flush chain inet crisp guard");
        reach().unwrap();
    });
}

#[test]
#[ignore = "needs root"]
fn a_taken_host_port_is_refused_with_the_name_of_its_pod() {
    on_host(|env| {
        let bridge = dual();
        let first = attach(&bridge, 1, &[port(Protocol::Tcp, "", 8080, 80)]);
        let netns = Netns::new();
        let second = pod(2, &netns, &[port(Protocol::Tcp, "127.0.0.1", 8080, 80)]);
        let ips = bridge.reserve(&second.id).unwrap();
        let error = bridge.attach(&second, &ips).unwrap_err();
        assert!(matches!(&error, AttachError::Port(PortError::Taken { pod, .. }) if *pod == first.pod.id), "{error}");
        assert_eq!(error.to_string(), format!("host port 8080/TCP is already used by pod {}", first.pod.id));
        assert_eq!(error.kind(), ErrorKind::Precondition);
        assert!(!sh("ip link").contains("crisp0-00000002"), "nothing was created");
        bridge.detach(&second.id).unwrap().wait();
        tcp(&first.netns, first.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        // Free as soon as the pod is detached.
        bridge.detach(&first.pod.id).unwrap();
        let third = attach(&bridge, 3, &[port(Protocol::Tcp, "", 8080, 80)]);
        tcp(&third.netns, third.at(80), &env.outside, address(HOST4, 8080)).unwrap();
    });
}

#[test]
#[ignore = "needs root"]
fn a_steady_udp_sender_reaches_the_next_pod() {
    on_host(|env| {
        let bridge = dual();
        let ports = [port(Protocol::Udp, "", 5353, 53)];
        for (family, host) in [HOST4, HOST6].into_iter().enumerate() {
            let to = address(host, 5353);
            let any = if family == 0 { "0.0.0.0:0" } else { "[::]:0" };
            let client = env.outside.enter(|| UdpSocket::bind(any)).unwrap();
            // No pod exists before the first one, and between two of them.
            for number in [1, 2] {
                client.send_to(b"lost", to).unwrap();
                let pod = attach(&bridge, 10 * (u32::try_from(family).unwrap() + 1) + number, &ports);
                let server = pod.netns.enter(|| UdpSocket::bind(SocketAddr::new(pod.ips[family], 53))).unwrap();
                // The refused pod comes first.
                client.set_nonblocking(true).unwrap();
                while client.recv(&mut [0; 8]).is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused) {}
                client.set_nonblocking(false).unwrap();
                udp_between(&server, &client, to).unwrap_or_else(|e| panic!("pod {number}, {host}: {e}"));
                bridge.detach(&pod.pod.id).unwrap().wait();
                assert_eq!(
                    sh("grep dport=5353 /proc/net/nf_conntrack || true"),
                    "",
                    "no packet is sent to a removed pod"
                );
            }
        }
    });
}

#[test]
#[ignore = "needs root"]
fn removing_stale_udp_flows_keeps_other_connections() {
    on_host(|env| {
        let bridge = dual();
        let talker = attach(&bridge, 1, &[]);
        // A pod that sends to port 5353 of another machine, through the same host.
        let outside = env.outside.enter(|| UdpSocket::bind(address(OUTSIDE4, 5353))).unwrap();
        let client = talker.netns.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        let before = udp_between(&outside, &client, address(OUTSIDE4, 5353)).unwrap();
        let known = || sh("grep -c 'dport=5353' /proc/net/nf_conntrack || true").trim().to_owned();
        assert_eq!(known(), "1");
        let server = attach(&bridge, 2, &[port(Protocol::Udp, "", 5353, 53)]);
        assert_eq!(known(), "1");
        bridge.detach(&server.pod.id).unwrap();
        assert_eq!(known(), "1");
        assert_eq!(udp_between(&outside, &client, address(OUTSIDE4, 5353)).unwrap(), before);
    });
}

#[test]
#[ignore = "needs root"]
fn a_pod_with_a_thousand_host_ports_has_them_all() {
    on_host(|env| {
        let bridge = dual();
        let ports: Vec<_> = (0..1000).map(|n| port(Protocol::Tcp, "", 20000 + n, 80)).collect();
        let pod = attach(&bridge, 1, &ports);
        for number in [20000, 20255, 20256, 20999] {
            tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, number)).unwrap();
        }
        assert!(tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, 21000)).is_err());
        bridge.detach(&pod.pod.id).unwrap();
        assert!(!sh("nft list map inet crisp ports4").contains("elements"));
    });
}
