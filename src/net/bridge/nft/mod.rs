//! The table of the built-in network in nftables, spoken of with the kernel itself.
//!
//! All changes are transactions: the kernel does all of one or nothing. The table is never mended piece by piece. Where it is
//! not what it should be, one transaction removes it and makes it anew with everything in it, and no packet ever sees it
//! without.

mod expression;
mod rules;

use std::net::IpAddr;

use ipnet::IpNet;

use self::rules::{CHAINS, MAPS, Map};
use super::host_ports::Forward;
use super::netlink::{
    APPEND, Batch, CREATE, DUMP, EXCLUSIVE, NetlinkError, Operation, Reply, Socket, find, find_in, text,
};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_GETRULE: u16 = 7;
const NFT_MSG_NEWSET: u16 = 9;
const NFT_MSG_NEWSETELEM: u16 = 12;
const NFT_MSG_GETSETELEM: u16 = 13;
const NFT_MSG_DELSETELEM: u16 = 14;
const NFT_MSG_GETGEN: u16 = 16;

const NFTA_LIST_ELEM: u16 = 1;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_DATA_TYPE: u16 = 6;
const NFTA_SET_DATA_LEN: u16 = 7;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_GEN_ID: u16 = 1;

const NFPROTO_INET: u8 = 1;
const NF_ACCEPT: u32 = 1;
const HOOK_FORWARD: u32 = 2;
const NFT_SET_MAP: u32 = 8;
const NFT_TABLE_F_OWNER: u32 = 2;

/// What nft calls the kinds of values, six bits each.
const IPV4_ADDR: u32 = 7;
const IPV6_ADDR: u32 = 8;
const INET_PROTO: u32 = 12;
const INET_SERVICE: u32 = 13;

/// Elements in one message; all of them are far shorter than the 64 KiB that an attribute can be.
const ELEMENTS: usize = 256;

/// The table of one network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    pub(super) bridge: &'a str,
    /// What pods have addresses in.
    pub(super) nets: &'a [IpNet],
}

impl Table<'_> {
    /// Makes the table, or makes it anew.
    pub(super) fn replace(&self, socket: &Socket, forwards: &[Forward]) -> Result<(), NetlinkError> {
        let mut batch = begin();
        let step = Operation::new("making the table of rules");
        for kind in [NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWTABLE] {
            let flags = if kind == NFT_MSG_NEWTABLE { CREATE } else { 0 };
            message(&mut batch, step, kind, flags).text(NFTA_TABLE_NAME, self.name);
        }
        for chain in &CHAINS {
            let mut message = message(&mut batch, Operation::new("making a chain of rules"), NFT_MSG_NEWCHAIN, CREATE);
            message.text(NFTA_CHAIN_TABLE, self.name).text(NFTA_CHAIN_NAME, chain.name);
            message.nest(NFTA_CHAIN_HOOK, |m| {
                m.u32_be(NFTA_HOOK_HOOKNUM, chain.hook).bytes(NFTA_HOOK_PRIORITY, &chain.priority.to_be_bytes());
            });
            message.u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT).text(NFTA_CHAIN_TYPE, chain.kind);
        }
        for (number, map) in (1..).zip(&MAPS) {
            self.make_map(&mut batch, number, map);
        }
        for (chain, rule) in rules::rules(self.bridge, self.nets) {
            let mut message = message(&mut batch, Operation::new("making a rule"), NFT_MSG_NEWRULE, CREATE | APPEND);
            message.text(NFTA_RULE_TABLE, self.name).text(NFTA_RULE_CHAIN, chain.name);
            message.nest(NFTA_RULE_EXPRESSIONS, |m| rule.iter().for_each(|expression| expression.write(m)));
        }
        self.elements(&mut batch, NFT_MSG_NEWSETELEM, forwards);
        commit(socket, batch)
    }

    /// Adds ports of the host; those that are there already stay.
    pub(super) fn add(&self, socket: &Socket, forwards: &[Forward]) -> Result<(), NetlinkError> {
        let mut batch = begin();
        self.elements(&mut batch, NFT_MSG_NEWSETELEM, forwards);
        commit(socket, batch)
    }

    /// Removes ports of the host, all of which are there.
    pub(super) fn remove(&self, socket: &Socket, forwards: &[Forward]) -> Result<(), NetlinkError> {
        let mut batch = begin();
        self.elements(&mut batch, NFT_MSG_DELSETELEM, forwards);
        commit(socket, batch)
    }

    /// Whether the kernel has all rules, and these ports and no others.
    pub(super) fn is_whole(&self, socket: &Socket, forwards: &[Forward]) -> Result<bool, NetlinkError> {
        let mut batch = Batch::new();
        message(&mut batch, Operation::or("listing rules", &[libc::ENOENT]), NFT_MSG_GETRULE, DUMP)
            .text(NFTA_RULE_TABLE, self.name);
        let found = socket.ask(batch)?;
        let found = found.iter().filter(|r| r.kind == message_kind(NFT_MSG_NEWRULE));
        if found.count() != rules::rules(self.bridge, self.nets).len() {
            return Ok(false);
        }
        for map in &MAPS {
            let mut batch = Batch::new();
            message(&mut batch, Operation::or("listing host ports", &[libc::ENOENT]), NFT_MSG_GETSETELEM, DUMP)
                .text(NFTA_SET_ELEM_LIST_TABLE, self.name)
                .text(NFTA_SET_ELEM_LIST_SET, map.name);
            let mut found: Vec<_> = socket.ask(batch)?.iter().flat_map(read_elements).collect();
            let mut wanted: Vec<_> = forwards.iter().filter(|f| is_in(f, map)).map(|f| (key(f), data(f))).collect();
            found.sort_unstable();
            wanted.sort_unstable();
            if found != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn make_map(&self, batch: &mut Batch, number: u32, map: &Map) {
        let (address, length) = if map.v6 { (IPV6_ADDR, 16) } else { (IPV4_ADDR, 4) };
        let port = INET_PROTO << 6 | INET_SERVICE;
        let (key, key_length) = if map.addressed { (address << 12 | port, length + 8) } else { (port, 8) };
        let mut message = message(batch, Operation::new("making a map of host ports"), NFT_MSG_NEWSET, CREATE);
        message.text(NFTA_SET_TABLE, self.name).text(NFTA_SET_NAME, map.name).u32_be(NFTA_SET_FLAGS, NFT_SET_MAP);
        message.u32_be(NFTA_SET_KEY_TYPE, key).u32_be(NFTA_SET_KEY_LEN, key_length);
        message.u32_be(NFTA_SET_DATA_TYPE, address << 6 | INET_SERVICE).u32_be(NFTA_SET_DATA_LEN, length + 4);
        message.u32_be(NFTA_SET_ID, number);
    }

    fn elements(&self, batch: &mut Batch, kind: u16, forwards: &[Forward]) {
        for map in &MAPS {
            let of_map: Vec<_> = forwards.iter().filter(|f| is_in(f, map)).collect();
            for some in of_map.chunks(ELEMENTS) {
                let mut message = message(batch, Operation::new("changing host ports"), kind, CREATE);
                message.text(NFTA_SET_ELEM_LIST_TABLE, self.name).text(NFTA_SET_ELEM_LIST_SET, map.name);
                message.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |m| {
                    for forward in some {
                        m.nest(NFTA_LIST_ELEM, |m| {
                            for (part, bytes) in
                                [(NFTA_SET_ELEM_KEY, key(forward)), (NFTA_SET_ELEM_DATA, data(forward))]
                            {
                                m.nest(part, |m| {
                                    m.bytes(NFTA_DATA_VALUE, &bytes);
                                });
                            }
                        });
                    }
                });
            }
        }
    }
}

/// Makes an empty table that is the socket's alone and goes with it. False where it is another's.
pub(super) fn own_table(socket: &Socket, name: &str) -> Result<bool, NetlinkError> {
    let mut batch = begin();
    message(&mut batch, Operation::new("claiming a table"), NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE)
        .text(NFTA_TABLE_NAME, name)
        .u32_be(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
    let refusal = match commit(socket, batch) {
        Ok(()) => return Ok(true),
        Err(refusal) => refusal,
    };
    match refusal.errno() {
        Some(libc::EEXIST) => Ok(false),
        // The same answer as to who has no right to change rules, nor to look at them.
        Some(libc::EPERM) => {
            let mut batch = Batch::new();
            message(&mut batch, Operation::new("looking at a table"), NFT_MSG_GETTABLE, 0).text(NFTA_TABLE_NAME, name);
            match socket.ask(batch) {
                Ok(_) => Ok(false),
                // It went meanwhile.
                Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
                Err(error) => Err(error),
            }
        }
        _ => Err(refusal),
    }
}

/// A number that changes with every transaction of anybody.
pub(super) fn generation(socket: &Socket) -> Result<u32, NetlinkError> {
    let doing = "asking for the generation of rules";
    let mut batch = Batch::new();
    message(&mut batch, Operation::new(doing), NFT_MSG_GETGEN, 0);
    let replies = socket.ask(batch)?;
    let number = replies.iter().find_map(|r| find(r.body.get(4..)?, NFTA_GEN_ID)?.first_chunk());
    number.map(|bytes| u32::from_be_bytes(*bytes)).ok_or(NetlinkError::Noise { doing })
}

/// Chains of others that drop what is forwarded unless one of their rules says otherwise, by family, table and name.
///
/// No rule of another table can overrule them.
pub(super) fn dropping_chains(socket: &Socket) -> Result<Vec<String>, NetlinkError> {
    let mut batch = Batch::new();
    let step = Operation::new("listing chains");
    drop(batch.message(step, message_kind(NFT_MSG_GETCHAIN), DUMP, &[0; 4]));
    let found = socket.ask(batch)?;
    Ok(found.iter().filter_map(|reply| dropping(&reply.body)).collect())
}

fn dropping(body: &[u8]) -> Option<String> {
    let family = match body.first()? {
        1 => "inet",
        2 => "ip",
        10 => "ip6",
        _ => return None,
    };
    let attributes = body.get(4..)?;
    let number = |value: &[u8]| value.first_chunk().map(|b| u32::from_be_bytes(*b));
    let hook = find_in(attributes, [NFTA_CHAIN_HOOK, NFTA_HOOK_HOOKNUM]).and_then(number)?;
    let policy = find(attributes, NFTA_CHAIN_POLICY).and_then(number)?;
    let (table, name) = (find(attributes, NFTA_CHAIN_TABLE)?, find(attributes, NFTA_CHAIN_NAME)?);
    (hook == HOOK_FORWARD && policy != NF_ACCEPT).then(|| format!("{family} {} {}", text(table), text(name)))
}

fn begin() -> Batch {
    let mut batch = Batch::new();
    let [a, b] = SUBSYSTEM.to_be_bytes();
    drop(batch.message(Operation::new("beginning a transaction of rules"), BATCH_BEGIN, 0, &[0, 0, a, b]));
    batch
}

fn commit(socket: &Socket, mut batch: Batch) -> Result<(), NetlinkError> {
    let [a, b] = SUBSYSTEM.to_be_bytes();
    batch.close(BATCH_END, &[0, 0, a, b]);
    socket.ask(batch).map(drop)
}

fn message_kind(kind: u16) -> u16 {
    SUBSYSTEM << 8 | kind
}

fn message(batch: &mut Batch, step: Operation, kind: u16, flags: u16) -> super::netlink::Message<'_> {
    batch.message(step, message_kind(kind), flags, &[NFPROTO_INET, 0, 0, 0])
}

fn is_in(forward: &Forward, map: &Map) -> bool {
    forward.from.v6 == map.v6 && forward.from.address.is_some() == map.addressed
}

/// In cells of four bytes: the host's address where there is one, the protocol, the port.
fn key(forward: &Forward) -> Vec<u8> {
    let mut key = forward.from.address.map(octets).unwrap_or_default();
    let [a, b] = forward.from.port.to_be_bytes();
    key.extend([forward.from.protocol, 0, 0, 0, a, b, 0, 0]);
    key
}

fn data(forward: &Forward) -> Vec<u8> {
    let mut data = octets(forward.to.ip());
    let [a, b] = forward.to.port().to_be_bytes();
    data.extend([a, b, 0, 0]);
    data
}

pub(super) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn read_elements(reply: &Reply) -> Vec<(Vec<u8>, Vec<u8>)> {
    let list = reply.body.get(4..).and_then(|body| find(body, NFTA_SET_ELEM_LIST_ELEMENTS)).unwrap_or_default();
    let value = |element, part| find_in(element, [part, NFTA_DATA_VALUE]).map(<[u8]>::to_vec).unwrap_or_default();
    let elements = super::netlink::attributes(list);
    elements.map(|(_, element)| (value(element, NFTA_SET_ELEM_KEY), value(element, NFTA_SET_ELEM_DATA))).collect()
}
