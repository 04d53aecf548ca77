//! Netlink: how the kernel is asked for links, addresses, routes and rules.
//!
//! A [`Batch`] of messages goes out by one system call, and the kernel has done it all when that call returns. What it
//! answers is waiting then, so nothing here ever blocks.

mod attribute;
mod message;

use std::io;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rustix::net::sockopt::set_socket_send_buffer_size_force;

pub(crate) use attribute::{attributes, find, find_in, text, u16_at, u32_at};
pub(crate) use message::{APPEND, Batch, CREATE, DUMP, EXCLUSIVE, Message, Operation, REPLACE};
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

/// Every socket's buffer takes this much.
const SENT_ANYWAY: usize = 32 << 10;

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
    pub(crate) fn ask(&self, batch: Batch) -> Result<Vec<Reply>, NetlinkError> {
        let mut replies = Vec::new();
        self.exchange(batch, &mut |event| match event {
            Event::Begin => replies.clear(),
            Event::Reply(reply) => replies.push(reply),
        })?;
        Ok(replies)
    }

    /// The same for lists that may be long: each reply is looked at once and not kept. A list that changed meanwhile is sent
    /// again from its beginning.
    pub(crate) fn ask_each(&self, batch: Batch, mut each: impl FnMut(Reply)) -> Result<(), NetlinkError> {
        self.exchange(batch, &mut |event| match event {
            Event::Begin => {}
            Event::Reply(reply) => each(reply),
        })
    }

    fn exchange(&self, mut batch: Batch, take: &mut dyn FnMut(Event)) -> Result<(), NetlinkError> {
        let Some(last) = batch.steps.last().copied() else { return Ok(()) };
        let flags = u16_at(&batch.bytes, batch.last + 6).unwrap_or_default() | NLM_F_ACK;
        batch.bytes[batch.last + 6..batch.last + 8].copy_from_slice(&flags.to_ne_bytes());
        if batch.overlong {
            return Err(NetlinkError::Overlong { doing: last.doing });
        }
        if batch.bytes.len() > SENT_ANYWAY {
            // The kernel refuses what is longer than the socket's buffer. Where this fails, it says so.
            set_socket_send_buffer_size_force(&self.0, batch.bytes.len()).ok();
        }
        for _ in 0..TRIES {
            take(Event::Begin);
            self.0.send(&batch.bytes, 0).map_err(|source| NetlinkError::Talk { doing: last.doing, source })?;
            if self.collect(&batch.steps, take)? {
                return Ok(());
            }
        }
        let source = io::Error::other("it changes faster than it can be read");
        Err(NetlinkError::Talk { doing: last.doing, source })
    }

    /// False when a list changed while it was sent.
    fn collect(&self, steps: &[Operation], take: &mut dyn FnMut(Event)) -> Result<bool, NetlinkError> {
        let doing = steps.last().map(|s| s.doing).unwrap_or_default();
        let mut bytes = Vec::with_capacity(LARGEST);
        let mut answer = Answer::to(steps);
        loop {
            bytes.clear();
            match self.0.recv_from(&mut bytes, libc::MSG_DONTWAIT) {
                // A process may send to the socket as well, with the rights to change this namespace's network.
                Ok((_, sender)) if sender.port_number() != 0 => continue,
                Ok(_) => {}
                // What is refused as a whole is answered once, at its beginning.
                Err(source) => return Err(answer.refusal.unwrap_or(NetlinkError::Talk { doing, source })),
            }
            if answer.read(&bytes, take)? {
                return answer.refusal.map_or(Ok(!answer.torn), Err);
            }
        }
    }
}

/// What comes back for a batch.
enum Event {
    /// All that came so far is void.
    Begin,
    Reply(Reply),
}

/// What was read of the answer to a batch.
struct Answer<'a> {
    steps: &'a [Operation],
    /// The first one.
    refusal: Option<NetlinkError>,
    /// A list changed while it was sent.
    torn: bool,
}

impl<'a> Answer<'a> {
    fn to(steps: &'a [Operation]) -> Self {
        Self { steps, refusal: None, torn: false }
    }

    /// Reads what came in one piece. True once the last message is answered.
    fn read(&mut self, bytes: &[u8], take: &mut dyn FnMut(Event)) -> Result<bool, NetlinkError> {
        let doing = self.steps.last().map(|s| s.doing).unwrap_or_default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let head = Head::read(rest).ok_or(NetlinkError::Noise { doing })?;
            let body = rest.get(HEADER..head.length).ok_or(NetlinkError::Noise { doing })?;
            rest = rest.get(head.length.next_multiple_of(4)..).unwrap_or_default();
            self.torn |= head.flags & NLM_F_DUMP_INTR != 0;
            let step = self.steps.get(head.number).ok_or(NetlinkError::Noise { doing })?;
            match head.kind {
                NLMSG_ERROR | NLMSG_DONE => {
                    let refused = refused(*step, &head, body);
                    self.refusal = self.refusal.take().or(refused);
                    if head.number + 1 == self.steps.len() {
                        return Ok(true);
                    }
                }
                kind => take(Event::Reply(Reply { kind, body: body.to_vec() })),
            }
        }
        Ok(false)
    }
}

/// Reads what came in one piece as the answer to so many messages.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_answer(bytes: &[u8], messages: usize, mut each: impl FnMut(Reply)) -> Result<(), NetlinkError> {
    let steps = vec![Operation::new("fuzzing"); messages];
    let mut answer = Answer::to(&steps);
    answer.read(bytes, &mut |event| match event {
        Event::Begin => {}
        Event::Reply(reply) => each(reply),
    })?;
    answer.refusal.map_or(Ok(()), Err)
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
