//! The tables as the kernel lists them: read after a change, and compared to find out whether
//! another process changed them.

use super::set::{BRIDGE, INET};
use super::{
    NFT_MSG_GETCHAIN, NFT_MSG_GETRULE, NFT_MSG_GETTABLE, NFTA_RULE_TABLE, NFTA_TABLE_NAME, Table, dropping, message,
    message_kind,
};
use crate::bridge::netlink::{Batch, DUMP, NetlinkError, Operation, Reply, Socket, attributes, find, text};

/// Tables, chains and rules name their table in the attribute of this number.
const TABLE: u16 = NFTA_TABLE_NAME;
/// The counters of a chain change with every packet.
const NFTA_CHAIN_COUNTERS: u16 = 8;

/// The tables, chains and rules of one network as the kernel lists them, with their flags, policies
/// and handles.
///
/// The kernel adds attributes to the rules that it receives, and which ones depends on its version.
/// So a list is compared with an earlier list, not with the rules that were sent.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::bridge) struct Ruleset(Vec<Vec<u8>>);

/// The rules that the kernel has.
#[derive(Debug)]
pub(in crate::bridge) struct Listing {
    pub(in crate::bridge) ruleset: Ruleset,
    /// Chains of other tables that drop forwarded packets unless one of their rules accepts them,
    /// by family, table and name. No rule of another table can overrule them.
    pub(in crate::bridge) dropping: Vec<String>,
}

impl Table<'_> {
    /// Lists the tables with their chains and rules, without the elements of sets.
    pub(in crate::bridge) fn list(&self, socket: &Socket) -> Result<Listing, NetlinkError> {
        let mut batch = Batch::new();
        for family in [INET, BRIDGE] {
            message(&mut batch, Operation::or("listing tables", &[libc::ENOENT]), family, NFT_MSG_GETTABLE, 0)
                .text(NFTA_TABLE_NAME, self.name);
        }
        let mut found = socket.request(batch)?;
        let mut batch = Batch::new();
        drop(batch.message(Operation::new("listing chains"), message_kind(NFT_MSG_GETCHAIN), DUMP, &[0; 4]));
        let chains = socket.request(batch)?;
        let dropping = chains.iter().filter_map(|reply| dropping(&reply.body)).collect();
        found.extend(chains);
        // With a table's name, the kernel lists the rules of one family only.
        for family in [INET, BRIDGE] {
            let mut batch = Batch::new();
            message(&mut batch, Operation::or("listing rules", &[libc::ENOENT]), family, NFT_MSG_GETRULE, DUMP)
                .text(NFTA_RULE_TABLE, self.name);
            found.extend(socket.request(batch)?);
        }
        Ok(Listing {
            ruleset: Ruleset(found.iter().filter_map(|reply| canonical(reply, self.name)).collect()),
            dropping,
        })
    }
}

/// Returns the message's kind, family and attributes if it belongs to the table `name` of one of
/// the families of crisp.
pub(super) fn canonical(Reply { kind, body }: &Reply, name: &str) -> Option<Vec<u8>> {
    let family = *body.first().filter(|family| [INET, BRIDGE].contains(family))?;
    let all = body.get(4..)?;
    find(all, TABLE).filter(|table| text(table) == name)?;
    let mut bytes = [&kind.to_ne_bytes()[..], &[family]].concat();
    for (attribute, value) in attributes(all) {
        if *kind == message_kind(super::NFT_MSG_NEWCHAIN) && attribute == NFTA_CHAIN_COUNTERS {
            continue;
        }
        bytes.extend_from_slice(&attribute.to_ne_bytes());
        bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_ne_bytes());
        bytes.extend_from_slice(value);
    }
    Some(bytes)
}
