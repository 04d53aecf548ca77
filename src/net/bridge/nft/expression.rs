//! Encodes the expressions of nftables rules as netlink attributes.

use super::{NFTA_DATA_VALUE, NFTA_LIST_ELEM};
use crate::bridge::netlink::Message;

const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;

/// The kernel's numbers for a packet's metadata.
pub(super) const IIFNAME: u32 = 6;
pub(super) const OIFNAME: u32 = 7;
pub(super) const NFPROTO: u32 = 15;
pub(super) const L4PROTO: u32 = 16;

/// The kernel's numbers for the headers of a packet.
pub(super) const LINK: u32 = 0;
pub(super) const NETWORK: u32 = 1;
pub(super) const TRANSPORT: u32 = 2;

const NFT_CT_STATUS: u32 = 2;
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
const NFTA_FIB_F_DADDR: u32 = 2;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_NEQ: u32 = 1;
const NFT_NAT_DNAT: u32 = 1;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NFT_LOOKUP_F_INV: u32 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;

/// A value of a packet or its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    Meta(u32),
    Header {
        which: u32,
        offset: u32,
        length: u32,
    },
    /// The status bits of the connection: see [`super::rules`].
    ConnectionStatus,
    /// Whether the destination is an address of this host.
    DestinationType,
}

/// One step of a rule. The kernel continues with the next step while the conditions hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    /// Loads a value into a slot of four bytes, or several consecutive ones.
    Load(Value, u8),
    /// Continues if slot 0 begins with these bytes.
    Equal(Vec<u8>),
    Differ(Vec<u8>),
    /// Masks slot 0.
    Mask(Vec<u8>),
    /// Continues if a set contains the value at slot 0, or does not contain it.
    Find {
        set: &'static str,
        absent: bool,
    },
    /// Replaces the value at slot 0 by its value in a map.
    Map(&'static str),
    /// Changes the destination to the address at slot 0 and the port in the slot behind it.
    Redirect {
        v6: bool,
    },
    /// Changes the source to the address of the outgoing interface.
    Masquerade,
    Accept,
    Drop,
}

impl Expression {
    pub(super) fn write(&self, message: &mut Message<'_>) {
        message.nest(NFTA_LIST_ELEM, |m| {
            m.text(NFTA_EXPR_NAME, self.name()).nest(NFTA_EXPR_DATA, |m| self.write_data(m));
        });
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Load(Value::Meta(_), _) => "meta",
            Self::Load(Value::Header { .. }, _) => "payload",
            Self::Load(Value::ConnectionStatus, _) => "ct",
            Self::Load(Value::DestinationType, _) => "fib",
            Self::Equal(_) | Self::Differ(_) => "cmp",
            Self::Mask(_) => "bitwise",
            Self::Find { .. } | Self::Map(_) => "lookup",
            Self::Redirect { .. } => "nat",
            Self::Masquerade => "masq",
            Self::Accept | Self::Drop => "immediate",
        }
    }

    /// The attribute numbers are those of each expression's own enum in the kernel's `nf_tables.h`.
    fn write_data(&self, m: &mut Message<'_>) {
        let first = register(0);
        match self {
            Self::Load(value, place) => write_load(m, *value, register(*place)),
            Self::Equal(bytes) | Self::Differ(bytes) => {
                let operation = if matches!(self, Self::Equal(_)) { NFT_CMP_EQ } else { NFT_CMP_NEQ };
                m.u32_be(1, first).u32_be(2, operation).nest(3, |m| {
                    m.bytes(NFTA_DATA_VALUE, bytes);
                });
            }
            Self::Mask(mask) => {
                let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                m.u32_be(1, first).u32_be(2, first).u32_be(3, length);
                for (attribute, bytes) in [(4, mask.as_slice()), (5, &vec![0; mask.len()])] {
                    m.nest(attribute, |m| {
                        m.bytes(NFTA_DATA_VALUE, bytes);
                    });
                }
            }
            Self::Find { set, absent } => {
                m.text(1, set).u32_be(2, first);
                if *absent {
                    m.u32_be(5, NFT_LOOKUP_F_INV);
                }
            }
            Self::Map(map) => {
                m.text(1, map).u32_be(2, first).u32_be(3, first);
            }
            Self::Redirect { v6 } => {
                let (family, port) = if *v6 { (10, 4) } else { (2, 1) };
                m.u32_be(1, NFT_NAT_DNAT).u32_be(2, family).u32_be(3, first).u32_be(5, register(port));
            }
            Self::Masquerade => {}
            Self::Accept | Self::Drop => {
                let verdict = if matches!(self, Self::Accept) { NF_ACCEPT } else { NF_DROP };
                // Register 0 is the verdict register.
                m.u32_be(1, 0).nest(2, |m| {
                    m.nest(NFTA_DATA_VERDICT, |m| {
                        m.u32_be(NFTA_VERDICT_CODE, verdict);
                    });
                });
            }
        }
    }
}

fn write_load(m: &mut Message<'_>, value: Value, register: u32) {
    match value {
        Value::Meta(key) => m.u32_be(1, register).u32_be(2, key),
        Value::Header { which, offset, length } => {
            m.u32_be(1, register).u32_be(2, which).u32_be(3, offset).u32_be(4, length)
        }
        Value::ConnectionStatus => m.u32_be(1, register).u32_be(2, NFT_CT_STATUS),
        Value::DestinationType => m.u32_be(1, register).u32_be(2, NFT_FIB_RESULT_ADDRTYPE).u32_be(3, NFTA_FIB_F_DADDR),
    };
}

/// Returns the kernel's register number: nft names every fourth slot as a register of 16 bytes.
fn register(place: u8) -> u32 {
    let place = u32::from(place);
    if place.is_multiple_of(4) { 1 + place / 4 } else { 8 + place }
}
