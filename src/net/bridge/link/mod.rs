//! Links, addresses and routes over rtnetlink.

#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing {
    /// Reads a reply with every parser.
    pub(in crate::bridge) fn read(reply: &super::Reply) {
        drop((super::read_link(reply), super::read_address(reply), super::read_route(reply)));
        super::neighbor::read(reply, 3);
    }
}
pub(super) mod host_routes;
pub(super) mod neighbor;
mod removal;
pub(super) mod traffic_shaping;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::netlink::{
    Batch, CREATE, DUMP, EXCLUSIVE, Message, NetlinkError, Operation, Reply, Socket, find, find_in, text, u32_at,
};

pub use removal::LinkRemoval;
pub(super) use removal::PendingLink;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_LEARNING: u16 = 8;
const IFLA_BRPORT_UNICAST_FLOOD: u16 = 9;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const AF_INET6: u16 = 10;
const VETH_INFO_PEER: u16 = 1;
/// Omits counters, which are most of a response.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 2;
const IFA_F_TENTATIVE: u8 = 0x40;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_BOOT: u8 = 3;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RT_SCOPE_LINK: u8 = 253;

const IFF_UP: u32 = 1;
const IF_OPER_UP: u8 = 6;

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// "bridge", "veth"; empty for hardware.
    pub(super) kind: String,
    pub(super) mtu: u32,
    /// The bridge that the interface is a port of.
    pub(super) master: Option<u32>,
    pub(super) mac: Mac,
    /// A port with the settings of a pod's port: see [`make_port`].
    pub(super) closed: bool,
    pub(super) up: bool,
    /// Packets pass.
    pub(super) running: bool,
}

/// A pod's interface on the host, and the pod's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodLink {
    pub(super) name: String,
    /// The Ethernet address of the pod's end.
    pub(super) mac: Mac,
    pub(super) ips: Vec<IpAddr>,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) index: u32,
    pub(super) net: IpNet,
    /// Usable: duplicate address detection is complete.
    pub(super) ready: bool,
}

/// A route of the main table with a destination interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) to: IpNet,
    /// `None` for a route with several next hops.
    pub(super) index: Option<u32>,
    pub(super) metric: u32,
}

/// The two ends of a veth pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) name: &'a str,
    pub(super) bridge: u32,
    pub(super) mtu: u32,
    pub(super) peer: &'a str,
    pub(super) peer_mac: Mac,
    /// The descriptor of the peer's network namespace.
    pub(super) namespace: u32,
}

/// Index, flags, and the mask of flags to change.
fn link_head(index: u32, flags: u32) -> [u8; 16] {
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&flags.to_ne_bytes());
    head[12..16].copy_from_slice(&flags.to_ne_bytes());
    head
}

/// Creates a bridge with a fixed Ethernet address: without one it would change with the ports.
pub(super) fn make_bridge(batch: &mut Batch, name: &str, mac: Mac, mtu: u32) {
    let step = Operation::or("creating the bridge", &[libc::EEXIST]);
    let mut message = batch.message(step, RTM_NEWLINK, CREATE | EXCLUSIVE, &link_head(0, 0));
    message.text(IFLA_IFNAME, name).bytes(IFLA_ADDRESS, &mac).u32(IFLA_MTU, mtu).nest(IFLA_LINKINFO, |m| {
        m.text(IFLA_INFO_KIND, "bridge");
    });
}

/// Creates a veth pair: one end is up and a port of the bridge, the other is in another namespace.
pub(super) fn make_pair(batch: &mut Batch, pair: &Pair<'_>) {
    let step = Operation::new("creating the pod's veth pair");
    let mut message = batch.message(step, RTM_NEWLINK, CREATE | EXCLUSIVE, &link_head(0, IFF_UP));
    message.text(IFLA_IFNAME, pair.name).u32(IFLA_MTU, pair.mtu).u32(IFLA_MASTER, pair.bridge);
    message.nest(IFLA_LINKINFO, |m| {
        m.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |m| {
            m.nest(VETH_INFO_PEER, |m| {
                m.fixed(&link_head(0, 0)).text(IFLA_IFNAME, pair.peer).u32(IFLA_MTU, pair.mtu);
                m.bytes(IFLA_ADDRESS, &pair.peer_mac).u32(IFLA_NET_NS_FD, pair.namespace);
            });
        });
    });
    drop(message);
    make_port(batch, pair.name);
}

/// Makes an interface a port of the bridge again.
pub(super) fn join(batch: &mut Batch, name: &str, bridge: u32) {
    let step = Operation::or("adding a pod's interface to the bridge", &[libc::ENODEV]);
    batch.message(step, RTM_NEWLINK, 0, &link_head(0, IFF_UP)).text(IFLA_IFNAME, name).u32(IFLA_MASTER, bridge);
    make_port(batch, name);
}

/// Enables hairpin mode, for a pod that connects to its own host port. Disables learning and
/// flooding, so the port receives no frames for unknown Ethernet addresses.
fn make_port(batch: &mut Batch, name: &str) {
    let step = Operation::or("setting up a port of the bridge", &[libc::ENODEV]);
    batch.message(step, RTM_NEWLINK, 0, &link_head(0, 0)).text(IFLA_IFNAME, name).nest(IFLA_LINKINFO, |m| {
        m.text(IFLA_INFO_SLAVE_KIND, "bridge").nest(IFLA_INFO_SLAVE_DATA, |m| {
            m.byte(IFLA_BRPORT_MODE, 1).byte(IFLA_BRPORT_LEARNING, 0).byte(IFLA_BRPORT_UNICAST_FLOOD, 0);
        });
    });
}

/// Disables the link-local address of an interface, with which every address of that network would
/// be a neighbour. Does nothing on kernels without IPv6.
pub(super) fn no_link_local(batch: &mut Batch, name: &str) {
    let step = Operation::or("disabling the IPv6 link-local address", &[libc::EAFNOSUPPORT, libc::EINVAL]);
    batch.message(step, RTM_NEWLINK, 0, &link_head(0, 0)).text(IFLA_IFNAME, name).nest(IFLA_AF_SPEC, |m| {
        m.nest(AF_INET6, |m| {
            m.byte(IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
        });
    });
}

pub(super) fn up(batch: &mut Batch, name: &str) {
    batch
        .message(Operation::new("bringing the interface up"), RTM_NEWLINK, 0, &link_head(0, IFF_UP))
        .text(IFLA_IFNAME, name);
}

/// Takes an interface down.
pub(super) fn down(batch: &mut Batch, name: &str) {
    let mut head = link_head(0, IFF_UP);
    head[8..12].fill(0);
    batch.message(Operation::new("taking the pod's interface down"), RTM_NEWLINK, 0, &head).text(IFLA_IFNAME, name);
}

pub(super) fn set_mtu(batch: &mut Batch, index: u32, mtu: u32) {
    batch.message(Operation::new("setting the MTU"), RTM_NEWLINK, 0, &link_head(index, 0)).u32(IFLA_MTU, mtu);
}

/// Removes an interface with its peer; a missing one is not an error.
pub(super) fn remove(batch: &mut Batch, name: &str) {
    let step = Operation::or("removing the pod's interface", &[libc::ENODEV]);
    batch.message(step, RTM_DELLINK, 0, &link_head(0, 0)).text(IFLA_IFNAME, name);
}

/// Adds an address, and so a route to its network, without duplicate address detection.
pub(super) fn add_address(batch: &mut Batch, index: u32, net: IpNet) {
    let step = Operation::or("setting an address", &[libc::EEXIST]);
    let mut message = batch.message(step, RTM_NEWADDR, CREATE | EXCLUSIVE, &address_head(index, net));
    match net {
        IpNet::V4(net) => {
            message.bytes(IFA_LOCAL, &net.addr().octets()).bytes(IFA_ADDRESS, &net.addr().octets());
            // For a single address the kernel would use the address itself.
            if net.prefix_len() < 31 {
                message.bytes(IFA_BROADCAST, &net.broadcast().octets());
            }
        }
        IpNet::V6(net) => {
            message.bytes(IFA_ADDRESS, &net.addr().octets()).u32(IFA_FLAGS, IFA_F_NODAD);
        }
    }
}

pub(super) fn remove_address(batch: &mut Batch, address: Address) {
    let step = Operation::or("removing an address of another pool", &[libc::EADDRNOTAVAIL, libc::ENODEV]);
    let mut message = batch.message(step, RTM_DELADDR, 0, &address_head(address.index, address.net));
    match address.net.addr() {
        IpAddr::V4(ip) => message.bytes(IFA_LOCAL, &ip.octets()),
        IpAddr::V6(ip) => message.bytes(IFA_ADDRESS, &ip.octets()),
    };
}

fn address_head(index: u32, net: IpNet) -> [u8; 8] {
    let [a, b, c, d] = index.to_ne_bytes();
    [family(net.addr()), net.prefix_len(), 0, 0, a, b, c, d]
}

/// Adds a route to the gateway, and a default route through it.
pub(super) fn add_routes(batch: &mut Batch, index: u32, gateway: IpAddr) {
    let length = if gateway.is_ipv4() { 32 } else { 128 };
    let step = Operation::or("setting the route to the gateway", &[libc::EEXIST]);
    let head = [family(gateway), length, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, RT_SCOPE_LINK, RTN_UNICAST, 0, 0, 0, 0];
    destination(&mut batch.message(step, RTM_NEWROUTE, CREATE | EXCLUSIVE, &head), RTA_DST, gateway)
        .u32(RTA_OIF, index);
    let step = Operation::or("setting the default route", &[libc::EEXIST]);
    let head = [family(gateway), 0, 0, 0, RT_TABLE_MAIN, RTPROT_BOOT, 0, RTN_UNICAST, 0, 0, 0, 0];
    let mut message = batch.message(step, RTM_NEWROUTE, CREATE | EXCLUSIVE, &head);
    destination(&mut message, RTA_GATEWAY, gateway).u32(RTA_OIF, index);
}

fn destination<'m, 'b>(message: &'m mut Message<'b>, kind: u16, ip: IpAddr) -> &'m mut Message<'b> {
    match ip {
        IpAddr::V4(ip) => message.bytes(kind, &ip.octets()),
        IpAddr::V6(ip) => message.bytes(kind, &ip.octets()),
    }
}

pub(super) fn is_link_local(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local())
}

fn family(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    }
}

impl Socket {
    pub(super) fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let mut batch = Batch::new();
        request_links(&mut batch, "listing interfaces", DUMP);
        Ok(self.request(batch)?.iter().filter_map(read_link).collect())
    }

    /// Returns the interface of that name. The kernel first finishes pending link events.
    pub(super) fn link(&self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut batch = Batch::new();
        request_link(&mut batch, name);
        match self.request(batch) {
            Ok(replies) => Ok(replies.iter().find_map(read_link)),
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn addresses(&self) -> Result<Vec<Address>, NetlinkError> {
        let mut batch = Batch::new();
        batch.message(Operation::new("listing addresses"), RTM_GETADDR, DUMP, &[0; 8]);
        Ok(self.request(batch)?.iter().filter_map(read_address).collect())
    }

    /// Returns whether the address is one of the host's own.
    pub(super) fn is_local(&self, address: IpAddr) -> Result<bool, NetlinkError> {
        let mut head = [0; 12];
        (head[0], head[1]) = (family(address), if address.is_ipv4() { 32 } else { 128 });
        let mut batch = Batch::new();
        destination(&mut batch.message(Operation::new("reading a route"), RTM_GETROUTE, 0, &head), RTA_DST, address);
        match self.request(batch) {
            Ok(replies) => Ok(replies.iter().any(|r| r.kind == RTM_NEWROUTE && r.body.get(7) == Some(&RTN_LOCAL))),
            // No route, or one of type unreachable or prohibit.
            Err(NetlinkError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn routes(&self) -> Result<Vec<Route>, NetlinkError> {
        let mut batch = Batch::new();
        batch.message(Operation::new("listing routes"), RTM_GETROUTE, DUMP, &[0; 12]);
        Ok(self.request(batch)?.iter().filter_map(read_route).collect())
    }
}

/// Adds a request for one interface, whose response follows those of all earlier messages.
pub(super) fn request_link(batch: &mut Batch, name: &str) {
    request_links(batch, "reading an interface", 0).text(IFLA_IFNAME, name);
}

fn request_links<'a>(batch: &'a mut Batch, doing: &'static str, flags: u16) -> Message<'a> {
    let mut message = batch.message(Operation::new(doing), RTM_GETLINK, flags, &link_head(0, 0));
    message.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    message
}

pub(super) fn read_link(reply: &Reply) -> Option<Link> {
    let body = Some(&reply.body).filter(|_| reply.kind == RTM_NEWLINK)?;
    let attributes = body.get(16..)?;
    let number = |kind| find(attributes, kind).and_then(|v| u32_at(v, 0));
    Some(Link {
        index: u32_at(body, 4)?,
        name: find(attributes, IFLA_IFNAME).map(text)?,
        kind: find_in(attributes, [IFLA_LINKINFO, IFLA_INFO_KIND]).map(text).unwrap_or_default(),
        mtu: number(IFLA_MTU)?,
        master: number(IFLA_MASTER),
        mac: find(attributes, IFLA_ADDRESS).and_then(|mac| mac.try_into().ok()).unwrap_or_default(),
        closed: is_closed(attributes),
        up: u32_at(body, 8)? & IFF_UP != 0,
        running: find(attributes, IFLA_OPERSTATE) == Some(&[IF_OPER_UP]),
    })
}

fn is_closed(attributes: &[u8]) -> bool {
    let port = find_in(attributes, [IFLA_LINKINFO, IFLA_INFO_SLAVE_DATA]).unwrap_or_default();
    let has = |kind, value: u8| find(port, kind) == Some(&[value]);
    has(IFLA_BRPORT_MODE, 1) && has(IFLA_BRPORT_LEARNING, 0) && has(IFLA_BRPORT_UNICAST_FLOOD, 0)
}

fn read_address(reply: &Reply) -> Option<Address> {
    let body = Some(&reply.body).filter(|_| reply.kind == RTM_NEWADDR)?;
    let attributes = body.get(8..)?;
    let own = find(attributes, IFA_LOCAL).or_else(|| find(attributes, IFA_ADDRESS))?;
    let net = IpNet::new(ip(own)?, *body.get(1)?).ok()?;
    Some(Address { index: u32_at(body, 4)?, net, ready: body.get(2)? & IFA_F_TENTATIVE == 0 })
}

fn read_route(reply: &Reply) -> Option<Route> {
    let body = Some(&reply.body).filter(|_| reply.kind == RTM_NEWROUTE)?;
    let attributes = body.get(12..)?;
    let number = |kind| find(attributes, kind).and_then(|v| u32_at(v, 0));
    let table = number(RTA_TABLE).unwrap_or_else(|| u32::from(body[4]));
    if table != u32::from(RT_TABLE_MAIN) || body[7] != RTN_UNICAST {
        return None;
    }
    let any = if body[0] == 2 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let to = find(attributes, RTA_DST).map_or(Some(any), ip)?;
    let to = IpNet::new(to, body[1]).ok()?;
    Some(Route { to, index: number(RTA_OIF), metric: number(RTA_PRIORITY).unwrap_or_default() })
}

/// Returns the bytes of an address.
pub(super) fn ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}
