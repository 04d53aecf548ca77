//! Attaches a pod to the bridge.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use model::{ErrorClass, ErrorKind};

use super::host_ports::sockets;
use super::host_ports::{Forward, PortError, conntrack};
use super::ipam::{AddressConfig, AddressTaken};
use super::link::{self, Mac, Pair, PodLink, neighbor, traffic_shaping};
use super::netlink::{Batch, NetlinkError, Socket};
use super::setup::NotReady;
use super::state::{Bridge, BridgeLink};
use super::sysctl::{self, SysctlError};
use crate::{Attached, INTERFACE, Pod};

/// A pod that could not be attached. [`Bridge::detach`] removes what was created of it.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("cannot attach the pod to the bridge: it has no network namespace")]
    NoNamespace,
    #[error("pod address {0} is not in a pool of the built-in bridge (network.bridge.pools)")]
    Foreign(IpAddr),
    #[error(transparent)]
    Address(#[from] AddressTaken),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("opening the pod's network namespace {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("entering the pod's network namespace {}", path.display())]
    Enter { path: PathBuf, source: io::Error },
    #[error("setting sysctls in the pod's network namespace")]
    Prepare(#[from] SysctlError),
    #[error("creating the pod's network interface")]
    Link(#[source] NetlinkError),
    #[error("setting addresses and routes of the pod's network interface")]
    Inside(#[source] NetlinkError),
    #[error("setting the pod's nftables rules")]
    Rules(#[source] NetlinkError),
}

impl ErrorClass for AttachError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoNamespace | Self::Foreign(_) => ErrorKind::Precondition,
            Self::Address(e) => e.kind(),
            Self::Port(e) => e.kind(),
            Self::NotReady(e) => e.kind(),
            Self::Open { .. } | Self::Enter { .. } | Self::Prepare(_) => ErrorKind::Internal,
            Self::Link(_) | Self::Inside(_) | Self::Rules(_) => ErrorKind::Internal,
        }
    }
}

/// Time limit for an interface to come up: the kernel finishes that in the background.
const UP_WITHIN: Duration = Duration::from_secs(1);
/// The first pause between two checks; each next one is twice as long.
const LOOK_AFTER: Duration = Duration::from_micros(20);

impl Bridge {
    /// Creates the pod's interface with its reserved addresses, and opens its host ports.
    ///
    /// When it returns, packets pass. After an error, call [`Self::detach`].
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
        let outside = Socket::route().map_err(AttachError::Link)?;
        let mut warnings = Vec::new();
        if !forwards.is_empty() {
            self.hold_ports(&outside, &pod.id, &forwards, &mut warnings)?;
        }
        let namespace = File::open(path).map_err(|source| AttachError::Open { path: path.to_owned(), source })?;
        let inside = enter(path, ips.iter().any(IpAddr::is_ipv6))?;
        let link = self.pod_link(&pod.id, ips);
        self.admit(&pod.id, &link, &forwards)?;
        let (made, port) = self.connect(&outside, made, &link, &namespace)?;
        let index = set_up(&inside, &homes, made.mac).map_err(AttachError::Inside)?;
        limit(pod, (&outside, port), (&inside, index), &mut warnings)?;
        if !forwards.is_empty() {
            self.forward(&outside, &forwards, &mut warnings)?;
        }
        let up = wait(|| Ok(is_up(&inside, INTERFACE)? && are_ready(&inside, ips)?)).map_err(AttachError::Inside)?;
        if !up || !self.wait_for_host(&outside, &link.name, &homes).map_err(AttachError::Link)? {
            warnings.push(format!("{INTERFACE} was not ready within {} s", UP_WITHIN.as_secs()));
        }
        Ok(Attached { ips: ips.to_vec(), warnings })
    }

    /// Holds the pod's host ports, which must be free and at addresses of the host. They are the
    /// pod's in [`State`] already.
    ///
    /// [`State`]: super::state::State
    fn hold_ports(
        &self,
        outside: &Socket,
        pod: &str,
        forwards: &[Forward],
        warnings: &mut Vec<String>,
    ) -> Result<(), AttachError> {
        let addresses: BTreeSet<_> = forwards.iter().filter_map(|forward| forward.from.address).collect();
        for host_ip in addresses {
            if !outside.is_local(host_ip).map_err(PortError::Look)? {
                return Err(PortError::NotLocal { host_ip }.into());
            }
        }
        let (missing, room) = self.lock().ports.sockets.missing(pod);
        let bound = sockets::hold(&missing, &self.settings.bridge, room)?;
        if bound.beyond > 0 {
            let why = "the limit of sockets for host ports is reached";
            warnings.push(format!("{why}: {} host ports are free now, and not held", bound.beyond));
        }
        self.lock().ports.sockets.keep(pod, bound, Vec::new());
        Ok(())
    }

    /// Allows the pod's packets at the port of the bridge before that exists, and opens its host
    /// ports.
    fn admit(&self, pod: &str, link: &PodLink, forwards: &[Forward]) -> Result<(), AttachError> {
        let mut state = self.lock();
        // The interface belongs to the other pod and is not replaced.
        if self.is_of_another(&state, pod) {
            return Ok(());
        }
        state.attached.insert(pod.to_owned(), link.ips.clone());
        self.add_elements(&mut state, link, forwards).map_err(AttachError::Rules)
    }

    /// Creates the pair of interfaces, after creating the bridge again if it was removed. Returns
    /// the bridge and the index of the interface on the host.
    fn connect(
        &self,
        socket: &Socket,
        made: BridgeLink,
        pod: &PodLink,
        namespace: &File,
    ) -> Result<(BridgeLink, u32), AttachError> {
        let namespace = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
        let make = |made: BridgeLink| {
            let BridgeLink { index: bridge, mtu, mac: _ } = made;
            let mut batch = Batch::new();
            let pair = Pair { name: &pod.name, bridge, mtu, peer: INTERFACE, peer_mac: pod.mac, namespace };
            link::make_pair(&mut batch, &pair);
            pod.ips.iter().for_each(|ip| neighbor::add(&mut batch, bridge, *ip, pod.mac));
            link::request_link(&mut batch, &pod.name);
            let port = socket.request(batch)?.iter().find_map(link::read_link);
            let port = port.ok_or(NetlinkError::Noise { doing: "reading the pod's interface" })?.index;
            let mut batch = Batch::new();
            neighbor::add_to_bridge(&mut batch, port, pod.mac);
            socket.request(batch).map(|_| (made, port))
        };
        make(made).or_else(|error| {
            let now = self.make(&mut self.lock())?;
            if now == made {
                return Err(AttachError::Link(error));
            }
            make(now).map_err(AttachError::Link)
        })
    }

    fn wait_for_host(&self, socket: &Socket, name: &str, homes: &[AddressConfig]) -> Result<bool, NetlinkError> {
        let gateways: Vec<_> = homes.iter().map(|config| config.gateway).collect();
        let up = || Ok(is_up(socket, name)? && is_up(socket, &self.settings.bridge)? && are_ready(socket, &gateways)?);
        wait(up)
    }

    fn forward(&self, outside: &Socket, forwards: &[Forward], warnings: &mut Vec<String>) -> Result<(), AttachError> {
        if forwards.iter().any(|forward| !forward.from.v6) {
            sysctl::route_localnet(&self.settings.bridge).map_err(NotReady::from)?;
        }
        if forwards.iter().any(conntrack::is_udp) {
            let local: Vec<_> = outside.addresses().map_err(AttachError::Rules)?.iter().map(|a| a.net.addr()).collect();
            let forgotten = self
                .netfilter(|list| self.netfilter(|change| conntrack::forget_before((list, change), forwards, &local)));
            if let Err(error) = forgotten {
                let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
                let missing = "senders that used a UDP host port before may go on missing the pod";
                warnings.push(format!("{missing}: {error}{cause}"));
            }
        }
        Ok(())
    }
}

fn limit(
    pod: &Pod,
    (outside, port): (&Socket, u32),
    (inside, index): (&Socket, u32),
    warnings: &mut Vec<String>,
) -> Result<(), AttachError> {
    let mut able = true;
    if let Some(rate) = pod.bandwidth.ingress {
        able &= traffic_shaping::limit(outside, port, rate).map_err(AttachError::Link)?;
    }
    if let Some(rate) = pod.bandwidth.egress {
        able &= traffic_shaping::limit(inside, index, rate).map_err(AttachError::Inside)?;
    }
    if !able {
        warnings.push("this kernel has no token buckets (sch_tbf): the pod's bandwidth is not limited".to_owned());
    }
    Ok(())
}

/// Opens a socket in the pod's network namespace, in a thread that exits there. Settings of the
/// namespace that apply to the interface are written before the interface exists.
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
    entered.unwrap_or_else(|| Err(io::Error::other("the namespace was not entered"))).map_err(failed)?
}

/// Brings the pod's interface up, with its addresses and the default route, whose gateway is its
/// only neighbour. Returns its index.
fn set_up(socket: &Socket, homes: &[AddressConfig], gateway: Mac) -> Result<u32, NetlinkError> {
    let mut batch = Batch::new();
    link::no_link_local(&mut batch, INTERFACE);
    link::up(&mut batch, INTERFACE);
    link::request_link(&mut batch, INTERFACE);
    let found = socket.request(batch)?.iter().find_map(link::read_link);
    let index = found.ok_or(NetlinkError::Noise { doing: "reading the pod's interface" })?.index;
    let mut batch = Batch::new();
    for config in homes {
        link::add_address(&mut batch, index, IpNet::from(config.address.addr()));
        link::add_routes(&mut batch, index, config.gateway);
        neighbor::add(&mut batch, index, config.gateway, gateway);
    }
    socket.request(batch)?;
    Ok(index)
}

/// Returns whether packets pass an interface.
fn is_up(socket: &Socket, name: &str) -> Result<bool, NetlinkError> {
    Ok(socket.link(name)?.is_some_and(|link| link.running))
}

/// Returns whether the kernel accepts packets to these addresses: it activates IPv6 addresses in
/// the background.
fn are_ready(socket: &Socket, ips: &[IpAddr]) -> Result<bool, NetlinkError> {
    for ip in ips.iter().filter(|ip| ip.is_ipv6()) {
        if !socket.is_local(*ip)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether the condition became true in time.
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
