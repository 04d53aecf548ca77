//! Removes entries of the kernel's connection tracking.
//!
//! Packets of a tracked connection skip the nat rules. A UDP flow expires only when its sender
//! pauses, so a steady sender would keep the target of its first packet: a pod that was removed, or
//! none.

use std::collections::BTreeMap;
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
/// The fields that a filter compares: the protocol and the destination port.
const PROTOCOL: u32 = 1 << 3;
const PORT: u32 = 1 << 5;

/// A connection as its sender sees it, and the source of its replies.
#[derive(Debug)]
struct Flow {
    to: SocketAddr,
    served_by: SocketAddr,
    /// The attribute that identifies it to the kernel.
    name: Vec<u8>,
    id: Vec<u8>,
}

/// Connections that one request removes: bounds the memory when senders fill the table.
const AT_ONCE: usize = 512;

/// Removes the connections to host ports from before they led to this pod. `change` and `list` are
/// different sockets.
pub(in crate::bridge) fn forget_before(
    (list, change): (&Socket, &Socket),
    forwards: &[Forward],
    local: &[IpAddr],
) -> Result<(), NetlinkError> {
    forget(list, change, forwards, |forward, flow| {
        let meant = forward.from.address.map_or_else(|| local.contains(&flow.to.ip()), |ip| ip == flow.to.ip());
        meant && flow.served_by != forward.to
    })
}

/// Removes the connections to host ports of a pod that is being detached. `change` and `list` are
/// different sockets.
pub(in crate::bridge) fn forget_after(
    (list, change): (&Socket, &Socket),
    forwards: &[Forward],
) -> Result<(), NetlinkError> {
    forget(list, change, forwards, |forward, flow| flow.served_by == forward.to)
}

pub(in crate::bridge) fn is_udp(forward: &Forward) -> bool {
    forward.from.protocol == UDP
}

/// The kernel walks all connections for each list, so one list serves all ports of a family.
fn forget(
    list: &Socket,
    change: &Socket,
    forwards: &[Forward],
    stale: impl Fn(&Forward, &Flow) -> bool,
) -> Result<(), NetlinkError> {
    for v6 in [false, true] {
        let mut by_port: BTreeMap<u16, Vec<&Forward>> = BTreeMap::new();
        for forward in forwards.iter().filter(|f| is_udp(f) && f.from.v6 == v6) {
            by_port.entry(forward.from.port).or_default().push(forward);
        }
        let only = match by_port.keys().collect::<Vec<_>>()[..] {
            [] => continue,
            [port] => Some(*port),
            _ => None,
        };
        let mut batch = Batch::new();
        add_dump(&mut batch, v6, only);
        let (mut flows, mut outcome) = (Vec::new(), Ok(()));
        list.request_each(batch, |reply| {
            let Some(flow) = read(&reply).filter(|_| outcome.is_ok()) else { return };
            let of_port = by_port.get(&flow.to.port());
            if of_port.is_some_and(|forwards| forwards.iter().any(|forward| stale(forward, &flow))) {
                flows.push(flow);
            }
            if flows.len() == AT_ONCE {
                outcome = remove(change, v6, &flows);
                flows.clear();
            }
        })?;
        outcome?;
        remove(change, v6, &flows)?;
    }
    Ok(())
}

fn remove(socket: &Socket, v6: bool, flows: &[Flow]) -> Result<(), NetlinkError> {
    let mut batch = Batch::new();
    for flow in flows {
        let step = Operation::or("removing a tracked connection", &[libc::ENOENT]);
        let mut message = batch.message(step, IPCTNL_MSG_CT_DELETE, 0, &[family(v6), 0, 0, 0]);
        message.bytes(CTA_TUPLE_ORIG | NESTED, &flow.name).bytes(CTA_ID, &flow.id);
    }
    socket.request(batch).map(drop)
}

fn family(v6: bool) -> u8 {
    if v6 { 10 } else { 2 }
}

const NESTED: u16 = 0x8000;

/// Requests the UDP connections to one port or to any. Kernels before 5.8 ignore the filter and
/// send all connections; so the reader filters again.
fn add_dump(batch: &mut Batch, v6: bool, port: Option<u16>) {
    let step = Operation::new("listing connections");
    let mut message = batch.message(step, IPCTNL_MSG_CT_GET, DUMP, &[family(v6), 0, 0, 0]);
    message.nest(CTA_TUPLE_ORIG, |m| {
        m.nest(CTA_TUPLE_IP, |m| {
            let any = if v6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) };
            let source = if v6 { 3 } else { 1 };
            m.bytes(source, &octets(any)).bytes(source + 1, &octets(any));
        });
        m.nest(CTA_TUPLE_PROTO, |m| {
            m.byte(CTA_PROTO_NUM, UDP).bytes(CTA_PROTO_DST_PORT, &port.unwrap_or_default().to_be_bytes());
        });
    });
    message.nest(CTA_FILTER, |m| {
        let flags = PROTOCOL | if port.is_some() { PORT } else { 0 };
        m.u32(CTA_FILTER_ORIG_FLAGS, flags).u32(CTA_FILTER_REPLY_FLAGS, 0);
    });
}

fn read(reply: &Reply) -> Option<Flow> {
    let attributes = reply.body.get(4..)?;
    let (sent, answered) = (find(attributes, CTA_TUPLE_ORIG)?, find(attributes, CTA_TUPLE_REPLY)?);
    let protocol = |tuple| find_in(tuple, [CTA_TUPLE_PROTO, CTA_PROTO_NUM]);
    // Source and destination: addresses are 1 and 2 in IPv4, 3 and 4 in IPv6, ports 2 and 3 in
    // both.
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

/// Reads a reply as a connection.
#[cfg(feature = "fuzzing")]
pub(in crate::bridge) fn read_any(reply: &Reply) {
    drop(read(reply));
}
