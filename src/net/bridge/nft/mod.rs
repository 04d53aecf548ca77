//! The bridge's nftables tables, managed over netlink.
//!
//! There are two of the same name: one of family inet for IP packets, one of family bridge for the
//! frames that pods send.
//!
//! Every change is a transaction. Tables are never repaired piecemeal: if they differ from the
//! expected ones, one transaction removes them and creates new ones with their whole content, so no
//! packet passes without rules.

mod expression;
mod listing;
mod port_filter;
mod rules;
mod set;

use std::net::IpAddr;

use ipnet::IpNet;

use self::expression::Expression;
pub(super) use self::listing::{Listing, Ruleset};
use self::rules::{CHAINS, Chain};
pub(super) use self::set::Contents;
use self::set::{BRIDGE, Element, INET, SETS, Set};
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

const NF_ACCEPT: u32 = 1;
const HOOK_FORWARD: u32 = 2;
const NFT_SET_MAP: u32 = 8;
const NFT_TABLE_F_OWNER: u32 = 2;

/// Elements per message, so that a message stays far below the attribute limit of 64 KiB.
const ELEMENTS: usize = 256;

/// The tables of one network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    pub(super) bridge: &'a str,
    /// The networks of the pods' addresses.
    pub(super) nets: &'a [IpNet],
}

impl Table<'_> {
    /// Creates the tables, or replaces them.
    pub(super) fn replace(&self, socket: &Socket, contents: Contents<'_>) -> Result<(), NetlinkError> {
        let mut batch = begin();
        let step = Operation::new("creating the nftables tables");
        for family in [INET, BRIDGE] {
            for kind in [NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWTABLE] {
                let flags = if kind == NFT_MSG_NEWTABLE { CREATE } else { 0 };
                message(&mut batch, step, family, kind, flags).text(NFTA_TABLE_NAME, self.name);
            }
        }
        for chain in CHAINS.iter().chain([&port_filter::PREROUTING]) {
            let step = Operation::new("creating an nftables chain");
            let mut message = message(&mut batch, step, chain.family, NFT_MSG_NEWCHAIN, CREATE);
            message.text(NFTA_CHAIN_TABLE, self.name).text(NFTA_CHAIN_NAME, chain.name);
            message.nest(NFTA_CHAIN_HOOK, |m| {
                m.u32_be(NFTA_HOOK_HOOKNUM, chain.hook).bytes(NFTA_HOOK_PRIORITY, &chain.priority.to_be_bytes());
            });
            message.u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT).text(NFTA_CHAIN_TYPE, chain.kind);
        }
        for (number, set) in (1..).zip(SETS) {
            self.make_set(&mut batch, number, set);
        }
        for (chain, rule) in self.rules() {
            let step = Operation::new("creating an nftables rule");
            let mut message = message(&mut batch, step, chain.family, NFT_MSG_NEWRULE, CREATE | APPEND);
            message.text(NFTA_RULE_TABLE, self.name).text(NFTA_RULE_CHAIN, chain.name);
            message.nest(NFTA_RULE_EXPRESSIONS, |m| rule.iter().for_each(|expression| expression.write(m)));
        }
        self.elements(&mut batch, NFT_MSG_NEWSETELEM, contents);
        commit(socket, batch)
    }

    /// Adds elements; existing ones stay.
    pub(super) fn add(&self, socket: &Socket, contents: Contents<'_>) -> Result<(), NetlinkError> {
        let mut batch = begin();
        self.elements(&mut batch, NFT_MSG_NEWSETELEM, contents);
        commit(socket, batch)
    }

    /// Removes elements, which must exist.
    pub(super) fn remove(&self, socket: &Socket, contents: Contents<'_>) -> Result<(), NetlinkError> {
        let mut batch = begin();
        self.elements(&mut batch, NFT_MSG_DELSETELEM, contents);
        commit(socket, batch)
    }

    /// Returns whether the kernel's sets have exactly these elements.
    pub(super) fn has_elements(&self, socket: &Socket, contents: Contents<'_>) -> Result<bool, NetlinkError> {
        for set in SETS {
            let step = Operation::or("listing elements", &[libc::ENOENT]);
            let mut batch = Batch::new();
            message(&mut batch, step, set.family, NFT_MSG_GETSETELEM, DUMP)
                .text(NFTA_SET_ELEM_LIST_TABLE, self.name)
                .text(NFTA_SET_ELEM_LIST_SET, set.name);
            let mut found: Vec<_> = socket.request(batch)?.iter().flat_map(read_elements).collect();
            let mut wanted = contents.of(set);
            found.sort_unstable();
            wanted.sort_unstable();
            if found != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn rules(&self) -> Vec<(Chain, Vec<Expression>)> {
        let mut rules = rules::rules(self.bridge, self.nets);
        rules.extend(port_filter::rules());
        rules
    }

    fn make_set(&self, batch: &mut Batch, number: u32, set: &Set) {
        let mut message = message(batch, Operation::new("making a set"), set.family, NFT_MSG_NEWSET, CREATE);
        let flags = if set.value.is_empty() { 0 } else { NFT_SET_MAP };
        message.text(NFTA_SET_TABLE, self.name).text(NFTA_SET_NAME, set.name).u32_be(NFTA_SET_FLAGS, flags);
        message.u32_be(NFTA_SET_KEY_TYPE, set::kind(set.key)).u32_be(NFTA_SET_KEY_LEN, set::length(set.key));
        if !set.value.is_empty() {
            message.u32_be(NFTA_SET_DATA_TYPE, set::kind(set.value));
            message.u32_be(NFTA_SET_DATA_LEN, set::length(set.value));
        }
        message.u32_be(NFTA_SET_ID, number);
    }

    fn elements(&self, batch: &mut Batch, kind: u16, contents: Contents<'_>) {
        for set in SETS {
            for some in contents.of(set).chunks(ELEMENTS) {
                let step = Operation::new("changing elements");
                let mut message = message(batch, step, set.family, kind, CREATE);
                message.text(NFTA_SET_ELEM_LIST_TABLE, self.name).text(NFTA_SET_ELEM_LIST_SET, set.name);
                message.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |m| {
                    for Element { key, value } in some {
                        m.nest(NFTA_LIST_ELEM, |m| {
                            for (part, bytes) in [(NFTA_SET_ELEM_KEY, key), (NFTA_SET_ELEM_DATA, value)] {
                                if bytes.is_empty() {
                                    continue;
                                }
                                m.nest(part, |m| {
                                    m.bytes(NFTA_DATA_VALUE, bytes);
                                });
                            }
                        });
                    }
                });
            }
        }
    }
}

/// Creates an empty table that the socket owns and that is removed with it. Returns false if
/// another socket owns it.
pub(super) fn own_table(socket: &Socket, name: &str) -> Result<bool, NetlinkError> {
    let mut batch = begin();
    message(&mut batch, Operation::new("creating the table of the lock"), INET, NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE)
        .text(NFTA_TABLE_NAME, name)
        .u32_be(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
    let refusal = match commit(socket, batch) {
        Ok(()) => return Ok(true),
        Err(refusal) => refusal,
    };
    match refusal.errno() {
        Some(libc::EEXIST) => Ok(false),
        // EPERM also means a missing capability; then reading the table fails, too.
        Some(libc::EPERM) => {
            let mut batch = Batch::new();
            message(&mut batch, Operation::new("reading the table of the lock"), INET, NFT_MSG_GETTABLE, 0)
                .text(NFTA_TABLE_NAME, name);
            match socket.request(batch) {
                Ok(_) => Ok(false),
                // Removed meanwhile.
                Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
                Err(error) => Err(error),
            }
        }
        _ => Err(refusal),
    }
}

/// Returns the generation of the rules, which every transaction of any process increments.
pub(super) fn generation(socket: &Socket) -> Result<u32, NetlinkError> {
    let doing = "reading the generation of rules";
    let mut batch = Batch::new();
    message(&mut batch, Operation::new(doing), INET, NFT_MSG_GETGEN, 0);
    let replies = socket.request(batch)?;
    replies.iter().find_map(read_generation).ok_or(NetlinkError::Noise { doing })
}

fn read_generation(reply: &Reply) -> Option<u32> {
    find(reply.body.get(4..)?, NFTA_GEN_ID)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Returns the family, table and name of a chain that drops forwarded packets unless one of its
/// rules accepts them.
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
    socket.request(batch).map(drop)
}

fn message_kind(kind: u16) -> u16 {
    SUBSYSTEM << 8 | kind
}

fn message(batch: &mut Batch, step: Operation, family: u8, kind: u16, flags: u16) -> super::netlink::Message<'_> {
    batch.message(step, message_kind(kind), flags, &[family, 0, 0, 0])
}

pub(super) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn read_elements(reply: &Reply) -> Vec<Element> {
    let list = reply.body.get(4..).and_then(|body| find(body, NFTA_SET_ELEM_LIST_ELEMENTS)).unwrap_or_default();
    let part = |element, part| find_in(element, [part, NFTA_DATA_VALUE]).map(<[u8]>::to_vec).unwrap_or_default();
    let elements = super::netlink::attributes(list);
    let read = |element| Element { key: part(element, NFTA_SET_ELEM_KEY), value: part(element, NFTA_SET_ELEM_DATA) };
    elements.map(|(_, element)| read(element)).collect()
}

/// Reads a reply as each thing that it can be.
#[cfg(feature = "fuzzing")]
pub(super) fn read_any(reply: &Reply) {
    drop((read_elements(reply), dropping(&reply.body), read_generation(reply), listing::canonical(reply, "crisp")));
}
