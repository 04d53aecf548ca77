//! Attaches and detaches pods, and checks that nothing is left.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use model::{Bandwidth, BitRate, ErrorClass as _, ErrorKind, Protocol};

use super::support::*;
use crate::bridge::AttachError;

/// Returns the state of pods on the host.
fn left() -> String {
    let links = sh("ip -o link | grep -o 'crisp0-[^@:]*' || true");
    let ports = sh("nft list table inet crisp | grep elements || true");
    format!("{links}{ports}")
}

#[test]
#[ignore = "needs root"]
fn detaching_removes_everything_and_may_be_repeated() {
    on_host(|env| {
        let bridge = bridge(&["10.213.0.0/30", "fd00:c715::/64"]);
        let ports = [port(Protocol::Tcp, "", 8080, 80), port(Protocol::Udp, "127.0.0.1", 53, 53)];
        for number in 1..4 {
            let pod = attach(&bridge, number, &ports);
            assert_eq!(pod.at(0), address("10.213.0.2", 0), "the only free address");
            tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, 8080)).unwrap();
            assert!(
                left().contains("crisp0-0000000") && left().contains("8080") && left().contains("127.0.0.1 . udp . 53")
            );
            let removal = bridge.detach(&pod.pod.id).unwrap();
            assert!(!left().contains("elements"));
            bridge.detach(&pod.pod.id).unwrap().wait();
            removal.wait();
            bridge.detach(&pod.pod.id).unwrap().wait();
            assert_eq!(left(), "");
            assert!(!pod.netns.sh("ip link").contains("eth0"));
        }
        bridge.detach(&id(77)).unwrap().wait();
        // The bridge stays for the next pod.
        assert!(sh("ip link").contains("crisp0"));
    });
}

#[test]
#[ignore = "needs root"]
fn no_packet_passes_after_detach_returns() {
    on_host(|_| {
        let bridge = dual();
        let (a, b) = (attach(&bridge, 1, &[]), attach(&bridge, 2, &[]));
        let _listener = b.netns.enter(|| TcpListener::bind(b.at(80))).unwrap();
        let connect = || a.netns.enter(|| TcpStream::connect_timeout(&b.at(80), Duration::from_millis(500)));
        connect().unwrap();
        let removal = bridge.detach(&b.pod.id).unwrap();
        connect().unwrap_err();
        removal.wait();
    });
}

#[test]
#[ignore = "needs root"]
fn a_pod_without_its_namespace_is_detached() {
    on_host(|_| {
        let bridge = dual();
        let pod = attach(&bridge, 1, &[port(Protocol::Tcp, "", 8080, 80)]);
        drop(pod.netns);
        bridge.detach(&pod.pod.id).unwrap().wait();
        assert_eq!(left(), "");
        // A pod without its interface.
        let pod = attach(&bridge, 2, &[port(Protocol::Tcp, "", 8080, 80)]);
        sh("ip link del crisp0-00000002; nft flush map inet crisp ports4");
        bridge.detach(&pod.pod.id).unwrap().wait();
        assert_eq!(left(), "");
        assert_eq!(bridge.lock().pool.taken().count(), 0);
    });
}

#[test]
#[ignore = "needs root"]
fn an_exhausted_pool_is_an_error_until_an_address_is_freed() {
    on_host(|_| {
        let bridge = bridge(&["10.213.0.0/29"]);
        let pods: Vec<_> = (0..5).map(|number| attach(&bridge, number, &[])).collect();
        let error = bridge.reserve(&id(9)).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Exhausted, "all 5 pod addresses of 10.213.0.0/29 are in use: set larger network.bridge.pools")
        );
        bridge.detach(&pods[2].pod.id).unwrap().wait();
        assert_eq!(bridge.reserve(&id(9)).unwrap(), pods[2].ips);
        bridge.release(&id(9));
        assert_eq!(bridge.reserve(&id(10)).unwrap(), pods[2].ips);
    });
}

#[test]
#[ignore = "needs root"]
fn twenty_concurrent_pods_are_all_attached() {
    on_host(|env| {
        let bridge = dual();
        let pods: Vec<_> = std::thread::scope(|scope| {
            let attach = |number: u32| {
                let bridge = &bridge;
                let number16 = u16::try_from(number).unwrap();
                scope.spawn(move || attach(bridge, number, &[port(Protocol::Tcp, "", 8000 + number16, 80)]))
            };
            let threads: Vec<_> = (0..20).map(attach).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut ips: Vec<_> = pods.iter().flat_map(|pod| pod.ips.clone()).collect();
        ips.sort_unstable();
        ips.dedup();
        assert_eq!(ips.len(), 40);
        for (number, pod) in (8000..).zip(&pods) {
            tcp(&pod.netns, pod.at(80), &env.outside, address(HOST4, number)).unwrap();
            tcp(&pod.netns, pod.at(80), &pods[0].netns, pod.at(80)).unwrap();
        }
        std::thread::scope(|scope| {
            for pod in &pods {
                scope.spawn(|| bridge.detach(&pod.pod.id).unwrap().wait());
            }
        });
        assert_eq!(left(), "");
    });
}

#[test]
#[ignore = "needs root"]
fn attaching_does_not_change_the_namespace_of_a_thread() {
    on_host(|_| {
        let own = || std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let before = own();
        let bridge = dual();
        let pod = attach(&bridge, 1, &[]);
        assert_eq!(own(), before);
        bridge.detach(&pod.pod.id).unwrap().wait();
        assert_eq!(own(), before);
    });
}

#[test]
#[ignore = "needs root"]
fn a_pod_that_cannot_be_attached_leaves_nothing() {
    on_host(|_| {
        let bridge = dual();
        let netns = Netns::new();
        let ports = [port(Protocol::Tcp, "", 8080, 80)];
        let good = pod(1, &netns, &ports);
        let ips = bridge.reserve(&good.id).unwrap();
        let mut none = good.clone();
        none.netns = None;
        assert!(matches!(bridge.attach(&none, &ips), Err(AttachError::NoNamespace)));
        let mut gone = good.clone();
        gone.netns = Some("/nowhere/netns".into());
        assert!(matches!(bridge.attach(&gone, &ips), Err(AttachError::Open { .. })));
        let mut no_namespace = good.clone();
        no_namespace.netns = Some("/dev/null".into());
        assert!(matches!(bridge.attach(&no_namespace, &ips), Err(AttachError::Enter { .. })));
        let foreign = ["10.9.0.2".parse().unwrap()];
        assert!(matches!(bridge.attach(&good, &foreign), Err(AttachError::Foreign(_))));
        // An interface of that name exists.
        netns.sh("ip link add eth0 type veth peer name eth1");
        assert!(matches!(bridge.attach(&good, &ips), Err(AttachError::Link(_))));
        bridge.detach(&good.id).unwrap().wait();
        assert_eq!(left(), "");
        netns.sh("ip link del eth0");
        let ips = bridge.reserve(&good.id).unwrap();
        bridge.attach(&good, &ips).unwrap();
    });
}

#[test]
#[ignore = "needs root"]
fn a_pod_with_a_similar_id_does_not_take_an_interface() {
    on_host(|env| {
        let bridge = dual();
        let first = attach(&bridge, 1, &[]);
        let netns = Netns::new();
        let mut second = pod(1, &netns, &[]);
        second.id = format!("{}{}", &first.pod.id[..8], "f".repeat(56));
        let ips = bridge.reserve(&second.id).unwrap();
        let error = bridge.attach(&second, &ips).unwrap_err();
        assert!(matches!(error, AttachError::Link(_)), "{error}");
        bridge.detach(&second.id).unwrap().wait();
        tcp(&first.netns, first.at(80), &env.host, first.at(80)).unwrap();
        assert_eq!(bridge.lock().pool.taken().count(), 2);
    });
}

#[test]
#[ignore = "needs root"]
fn bandwidth_is_limited_in_both_directions() {
    on_host(|env| {
        let bridge = dual();
        let netns = Netns::new();
        let mut pod = pod(1, &netns, &[]);
        // 1 MB per second.
        let rate = Some(BitRate(8_000_000));
        let free = transfer_times(&bridge, &pod, &netns, env);
        assert!(free.iter().all(|time| *time < Duration::from_millis(500)), "{free:?}");
        for (bandwidth, slow) in [
            (Bandwidth { ingress: rate, egress: None }, [true, false]),
            (Bandwidth { ingress: None, egress: rate }, [false, true]),
        ] {
            pod.bandwidth = bandwidth;
            let times = transfer_times(&bridge, &pod, &netns, env);
            assert_eq!(times.map(|time| time > Duration::from_millis(500)), slow, "{bandwidth:?}: {times:?}");
        }
        pod.bandwidth = Bandwidth { ingress: Some(BitRate(80_000_000_000)), egress: rate };
        let ips = bridge.reserve(&pod.id).unwrap();
        assert_eq!(bridge.attach(&pod, &ips).unwrap().warnings, Vec::<String>::new());
        let (host, inside) = (sh("tc qdisc show dev crisp0-00000001"), netns.sh("tc qdisc show dev eth0"));
        assert!(host.contains("tbf") && host.contains("rate 80Gbit"), "{host}");
        assert!(inside.contains("rate 8Mbit burst 128Kb"), "{inside}");
    });
}

/// Returns the time of 1 MB into the pod and out of it.
fn transfer_times(bridge: &crate::bridge::Bridge, pod: &crate::Pod, netns: &Netns, env: &TestEnv) -> [Duration; 2] {
    let ips = bridge.reserve(&pod.id).unwrap();
    assert_eq!(bridge.attach(pod, &ips).unwrap().warnings, Vec::<String>::new());
    let at = SocketAddr::new(ips[0], 80);
    let listener = netns.enter(|| TcpListener::bind(at)).unwrap();
    let mut outside = env.host.enter(|| TcpStream::connect(at)).unwrap();
    let (mut inside, _) = listener.accept().unwrap();
    let mut transfer = |into: bool| {
        let begin = Instant::now();
        let (from, to) = if into { (&mut outside, &mut inside) } else { (&mut inside, &mut outside) };
        std::thread::scope(|scope| {
            scope.spawn(move || from.write_all(&vec![7; 1 << 20]).unwrap());
            to.read_exact(&mut vec![0; 1 << 20]).unwrap();
        });
        begin.elapsed()
    };
    let times = [transfer(true), transfer(false)];
    bridge.detach(&pod.id).unwrap().wait();
    times
}
