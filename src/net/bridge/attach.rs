//! Attaching a pod.

use std::error::Error as _;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::{ErrorClass, ErrorKind};

use super::host_ports::{Forward, PortError, conntrack};
use super::ipam;
use super::ipam::{AddressConfig, AddressTaken};
use super::link::{self, Pair, traffic_shaping};
use super::netlink::{Batch, NetlinkError, Socket};
use super::setup::NotReady;
use super::state::{Bridge, BridgeLink};
use super::sysctl::{self, SysctlError};
use crate::{Attached, INTERFACE, Pod};

/// Why a pod has no network. [`Bridge::detach`] takes back what was made of it.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("the pod has no network namespace")]
    NoNamespace,
    #[error("address {0} is in no pool")]
    Foreign(IpAddr),
    #[error(transparent)]
    Address(#[from] AddressTaken),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("opening the network namespace {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("entering the network namespace {}", path.display())]
    Enter { path: PathBuf, source: io::Error },
    #[error("preparing the network namespace")]
    Prepare(#[from] SysctlError),
    #[error("connecting the pod to the bridge")]
    Link(#[source] NetlinkError),
    #[error("setting up the pod's interface")]
    Inside(#[source] NetlinkError),
    #[error("opening host ports")]
    Ports(#[source] NetlinkError),
}

impl ErrorClass for AttachError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoNamespace | Self::Foreign(_) => ErrorKind::Precondition,
            Self::Address(e) => e.kind(),
            Self::Port(e) => e.kind(),
            Self::NotReady(e) => e.kind(),
            Self::Open { .. } | Self::Enter { .. } | Self::Prepare(_) => ErrorKind::Internal,
            Self::Link(_) | Self::Inside(_) | Self::Ports(_) => ErrorKind::Internal,
        }
    }
}

/// How long an interface may take to come up: the kernel does the last of it in the background.
const UP_WITHIN: Duration = Duration::from_secs(1);
/// Looked for again after this, and then twice as long each time.
const LOOK_AFTER: Duration = Duration::from_micros(20);

impl Bridge {
    /// Gives a pod its interface, with the addresses that were reserved for it, and its ports of the host.
    ///
    /// When it returns, packets pass. When it fails, [`Self::detach`] is to be called.
    pub fn attach(&self, pod: &Pod, ips: &[IpAddr]) -> Result<Attached, AttachError> {
        let path = pod.netns.as_deref().ok_or(AttachError::NoNamespace)?;
        let (made, homes, forwards) = {
            let mut state = self.lock();
            let config = |ip: &IpAddr| state.pool.address_config(*ip).ok_or(AttachError::Foreign(*ip));
            let homes = ips.iter().map(config).collect::<Result<Vec<_>, _>>()?;
            state.pool.take(&pod.id, ips)?;
            let made = self.ensure(&mut state)?;
            (made, homes, state.ports.claim(&pod.id, &pod.ports, ips)?)
        };
        let namespace = File::open(path).map_err(|source| AttachError::Open { path: path.to_owned(), source })?;
        let inside = enter(path, ips.iter().any(IpAddr::is_ipv6))?;
        let outside = Socket::route().map_err(AttachError::Link)?;
        let name = self.link_name(&pod.id);
        let made = self.connect(&outside, made, &name, &namespace, ips)?;
        let index = set_up(&inside, &homes).map_err(AttachError::Inside)?;
        let mut warnings = Vec::new();
        self.limit(pod, (&outside, &name), (&inside, index), &mut warnings)?;
        if !forwards.is_empty() {
            self.forward(&outside, &forwards, &mut warnings)?;
        }
        let up = wait(|| is_up(&inside, INTERFACE, index, ips)).map_err(AttachError::Inside)?;
        if !up || !self.wait_for_host(&outside, &name, made.index, &homes).map_err(AttachError::Link)? {
            warnings.push(format!("{INTERFACE} was not ready within {} s", UP_WITHIN.as_secs()));
        }
        Ok(Attached { ips: ips.to_vec(), warnings })
    }

    /// Makes the pair of interfaces; where the bridge is gone, after making that anew. The bridge that it was.
    fn connect(
        &self,
        socket: &Socket,
        made: BridgeLink,
        name: &str,
        namespace: &File,
        ips: &[IpAddr],
    ) -> Result<BridgeLink, AttachError> {
        let namespace = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
        let make = |made: BridgeLink| {
            let mut batch = Batch::new();
            let peer_mac = ips.first().map(|ip| ipam::mac(*ip)).unwrap_or_default();
            let BridgeLink { index: bridge, mtu } = made;
            link::make_pair(&mut batch, &Pair { name, bridge, mtu, peer: INTERFACE, peer_mac, namespace });
            socket.ask(batch).map(|_| made)
        };
        make(made).or_else(|error| {
            let now = self.make(&mut self.lock())?;
            if now == made {
                return Err(AttachError::Link(error));
            }
            make(now).map_err(AttachError::Link)
        })
    }

    fn limit(
        &self,
        pod: &Pod,
        (outside, name): (&Socket, &str),
        (inside, index): (&Socket, u32),
        warnings: &mut Vec<String>,
    ) -> Result<(), AttachError> {
        let mut able = true;
        if let Some(rate) = pod.bandwidth.ingress {
            let link = outside.link(name).map_err(AttachError::Link)?;
            let link =
                link.ok_or(AttachError::Link(NetlinkError::Noise { doing: "looking at the pod's interface" }))?;
            able &= traffic_shaping::limit(outside, link.index, rate).map_err(AttachError::Link)?;
        }
        if let Some(rate) = pod.bandwidth.egress {
            able &= traffic_shaping::limit(inside, index, rate).map_err(AttachError::Inside)?;
        }
        if !able {
            warnings.push("this kernel has no token buckets (sch_tbf): the pod's bandwidth is not limited".to_owned());
        }
        Ok(())
    }

    /// The first pod of all also wakes the bridge.
    fn wait_for_host(
        &self,
        socket: &Socket,
        name: &str,
        bridge: u32,
        homes: &[AddressConfig],
    ) -> Result<bool, NetlinkError> {
        let gateways: Vec<_> = homes.iter().map(|config| config.gateway).filter(IpAddr::is_ipv6).collect();
        let awake = gateways.is_empty() || self.lock().awake == Some(bridge);
        let up = wait(|| {
            let up = is_up(socket, name, bridge, &[])? && is_up(socket, &self.settings.bridge, bridge, &[])?;
            Ok(up && (awake || wakes(socket, &self.settings.bridge, bridge, &gateways)?))
        })?;
        if up && !awake {
            self.lock().awake = Some(bridge);
        }
        Ok(up)
    }

    fn forward(&self, outside: &Socket, forwards: &[Forward], warnings: &mut Vec<String>) -> Result<(), AttachError> {
        self.add_ports(&mut self.lock(), forwards).map_err(AttachError::Ports)?;
        if forwards.iter().any(|forward| !forward.from.v6) {
            sysctl::route_localnet(&self.settings.bridge).map_err(NotReady::from)?;
        }
        if forwards.iter().any(conntrack::is_udp) {
            let local: Vec<_> = outside.addresses().map_err(AttachError::Ports)?.iter().map(|a| a.net.addr()).collect();
            let forgotten = self.netfilter(|socket| conntrack::forget_before(socket, forwards, &local));
            if let Err(error) = forgotten {
                let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
                let missing = "senders that used a UDP host port before may go on missing the pod";
                warnings.push(format!("{missing}: {error}{cause}"));
            }
        }
        Ok(())
    }
}

/// A socket in the pod's network namespace, opened by a thread that ends there. What holds for the interface is set before there
/// is one.
fn enter(path: &Path, v6: bool) -> Result<Socket, AttachError> {
    let look = || -> io::Result<Result<Socket, AttachError>> {
        let socket = || {
            sysctl::disable_ra_and_dad("default")?;
            if v6 {
                sysctl::enable_ipv6("default")?;
            }
            Socket::route().map_err(AttachError::Inside)
        };
        Ok(socket())
    };
    let failed = |source| AttachError::Enter { path: path.to_owned(), source };
    let entered = sys::netns::run_in(&[path], look).map_err(failed)?.pop();
    entered.unwrap_or_else(|| Err(io::Error::other("nobody went there"))).map_err(failed)?
}

/// Brings the pod's interface up, with its addresses and the way out. Its index.
fn set_up(socket: &Socket, homes: &[AddressConfig]) -> Result<u32, NetlinkError> {
    let mut batch = Batch::new();
    link::up(&mut batch, INTERFACE);
    link::ask_link(&mut batch, INTERFACE);
    let found = socket.ask(batch)?.iter().find_map(link::read_link);
    let index = found.ok_or(NetlinkError::Noise { doing: "looking at the pod's interface" })?.index;
    let mut batch = Batch::new();
    for config in homes {
        link::add_address(&mut batch, index, config.address);
        link::add_default_route(&mut batch, index, config.gateway);
    }
    socket.ask(batch)?;
    Ok(index)
}

/// Whether packets pass an interface, and neighbours that look for its addresses are heard.
fn is_up(socket: &Socket, name: &str, index: u32, ips: &[IpAddr]) -> Result<bool, NetlinkError> {
    let mut up = socket.link(name)?.is_some_and(|link| link.running);
    for ip in ips {
        if let IpAddr::V6(ip) = ip {
            up = up && socket.has_joined_solicited_node(index, *ip)?;
        }
    }
    Ok(up)
}

/// Whether the bridge hears neighbours, and can look for them: it does that with its link-local address.
fn wakes(socket: &Socket, name: &str, index: u32, gateways: &[IpAddr]) -> Result<bool, NetlinkError> {
    let own = |a: &link::Address| a.index == index && a.ready && link::is_link_local(&a.net);
    Ok(is_up(socket, name, index, gateways)? && socket.addresses()?.iter().any(own))
}

/// Whether it came true in time.
fn wait(ready: impl Fn() -> Result<bool, NetlinkError>) -> Result<bool, NetlinkError> {
    let (begin, mut pause) = (Instant::now(), LOOK_AFTER);
    while !ready()? {
        if begin.elapsed() > UP_WITHIN {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    Ok(true)
}
