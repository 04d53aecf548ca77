//! A host, another machine and pods in network namespaces, and packets between them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use model::{Bandwidth, PortMapping, Protocol};
use nix::sched::{CloneFlags, setns, unshare};

use crate::bridge::{Bridge, Settings};
use crate::{Attached, Pod};

/// Time limit for a packet, far above the time that one takes.
const PATIENCE: Duration = Duration::from_secs(4);

/// The slowness of the machine from `CRISP_TEST_SLOW`.
pub(super) fn slowness() -> u32 {
    std::env::var("CRISP_TEST_SLOW").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// A network namespace that exists until this is dropped.
pub(super) struct Netns(File);

impl Netns {
    pub(super) fn new() -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            sys::netns::loopback_up().unwrap();
            Self::own()
        };
        std::thread::scope(|scope| scope.spawn(make).join().unwrap())
    }

    /// Opens the network namespace of the calling thread.
    pub(super) fn own() -> Self {
        Self(File::open("/proc/thread-self/ns/net").unwrap())
    }

    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }

    /// Runs `work` in the namespace. Sockets that it opens stay in it.
    pub(super) fn enter<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
            act()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    pub(super) fn sh(&self, line: &str) -> String {
        self.enter(|| sh(line))
    }
}

/// Runs a command line in the calling thread's network namespace.
pub(super) fn sh(line: &str) -> String {
    let out = Command::new("sh").arg("-c").arg(line).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{line}: {stderr}");
    stdout
}

/// The addresses of the host towards the other machine, and those of that machine.
pub(super) const HOST4: &str = "192.0.2.1";
pub(super) const OUTSIDE4: &str = "192.0.2.2";
pub(super) const HOST6: &str = "2001:db8::1";
pub(super) const OUTSIDE6: &str = "2001:db8::2";

/// A host in a network namespace, connected to a machine without routes to pods.
pub(super) struct TestEnv {
    pub(super) host: Netns,
    pub(super) outside: Netns,
}

/// Runs a test in a new host namespace.
pub(super) fn on_host<T: Send>(test: impl FnOnce(&TestEnv) -> T + Send) -> T {
    let begin = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        sys::netns::loopback_up().unwrap();
        let env = TestEnv { host: Netns::own(), outside: Netns::new() };
        let there = env.outside.path().display().to_string();
        // A new namespace inherits some settings of the machine.
        sh(&format!(
            "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv4/conf/all/route_localnet
             ip link add up0 mtu 1450 type veth peer name eth0 mtu 1450 netns {there}
             ip address add {HOST4}/24 dev up0; ip address add {HOST6}/64 dev up0 nodad; ip link set up0 up
             ip route add default via {OUTSIDE4}; ip route add default via {OUTSIDE6}"
        ));
        env.outside.sh(&format!(
            "ip address add {OUTSIDE4}/24 dev eth0; ip address add {OUTSIDE6}/64 dev eth0 nodad; ip link set eth0 up"
        ));
        bindable(HOST6);
        env.outside.enter(|| bindable(OUTSIDE6));
        test(&env)
    };
    let thread = std::thread::scope(|scope| scope.spawn(begin).join());
    thread.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub(super) fn bridge(pools: &[&str]) -> Bridge {
    let pools = pools.iter().map(|pool| pool.parse().unwrap()).collect();
    Bridge::open(Settings { pools, ..Settings::default() }).unwrap()
}

/// A bridge with both address families.
pub(super) fn dual() -> Bridge {
    bridge(&["10.213.0.0/16", "fd00:c715::/64"])
}

/// A pod id that differs in its first digits.
pub(super) fn id(number: u32) -> String {
    format!("{number:08x}").repeat(8)
}

pub(super) fn port(protocol: Protocol, host_ip: &str, host_port: u16, container_port: u16) -> PortMapping {
    PortMapping { protocol, container_port, host_port, host_ip: host_ip.to_owned() }
}

/// An attached pod with its namespace.
pub(super) struct Guest {
    pub(super) pod: Pod,
    pub(super) netns: Netns,
    pub(super) ips: Vec<IpAddr>,
}

impl Guest {
    pub(super) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ips[0], port)
    }
}

/// A pod that is not attached yet.
pub(super) fn pod(number: u32, netns: &Netns, ports: &[PortMapping]) -> Pod {
    Pod {
        id: id(number),
        name: format!("pod-{number}"),
        namespace: "default".to_owned(),
        uid: format!("uid-{number}"),
        netns: Some(netns.path()),
        ports: ports.to_vec(),
        bandwidth: Bandwidth::default(),
        dns: None,
        annotations: BTreeMap::new(),
        cgroup: String::new(),
    }
}

pub(super) fn attach(bridge: &Bridge, number: u32, ports: &[PortMapping]) -> Guest {
    let netns = Netns::new();
    let pod = pod(number, &netns, ports);
    let ips = bridge.reserve(&pod.id).unwrap();
    let attached = bridge.attach(&pod, &ips).unwrap_or_else(|e| panic!("{e}: {:?}", std::error::Error::source(&e)));
    assert_eq!(attached, Attached { ips: ips.clone(), warnings: Vec::new() });
    Guest { pod, netns, ips }
}

/// Connects, exchanges a byte in both directions, and returns the address of the client at the
/// server.
pub(super) fn tcp(server: &Netns, at: SocketAddr, client: &Netns, to: SocketAddr) -> io::Result<SocketAddr> {
    let listener = server.enter(|| bind(|| TcpListener::bind(at)))?;
    listener.set_nonblocking(true)?;
    let mut here = client.enter(|| TcpStream::connect_timeout(&to, PATIENCE))?;
    let begin = Instant::now();
    let (mut there, seen) = loop {
        match listener.accept() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => break other?,
        }
    };
    there.set_nonblocking(false)?;
    let mut byte = [0];
    there.set_read_timeout(Some(PATIENCE))?;
    here.set_read_timeout(Some(PATIENCE))?;
    here.write_all(&[7])?;
    there.read_exact(&mut byte)?;
    there.write_all(&[8])?;
    here.read_exact(&mut byte)?;
    assert_eq!(byte, [8]);
    Ok(seen)
}

/// The same without an earlier packet in the other direction.
pub(super) fn udp(server: &Netns, at: SocketAddr, client: &Netns, to: SocketAddr) -> io::Result<SocketAddr> {
    let server = server.enter(|| bind(|| UdpSocket::bind(at)))?;
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    let client = client.enter(|| UdpSocket::bind(any))?;
    udp_between(&server, &client, to)
}

/// A program that another test starts may keep the socket open for some milliseconds.
fn bind<T>(bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let begin = Instant::now();
    loop {
        match bind() {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// Waits until sockets of this network namespace can bind to the address. The kernel keeps a new
/// IPv6 address tentative until a worker has run, also with nodad.
pub(super) fn bindable(ip: &str) {
    let begin = Instant::now();
    while let Err(error) = UdpSocket::bind(address(ip, 0)) {
        assert!(begin.elapsed() < PATIENCE, "{ip}: {error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn udp_between(server: &UdpSocket, client: &UdpSocket, to: SocketAddr) -> io::Result<SocketAddr> {
    // Half of the limit: tests also check that nothing arrives.
    server.set_read_timeout(Some(PATIENCE / 2))?;
    client.set_read_timeout(Some(PATIENCE / 2))?;
    client.send_to(b"ask", to)?;
    let mut bytes = [0; 8];
    let (_, seen) = server.recv_from(&mut bytes)?;
    server.send_to(b"answer", seen)?;
    let (count, from) = client.recv_from(&mut bytes)?;
    assert_eq!((&bytes[..count], from), (&b"answer"[..], to), "the reply is from the requested address");
    Ok(seen)
}

pub(super) fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}
