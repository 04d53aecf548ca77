//! Host ports: addresses that are not the host's, ports in use, and the sockets that hold them.

use std::io::ErrorKind as IoError;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use model::{ErrorClass as _, ErrorKind, Protocol, RequestField};

use super::support::*;
use crate::bridge::{AttachError, Bridge, PortError};

/// Returns the error for a pod whose port is refused, after detaching it.
fn refused(bridge: &Bridge, port: model::PortMapping) -> PortError {
    let netns = Netns::new();
    let pod = pod(77, &netns, &[port]);
    let ips = bridge.reserve(&pod.id).unwrap();
    let error = bridge.attach(&pod, &ips).unwrap_err();
    bridge.detach(&pod.id).unwrap().wait();
    match error {
        AttachError::Port(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
#[ignore = "needs root"]
fn a_host_port_at_an_address_that_is_not_the_hosts_is_refused() {
    on_host(|_| {
        let bridge = dual();
        let other = attach(&bridge, 1, &[]);
        let neighbours = [OUTSIDE4, OUTSIDE6, "10.96.0.1", "10.213.255.255", "192.0.2.255"].map(str::to_owned);
        for foreign in neighbours.into_iter().chain(other.ips.iter().map(ToString::to_string)) {
            let error = refused(&bridge, port(Protocol::Tcp, &foreign, 8080, 80));
            assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
            assert_eq!(error.to_string(), format!("host_ip {foreign} is not an address of this host"));
            assert_eq!(error.field(), Some(RequestField::PortMappings));
        }
        let error = refused(&bridge, port(Protocol::Tcp, "fe80::1", 8080, 80));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let fine = [HOST4, HOST6, "127.0.0.1", "127.3.4.5", "10.213.0.1"];
        let ports: Vec<_> = fine.iter().map(|ip| port(Protocol::Tcp, ip, 8080, 80)).collect();
        attach(&bridge, 2, &ports);
    });
}

#[test]
#[ignore = "needs root"]
fn a_host_port_at_a_lost_address_receives_nothing() {
    on_host(|env| {
        let bridge = dual();
        sh("ip address add 192.0.2.77/32 dev lo; ip address add 2001:db8::77/128 dev lo nodad");
        bindable("2001:db8::77");
        let ports = [port(Protocol::Tcp, "192.0.2.77", 8080, 80), port(Protocol::Tcp, "2001:db8::77", 8080, 80)];
        let (pod, other) = (attach(&bridge, 1, &ports), attach(&bridge, 2, &[]));
        for (family, ip) in ["192.0.2.77", "2001:db8::77"].into_iter().enumerate() {
            let to = address(ip, 8080);
            let at = SocketAddr::new(pod.ips[family], 80);
            tcp(&pod.netns, at, &other.netns, to).unwrap();
            sh(&format!("ip address del {ip} dev lo"));
            env.outside.sh(&format!("ip address add {ip} dev eth0 nodad"));
            env.outside.enter(|| bindable(ip));
            // Now another machine has the address and receives its packets.
            tcp(&env.outside, to, &other.netns, to).unwrap();
            tcp(&env.outside, to, &env.host, to).unwrap();
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_port_in_use_on_the_host_is_refused() {
    on_host(|env| {
        let bridge = dual();
        bridge.set_up().unwrap();
        let _web = env.host.enter(|| TcpListener::bind("127.0.0.1:8080")).unwrap();
        let _six = env.host.enter(|| TcpListener::bind("[::1]:8081")).unwrap();
        let _dns = env.host.enter(|| UdpSocket::bind("127.0.0.53:53")).unwrap();
        // The address and port of systemd-resolved.
        let resolver = env.host.enter(|| UdpSocket::bind("127.0.0.53:5353")).unwrap();
        sys::netns::bind_to_device(&resolver, "lo").unwrap();
        for (protocol, ip, number) in [
            (Protocol::Tcp, "", 8080),
            (Protocol::Tcp, "127.0.0.1", 8080),
            (Protocol::Tcp, "0.0.0.0", 8080),
            (Protocol::Tcp, "", 8081),
            (Protocol::Udp, "", 53),
            (Protocol::Udp, "127.0.0.53", 53),
            (Protocol::Udp, "", 5353),
        ] {
            let error = refused(&bridge, port(protocol, ip, number, 80));
            assert!(matches!(error, PortError::InUse { .. }), "{ip}:{number}: {error}");
            assert_eq!(error.kind(), ErrorKind::Precondition);
            let text = error.to_string();
            assert!(text.starts_with("host_port ") && text.contains(&number.to_string()), "{text}");
            assert_eq!(error.field(), Some(RequestField::PortMappings));
        }
        // Other ports are free: another address, another protocol, another family.
        let ports = [
            port(Protocol::Tcp, HOST4, 8080, 80),
            port(Protocol::Udp, "", 8080, 80),
            port(Protocol::Tcp, "0.0.0.0", 8081, 80),
            port(Protocol::Udp, HOST4, 53, 53),
        ];
        attach(&bridge, 1, &ports);
    });
}

fn taken(env: &TestEnv, protocol: Protocol, at: SocketAddr) -> bool {
    let bound = env.host.enter(|| match protocol {
        Protocol::Tcp => TcpListener::bind(at).map(drop),
        _ => UdpSocket::bind(at).map(drop),
    });
    bound.is_err_and(|error| error.kind() == IoError::AddrInUse)
}

#[test]
#[ignore = "needs root"]
fn a_host_port_is_held_by_the_daemon_and_its_successor() {
    on_host(|env| {
        let first = dual();
        let ports = [
            port(Protocol::Tcp, "", 8080, 80),
            port(Protocol::Udp, "", 8080, 53),
            port(Protocol::Tcp, "127.0.0.1", 8081, 80),
            port(Protocol::Tcp, HOST4, 8081, 80),
            port(Protocol::Tcp, "", 8082, 80),
            port(Protocol::Tcp, HOST4, 8082, 80),
        ];
        let pod = attach(&first, 1, &ports);
        let held = |expected: bool| {
            for (protocol, ip, number) in [
                (Protocol::Tcp, "0.0.0.0", 8080),
                (Protocol::Tcp, "127.0.0.1", 8080),
                (Protocol::Tcp, "::", 8080),
                (Protocol::Tcp, HOST6, 8080),
                (Protocol::Udp, HOST4, 8080),
                (Protocol::Udp, "::1", 8080),
                (Protocol::Tcp, "127.0.0.1", 8081),
                (Protocol::Tcp, HOST4, 8082),
            ] {
                assert_eq!(taken(env, protocol, address(ip, number)), expected, "{ip}:{number}");
            }
        };
        held(true);
        assert!(!taken(env, Protocol::Tcp, address("127.0.0.2", 8081)), "an address without a host port");
        // No connection reaches the holding socket: packets that no rule redirects are refused.
        let refused = env.host.enter(|| std::net::TcpStream::connect("[::1]:8080")).unwrap_err();
        assert_eq!(refused.kind(), IoError::ConnectionRefused);
        let client = env.host.enter(|| UdpSocket::bind("[::1]:0")).unwrap();
        client.connect("[::1]:8080").unwrap();
        client.send(b"x").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap_err().kind(), IoError::ConnectionRefused);
        tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        udp(&pod.netns, pod.at(53), &env.outside, address(HOST4, 8080)).unwrap();
        // A second time, as by a repeated request.
        first.attach(&pod.pod, &pod.ips).unwrap_err();
        drop(first);
        held(false);
        let squatter = env.host.enter(|| TcpListener::bind("127.0.0.1:8081")).unwrap();
        let next = dual();
        next.restore(&pod.pod.id, &pod.ips, &pod.pod.ports).unwrap();
        next.gc().unwrap();
        held(true);
        drop(squatter);
        assert!(!taken(env, Protocol::Tcp, address("127.0.0.1", 8081)));
        next.set_up().unwrap();
        held(true);
        tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, 8080)).unwrap();
        next.detach(&pod.pod.id).unwrap().wait();
        held(false);
    });
}

#[test]
#[ignore = "needs root"]
fn thousands_of_host_ports_are_opened_restored_and_closed() {
    on_host(|env| {
        // Connections that the kernel tracks, as of a pod with many clients.
        sh("echo 262144 > /proc/sys/net/netfilter/nf_conntrack_max 2>/dev/null || true");
        let client = env.host.enter(|| UdpSocket::bind("127.0.0.1:0")).unwrap();
        let bridge = dual();
        bridge.set_up().unwrap();
        (1..=20_000).for_each(|number| drop(client.send_to(b"x", ("127.0.0.9", number))));
        let mappings = |protocol, first: u16| (first..first + 5000).map(move |n| port(protocol, "", n, n));
        let ports: Vec<_> = mappings(Protocol::Udp, 20_000).chain(mappings(Protocol::Tcp, 20_000)).collect();
        let begin = Instant::now();
        let netns = Netns::new();
        let pod = pod(1, &netns, &ports);
        let ips = bridge.reserve(&pod.id).unwrap();
        let warnings = bridge.attach(&pod, &ips).unwrap().warnings;
        assert!(warnings.iter().all(|warning| warning.contains("not held")), "{warnings:?}");
        let attached = begin.elapsed();
        let at = |number| SocketAddr::new(ips[0], number);
        let reached = || {
            for number in [20_000, 22_345, 24_999] {
                tcp(&netns, at(number), &env.outside, address(HOST4, number)).unwrap();
                udp(&netns, at(number), &env.outside, address(HOST4, number)).unwrap();
            }
        };
        reached();
        let begin = Instant::now();
        sh("nft delete table inet crisp");
        bridge.set_up().unwrap();
        let restored = begin.elapsed();
        reached();
        let next = {
            drop(bridge);
            dual()
        };
        next.restore(&pod.id, &ips, &ports).unwrap();
        next.gc().unwrap();
        reached();
        let begin = Instant::now();
        next.detach(&pod.id).unwrap().wait();
        let detached = begin.elapsed();
        assert!(!sh("nft list table inet crisp").contains("elements"));
        eprintln!("10000 ports: attach {attached:?}, restore {restored:?}, detach {detached:?}");
        let all = attached + restored + detached;
        assert!(all < Duration::from_secs(10) * slowness(), "{all:?}");
    });
}
