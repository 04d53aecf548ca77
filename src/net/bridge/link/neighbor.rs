//! Permanent neighbour entries, which no packet can change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Mac, PodLink, destination, family, ip};
use crate::bridge::netlink::{
    Batch, CREATE, DUMP, NetlinkError, Operation, REPLACE, Reply, Socket, find, u16_at, u32_at,
};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_IFINDEX: u16 = 8;

const AF_BRIDGE: u8 = 7;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NTF_MASTER: u8 = 4;

fn head(family: u8, index: u32, state: u16, flags: u8) -> [u8; 12] {
    let [a, b, c, d] = index.to_ne_bytes();
    let [e, f] = state.to_ne_bytes();
    [family, 0, 0, 0, a, b, c, d, e, f, flags, 0]
}

/// Adds a permanent neighbour entry.
pub(in crate::bridge) fn add(batch: &mut Batch, index: u32, address: IpAddr, mac: Mac) {
    let step = Operation::new("setting a neighbour");
    let head = head(family(address), index, NUD_PERMANENT, 0);
    let mut message = batch.message(step, RTM_NEWNEIGH, CREATE | REPLACE, &head);
    destination(&mut message, NDA_DST, address).bytes(NDA_LLADDR, &mac);
}

/// Removes a neighbour entry; a missing one is not an error.
pub(in crate::bridge) fn remove(batch: &mut Batch, index: u32, address: IpAddr) {
    let step = Operation::or("removing a neighbour", &[libc::ENOENT, libc::ENODEV, libc::EINVAL]);
    let head = head(family(address), index, 0, 0);
    destination(&mut batch.message(step, RTM_DELNEIGH, 0, &head), NDA_DST, address);
}

/// Adds a permanent entry for a pod's Ethernet address at this port of the bridge.
pub(in crate::bridge) fn add_to_bridge(batch: &mut Batch, port: u32, mac: Mac) {
    let step = Operation::new("adding the pod's Ethernet address to the bridge");
    let head = head(AF_BRIDGE, port, NUD_NOARP, NTF_MASTER);
    batch.message(step, RTM_NEWNEIGH, CREATE | REPLACE, &head).bytes(NDA_LLADDR, &mac);
}

/// Replaces the bridge's permanent neighbours by those of these pods.
pub(in crate::bridge) fn mend(
    socket: &Socket,
    batch: &mut Batch,
    bridge: u32,
    links: &[PodLink],
) -> Result<(), NetlinkError> {
    let mut wanted: BTreeSet<(IpAddr, Mac)> =
        links.iter().flat_map(|link| link.ips.iter().map(|ip| (*ip, link.mac))).collect();
    for found in socket.permanent_neighbors(bridge)? {
        if !wanted.remove(&found) && !wanted.iter().any(|(address, _)| *address == found.0) {
            remove(batch, bridge, found.0);
        }
    }
    wanted.into_iter().for_each(|(address, mac)| add(batch, bridge, address, mac));
    Ok(())
}

impl Socket {
    fn permanent_neighbors(&self, index: u32) -> Result<Vec<(IpAddr, Mac)>, NetlinkError> {
        let mut batch = Batch::new();
        let step = Operation::new("listing neighbours");
        // Kernels before 4.6 ignore the filter and send those of all interfaces.
        batch.message(step, RTM_GETNEIGH, DUMP, &head(0, 0, 0, 0)).u32(NDA_IFINDEX, index);
        Ok(self.request(batch)?.iter().filter_map(|reply| read(reply, index)).collect())
    }
}

pub(super) fn read(reply: &Reply, index: u32) -> Option<(IpAddr, Mac)> {
    let body = Some(&reply.body).filter(|_| reply.kind == RTM_NEWNEIGH)?;
    let permanent = u16_at(body, 8)? & NUD_PERMANENT != 0;
    if u32_at(body, 4)? != index || !permanent || !matches!(body.first()?, 2 | 10) {
        return None;
    }
    let attributes = body.get(12..)?;
    Some((ip(find(attributes, NDA_DST)?)?, find(attributes, NDA_LLADDR)?.try_into().ok()?))
}
