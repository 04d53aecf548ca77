//! Netlink: how the kernel is asked for links, addresses, routes and rules.
//!
//! A [`Batch`] of messages goes out by one system call, and the kernel has done it all when that call returns. What it
//! answers is waiting then, so nothing here ever blocks.

mod attribute;
mod message;

use std::io;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};

pub(crate) use attribute::{attributes, find, find_in, text, u16_at, u32_at};
pub(crate) use message::{APPEND, Batch, CREATE, DUMP, EXCLUSIVE, Message, Operation};
use message::{HEADER, NLM_F_ACK};

/// Why the kernel did not do it.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("opening a netlink socket")]
    Open(#[source] io::Error),
    #[error("{doing}: talking to the kernel over netlink")]
    Talk { doing: &'static str, source: io::Error },
    #[error("{doing}: the request is too long for netlink")]
    Overlong { doing: &'static str },
    #[error("{doing}: the kernel's answer makes no sense")]
    Noise { doing: &'static str },
    #[error("{doing}{}", .detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Refused {
        doing: &'static str,
        /// The kernel's own words, where it has any.
        detail: Option<String>,
        source: io::Error,
    },
}

impl NetlinkError {
    /// What the kernel answered.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            Self::Open(_) | Self::Talk { .. } | Self::Overlong { .. } | Self::Noise { .. } => None,
        }
    }
}

/// What the kernel sent back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) kind: u16,
    /// Fixed part and attributes.
    pub(crate) body: Vec<u8>,
}

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// The kernel sends no more than this in one piece.
const LARGEST: usize = 64 << 10;

/// How often a list is asked for again because it changed meanwhile.
const TRIES: usize = 10;

/// A socket in the network namespace of the thread that opened it, whoever uses it.
pub(crate) struct Socket(netlink_sys::Socket);

impl Socket {
    /// For links, addresses and routes.
    pub(crate) fn route() -> Result<Self, NetlinkError> {
        Self::open(NETLINK_ROUTE)
    }

    /// For rules and connections.
    pub(crate) fn netfilter() -> Result<Self, NetlinkError> {
        Self::open(NETLINK_NETFILTER)
    }

    fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let socket = netlink_sys::Socket::new(protocol).map_err(NetlinkError::Open)?;
        // Words beside the error number, and no copy of the request.
        socket.set_ext_ack(true).map_err(NetlinkError::Open)?;
        socket.set_cap_ack(true).map_err(NetlinkError::Open)?;
        Ok(Self(socket))
    }

    /// Sends the messages and collects what comes back, until the last is answered.
    ///
    /// The first refusal is the error. The kernel goes on after one, save in a transaction of rules.
    pub(crate) fn ask(&self, mut batch: Batch) -> Result<Vec<Reply>, NetlinkError> {
        let Some(last) = batch.steps.last().copied() else { return Ok(Vec::new()) };
        let flags = u16_at(&batch.bytes, batch.last + 6).unwrap_or_default() | NLM_F_ACK;
        batch.bytes[batch.last + 6..batch.last + 8].copy_from_slice(&flags.to_ne_bytes());
        if batch.overlong {
            return Err(NetlinkError::Overlong { doing: last.doing });
        }
        for _ in 0..TRIES {
            self.0.send(&batch.bytes, 0).map_err(|source| NetlinkError::Talk { doing: last.doing, source })?;
            if let Some(replies) = self.collect(&batch.steps)? {
                return Ok(replies);
            }
        }
        let source = io::Error::other("it changes faster than it can be read");
        Err(NetlinkError::Talk { doing: last.doing, source })
    }

    /// None when a list changed while it was sent.
    fn collect(&self, steps: &[Operation]) -> Result<Option<Vec<Reply>>, NetlinkError> {
        let doing = steps.last().map(|s| s.doing).unwrap_or_default();
        let mut bytes = Vec::with_capacity(LARGEST);
        let mut replies = Vec::new();
        let (mut refusal, mut torn) = (None, false);
        loop {
            bytes.clear();
            if let Err(source) = self.0.recv(&mut bytes, libc::MSG_DONTWAIT) {
                // What is refused as a whole is answered once, at its beginning.
                return Err(refusal.unwrap_or(NetlinkError::Talk { doing, source }));
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let head = Head::read(rest).ok_or(NetlinkError::Noise { doing })?;
                let body = rest.get(HEADER..head.length).ok_or(NetlinkError::Noise { doing })?;
                rest = rest.get(head.length.next_multiple_of(4)..).unwrap_or_default();
                torn |= head.flags & NLM_F_DUMP_INTR != 0;
                let step = steps.get(head.number).ok_or(NetlinkError::Noise { doing })?;
                match head.kind {
                    NLMSG_ERROR | NLMSG_DONE => refusal = refusal.or(refused(*step, &head, body)),
                    kind => replies.push(Reply { kind, body: body.to_vec() }),
                }
                if matches!(head.kind, NLMSG_ERROR | NLMSG_DONE) && head.number + 1 == steps.len() {
                    return match refusal {
                        Some(error) => Err(error),
                        None => Ok((!torn).then_some(replies)),
                    };
                }
            }
        }
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Socket")
    }
}

struct Head {
    length: usize,
    kind: u16,
    flags: u16,
    number: usize,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            length: usize::try_from(u32_at(bytes, 0)?).ok()?,
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            number: usize::try_from(u32_at(bytes, 8)?).ok()?,
        })
    }
}

/// The error in an answer, unless there is none or it is fine in this step.
fn refused(step: Operation, head: &Head, body: &[u8]) -> Option<NetlinkError> {
    // The end of a list may have no body at all.
    let number = i32::from_ne_bytes(*body.first_chunk()?);
    let errno = number.checked_neg().filter(|errno| *errno > 0 && !step.fine.contains(errno))?;
    let words = match head.kind {
        NLMSG_ERROR if head.flags & NLM_F_ACK_TLVS == 0 => None,
        // The header of the request, and its body unless it was left out.
        NLMSG_ERROR if head.flags & NLM_F_CAPPED == 0 => {
            let request = usize::try_from(u32_at(body, 4)?).ok()?;
            body.get(4 + request.next_multiple_of(4)..)
        }
        NLMSG_ERROR => body.get(4 + HEADER..),
        _ => body.get(4..),
    };
    let detail = words.and_then(|words| find(words, NLMSGERR_ATTR_MSG)).map(text);
    Some(NetlinkError::Refused { doing: step.doing, detail, source: io::Error::from_raw_os_error(errno) })
}
