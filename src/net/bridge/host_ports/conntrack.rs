//! Connections that the kernel remembers.
//!
//! A packet of a connection that is known already sees no rule. UDP has no beginning and no end, so a sender that never stops
//! would be served by what its first packet found for ever: by a pod that is gone, or by nobody.

use std::net::{IpAddr, SocketAddr};

use super::{Forward, UDP};
use crate::bridge::link;
use crate::bridge::netlink::{Batch, DUMP, NetlinkError, Operation, Reply, Socket, find, find_in};
use crate::bridge::nft::octets;

const SUBSYSTEM: u16 = 1;
const IPCTNL_MSG_CT_GET: u16 = SUBSYSTEM << 8 | 1;
const IPCTNL_MSG_CT_DELETE: u16 = SUBSYSTEM << 8 | 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
/// Protocol and destination port; addresses and source ports may be anything.
const PROTOCOL_AND_PORT: u32 = 1 << 3 | 1 << 5;

/// A connection as its sender began it, and where its answers come from.
#[derive(Debug)]
struct Flow {
    to: SocketAddr,
    served_by: SocketAddr,
    /// What names it to the kernel.
    name: Vec<u8>,
    id: Vec<u8>,
}

/// Forgets what came to a port of the host before it led to this pod.
pub(in crate::bridge) fn forget_before(
    socket: &Socket,
    forwards: &[Forward],
    local: &[IpAddr],
) -> Result<(), NetlinkError> {
    forget(socket, forwards, |forward, flow| {
        let meant = forward.from.address.map_or_else(|| local.contains(&flow.to.ip()), |ip| ip == flow.to.ip());
        meant && flow.served_by != forward.to
    })
}

/// Forgets what came to a port of the host while it led to a pod that is going.
pub(in crate::bridge) fn forget_after(socket: &Socket, forwards: &[Forward]) -> Result<(), NetlinkError> {
    forget(socket, forwards, |forward, flow| flow.served_by == forward.to)
}

pub(in crate::bridge) fn is_udp(forward: &Forward) -> bool {
    forward.from.protocol == UDP
}

fn forget(socket: &Socket, forwards: &[Forward], stale: impl Fn(&Forward, &Flow) -> bool) -> Result<(), NetlinkError> {
    for forward in forwards.iter().filter(|f| is_udp(f)) {
        let family = if forward.from.v6 { 10 } else { 2 };
        let mut batch = Batch::new();
        ask(&mut batch, family, forward);
        let flows: Vec<_> = socket.ask(batch)?.iter().filter_map(read).collect();
        let mut batch = Batch::new();
        for flow in flows.iter().filter(|flow| flow.to.port() == forward.from.port && stale(forward, flow)) {
            let step = Operation::or("forgetting a connection", &[libc::ENOENT]);
            let mut message = batch.message(step, IPCTNL_MSG_CT_DELETE, 0, &[family, 0, 0, 0]);
            message.bytes(CTA_TUPLE_ORIG | NESTED, &flow.name).bytes(CTA_ID, &flow.id);
        }
        socket.ask(batch)?;
    }
    Ok(())
}

const NESTED: u16 = 0x8000;

/// Kernels before 5.8 do not know the filter and send all there are; whoever reads looks again.
fn ask(batch: &mut Batch, family: u8, forward: &Forward) {
    let mut message = batch.message(Operation::new("listing connections"), IPCTNL_MSG_CT_GET, DUMP, &[family, 0, 0, 0]);
    message.nest(CTA_TUPLE_ORIG, |m| {
        m.nest(CTA_TUPLE_IP, |m| {
            let any = if forward.from.v6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) };
            let source = if forward.from.v6 { 3 } else { 1 };
            m.bytes(source, &octets(any)).bytes(source + 1, &octets(any));
        });
        m.nest(CTA_TUPLE_PROTO, |m| {
            m.byte(CTA_PROTO_NUM, UDP).bytes(CTA_PROTO_DST_PORT, &forward.from.port.to_be_bytes());
        });
    });
    message.nest(CTA_FILTER, |m| {
        m.u32(CTA_FILTER_ORIG_FLAGS, PROTOCOL_AND_PORT).u32(CTA_FILTER_REPLY_FLAGS, 0);
    });
}

fn read(reply: &Reply) -> Option<Flow> {
    let attributes = reply.body.get(4..)?;
    let (sent, answered) = (find(attributes, CTA_TUPLE_ORIG)?, find(attributes, CTA_TUPLE_REPLY)?);
    let protocol = |tuple| find_in(tuple, [CTA_TUPLE_PROTO, CTA_PROTO_NUM]);
    // Source and destination: addresses are 1 and 2 in IPv4, 3 and 4 in IPv6, ports 2 and 3 in both.
    let end = |tuple: &[u8], destination: u16| {
        let ip = find_in(tuple, [CTA_TUPLE_IP, 1 + destination])
            .or_else(|| find_in(tuple, [CTA_TUPLE_IP, 3 + destination]))?;
        let port = find_in(tuple, [CTA_TUPLE_PROTO, 2 + destination])?;
        Some(SocketAddr::new(link::ip(ip)?, u16::from_be_bytes(*port.first_chunk()?)))
    };
    if protocol(sent)? != [UDP] {
        return None;
    }
    let id = find(attributes, CTA_ID)?.to_vec();
    Some(Flow { to: end(sent, 1)?, served_by: end(answered, 0)?, name: sent.to_vec(), id })
}
