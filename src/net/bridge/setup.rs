//! Prepares the bridge: creates what pods need to be attached.

use std::collections::BTreeMap;

use ipnet::IpNet;
use model::{ErrorClass, ErrorKind};

use super::ipam;
use super::link::{self, Address, Link, PodLink, Route, host_routes, neighbor};
use super::netlink::{Batch, NetlinkError, Socket};
use super::settings::{MTU_MAX, MTU_MIN};
use super::state::{Bridge, BridgeLink, State};
use super::sysctl::{self, SysctlError};

/// A bridge to which no pod can be attached.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error(
        "address pool {pool} overlaps the host's route to {route} through {interface}: set other network.bridge.pools"
    )]
    Overlap { pool: IpNet, route: IpNet, interface: String },
    #[error(
        "bridge {name} belongs to another daemon: set another network.bridge.name and other pools, or network.mode, and restart"
    )]
    Taken { name: String },
    #[error(
        "network interface {name} already exists as {kind}, expected a bridge: remove it, or change network.bridge.name"
    )]
    NoBridge { name: String, kind: String },
    #[error("creating the bridge interface of the pod network")]
    Bridge(#[source] NetlinkError),
    #[error("creating the nftables rules of the bridge")]
    Rules(#[source] NetlinkError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

impl ErrorClass for NotReady {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Overlap { .. } | Self::Taken { .. } | Self::NoBridge { .. } => ErrorKind::Precondition,
            Self::Bridge(_) | Self::Rules(_) | Self::Sysctl(_) => ErrorKind::Internal,
        }
    }
}

/// The MTU if neither the setting nor a default route has one.
const MTU: u32 = 1500;

impl Bridge {
    /// Creates what is missing to attach pods, also after another process removed it: the bridge
    /// and its ports, addresses, rules.
    ///
    /// Returns warnings about settings of the host that affect pods.
    pub fn set_up(&self) -> Result<Vec<String>, NotReady> {
        let mut state = self.lock();
        self.make(&mut state)?;
        let dropping = state.rules.iter().flat_map(|rules| &rules.dropping);
        let warn = |chain: &String| {
            let effect = "pods may reach neither each other nor beyond this host, nor be reached";
            format!("the chain {chain} drops forwarded packets by default: {effect}")
        };
        Ok(dropping.map(warn).collect())
    }

    /// Checks whether the bridge exists or can be created, and changes nothing.
    pub fn check(&self) -> Result<(), NotReady> {
        let state = self.lock();
        self.acquire()?;
        let socket = Socket::route().map_err(NotReady::Bridge)?;
        let host = Host::read_host(&socket).map_err(NotReady::Bridge)?;
        let bridge = self.own_link(&host)?;
        self.check_overlap(&state, &host, bridge)
    }

    /// Returns the bridge, if it exists.
    fn own_link<'a>(&self, host: &'a Host) -> Result<Option<&'a Link>, NotReady> {
        let bridge = host.links.iter().find(|link| link.name == self.settings.bridge);
        match bridge.filter(|link| link.kind != "bridge") {
            Some(other) => {
                let kind = if other.kind.is_empty() { "hardware" } else { &other.kind }.to_owned();
                Err(NotReady::NoBridge { name: other.name.clone(), kind })
            }
            None => Ok(bridge),
        }
    }

    /// Ensures that the bridge and the rules are as expected.
    pub(super) fn ensure(&self, state: &mut State) -> Result<BridgeLink, NotReady> {
        match state.made {
            Some(made) => {
                self.check_rules(state).map_err(NotReady::Rules)?;
                Ok(made)
            }
            None => self.make(state),
        }
    }

    /// Creates what is missing and repairs the rest.
    pub(super) fn make(&self, state: &mut State) -> Result<BridgeLink, NotReady> {
        state.made = None;
        self.acquire()?;
        let socket = Socket::route().map_err(NotReady::Bridge)?;
        let host = Host::read_host(&socket).map_err(NotReady::Bridge)?;
        let bridge = self.own_link(&host)?;
        self.check_overlap(state, &host, bridge)?;
        let mtu = self.settings.mtu.or(host_routes::uplink_mtu(&host.routes, &host.links)).unwrap_or(MTU);
        let mtu = mtu.clamp(MTU_MIN, MTU_MAX);
        let made = self.make_bridge(state, &socket, bridge, mtu).map_err(NotReady::Bridge)?;
        let (nets, mut batch) = self.addresses(state, &host, made.index);
        self.prepare_kernel(&nets)?;
        state.nets = nets;
        let links = self.pod_links(state);
        mend_ports(&mut batch, &host, made.index, &links);
        neighbor::mend(&socket, &mut batch, made.index, &links).map_err(NotReady::Bridge)?;
        socket.request(batch).map_err(NotReady::Bridge)?;
        let State { ports, attached, .. } = state;
        ports.sockets.hold_missing(&self.settings.bridge, |pod| attached.contains_key(pod));
        self.check_rules(state).map_err(NotReady::Rules)?;
        if state.ports.all().iter().any(|forward| !forward.from.v6) {
            sysctl::route_localnet(&self.settings.bridge)?;
        }
        state.mac = Some(made.mac);
        Ok(*state.made.insert(made))
    }

    fn check_overlap(&self, state: &State, host: &Host, bridge: Option<&Link>) -> Result<(), NotReady> {
        let index = bridge.map(|link| link.index);
        for pool in state.pool.nets() {
            let settled = host.addresses.iter().any(|a| Some(a.index) == index && a.net == ipam::gateway(pool));
            let clash = host_routes::clash(pool, settled, index, &host.routes);
            if let Some(route) = clash.or_else(|| host_routes::clash(pool, true, index, &host.own_routes())) {
                let by = host.links.iter().find(|link| Some(link.index) == route.index);
                let interface = by.map_or_else(|| "several interfaces".to_owned(), |link| link.name.clone());
                return Err(NotReady::Overlap { pool: *pool, route: route.to, interface });
            }
        }
        Ok(())
    }

    fn make_bridge(
        &self,
        state: &State,
        socket: &Socket,
        found: Option<&Link>,
        mtu: u32,
    ) -> Result<BridgeLink, NetlinkError> {
        let name = &self.settings.bridge;
        let made = |link: &Link| BridgeLink { index: link.index, mtu, mac: link.mac };
        let mut batch = Batch::new();
        match found {
            Some(link) if link.up && link.mtu == mtu => return Ok(made(link)),
            Some(link) => link::set_mtu(&mut batch, link.index, mtu),
            None => link::make_bridge(&mut batch, name, state.mac.unwrap_or_else(|| ipam::bridge_mac(name)), mtu),
        }
        link::up(&mut batch, name);
        link::request_link(&mut batch, name);
        let link = socket.request(batch)?.iter().find_map(link::read_link);
        link.as_ref().or(found).map(made).ok_or(NetlinkError::Noise { doing: "reading the bridge" })
    }

    fn prepare_kernel(&self, nets: &[IpNet]) -> Result<(), SysctlError> {
        let name = &self.settings.bridge;
        sysctl::disable_ra_and_dad(name)?;
        sysctl::check_sources(name)?;
        if nets.iter().any(|net| matches!(net, IpNet::V4(_))) {
            sysctl::forward_ipv4()?;
        }
        if nets.iter().any(|net| matches!(net, IpNet::V6(_))) {
            sysctl::no_link_local(name)?;
            sysctl::enable_ipv6(name)?;
            sysctl::forward_ipv6()?;
        } else {
            sysctl::disable_ipv6(name)?;
        }
        Ok(())
    }

    /// Returns the networks of the pods, and the bridge's addresses in them: those of the pools,
    /// and of older pools that pods still use.
    fn addresses(&self, state: &mut State, host: &Host, index: u32) -> (Vec<IpNet>, Batch) {
        let mut batch = Batch::new();
        let mut nets = state.pool.nets().to_vec();
        let wanted: Vec<_> = state.pool.gateways().collect();
        let there: Vec<_> = host.addresses.iter().filter(|a| a.index == index).collect();
        for gateway in wanted.iter().filter(|net| !there.iter().any(|a| a.net == **net)) {
            link::add_address(&mut batch, index, *gateway);
        }
        for old in there.iter().filter(|a| !wanted.contains(&a.net)) {
            if !link::is_link_local(&old.net) && state.pool.taken().any(|(ip, _)| old.net.contains(ip)) {
                nets.push(old.net.trunc());
                state.pool.keep(old.net.addr());
            } else {
                link::remove_address(&mut batch, **old);
            }
        }
        (nets, batch)
    }
}

/// Makes the interfaces of pods ports of the bridge that do not learn addresses, also those that an
/// earlier version created.
fn mend_ports(batch: &mut Batch, host: &Host, bridge: u32, pods: &[PodLink]) {
    let by_name: BTreeMap<_, _> = host.links.iter().map(|link| (link.name.as_str(), link)).collect();
    for (pod, link) in pods.iter().filter_map(|pod| Some((pod, by_name.get(pod.name.as_str())?))) {
        if link.master != Some(bridge) || !link.closed {
            link::join(batch, &pod.name, bridge);
            neighbor::add_to_bridge(batch, link.index, pod.mac);
        }
    }
}

/// The state of the host.
struct Host {
    links: Vec<Link>,
    addresses: Vec<Address>,
    routes: Vec<Route>,
}

impl Host {
    /// Addresses of the host in pools to which the host has no other route.
    fn own_routes(&self) -> Vec<Route> {
        let own = |address: &Address| Route { to: address.net.addr().into(), index: Some(address.index), metric: 0 };
        self.addresses.iter().map(own).collect()
    }

    fn read_host(socket: &Socket) -> Result<Self, NetlinkError> {
        Ok(Self { links: socket.links()?, addresses: socket.addresses()?, routes: socket.routes()? })
    }
}
