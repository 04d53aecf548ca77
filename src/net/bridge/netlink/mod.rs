//! Netlink sockets: requests for links, addresses, routes and rules.
//!
//! A [`Batch`] of messages is sent with one system call. The kernel has processed it when that call
//! returns, and its responses are in the socket's buffer; so nothing here blocks.

mod attribute;
mod message;

use std::io;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rustix::net::sockopt::set_socket_send_buffer_size_force;

pub(crate) use attribute::{attributes, find, find_in, text, u16_at, u32_at};
pub(crate) use message::{APPEND, Batch, CREATE, DUMP, EXCLUSIVE, Message, Operation, REPLACE};
use message::{HEADER, NLM_F_ACK};

/// A request to the kernel that failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("opening a netlink socket to configure pod networks")]
    Open(#[source] io::Error),
    #[error("{doing}: exchanging netlink messages with the kernel")]
    Talk { doing: &'static str, source: io::Error },
    #[error("{doing}: the request is too long for netlink")]
    Overlong { doing: &'static str },
    #[error("{doing}: the kernel's response is malformed")]
    Noise { doing: &'static str },
    #[error("{doing}{}", .detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Refused {
        doing: &'static str,
        /// The kernel's extended error message, if any.
        detail: Option<String>,
        source: io::Error,
    },
}

impl NetlinkError {
    /// Returns the errno of the kernel's response.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            Self::Open(_) | Self::Talk { .. } | Self::Overlong { .. } | Self::Noise { .. } => None,
        }
    }
}

/// A message from the kernel.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) kind: u16,
    /// The fixed part and the attributes.
    pub(crate) body: Vec<u8>,
}

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// The maximum size of a datagram from the kernel.
const LARGEST: usize = 64 << 10;

/// The minimum send buffer of a socket.
const SENT_ANYWAY: usize = 32 << 10;

/// The number of attempts to list something that changes meanwhile.
const TRIES: usize = 10;

/// A netlink socket. It belongs to the network namespace of the thread that opened it.
pub(crate) struct Socket(netlink_sys::Socket);

impl Socket {
    /// Opens a socket for links, addresses and routes.
    pub(crate) fn route() -> Result<Self, NetlinkError> {
        Self::open(NETLINK_ROUTE)
    }

    /// Opens a socket for rules and connections.
    pub(crate) fn netfilter() -> Result<Self, NetlinkError> {
        Self::open(NETLINK_NETFILTER)
    }

    fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let socket = netlink_sys::Socket::new(protocol).map_err(NetlinkError::Open)?;
        // Request extended error messages, and errors without a copy of the request.
        socket.set_ext_ack(true).map_err(NetlinkError::Open)?;
        socket.set_cap_ack(true).map_err(NetlinkError::Open)?;
        Ok(Self(socket))
    }

    /// Sends the messages and collects the responses until the last message is acknowledged.
    ///
    /// The first failure is the error. The kernel continues after one, except in a transaction of
    /// rules.
    pub(crate) fn request(&self, batch: Batch) -> Result<Vec<Reply>, NetlinkError> {
        let mut replies = Vec::new();
        self.exchange(batch, &mut |event| match event {
            Event::Begin => replies.clear(),
            Event::Reply(reply) => replies.push(reply),
        })?;
        Ok(replies)
    }

    /// Does the same for lists that may be long: passes each reply to `each` and does not keep it.
    /// A list that changed meanwhile is sent again from its beginning.
    pub(crate) fn request_each(&self, batch: Batch, mut each: impl FnMut(Reply)) -> Result<(), NetlinkError> {
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
            // The kernel rejects batches longer than the buffer. If this fails, sending fails with
            // an error.
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

    /// Returns false if a list changed while the kernel sent it.
    fn collect(&self, steps: &[Operation], take: &mut dyn FnMut(Event)) -> Result<bool, NetlinkError> {
        let doing = steps.last().map(|s| s.doing).unwrap_or_default();
        let mut bytes = Vec::with_capacity(LARGEST);
        let mut answer = Answer::to(steps);
        loop {
            bytes.clear();
            match self.0.recv_from(&mut bytes, libc::MSG_DONTWAIT) {
                // A process with CAP_NET_ADMIN in this namespace may send to the socket as well.
                Ok((_, sender)) if sender.port_number() != 0 => continue,
                Ok(_) => {}
                // A batch that is rejected as a whole gets one response, to its first message.
                Err(source) => return Err(answer.refusal.unwrap_or(NetlinkError::Talk { doing, source })),
            }
            if answer.read(&bytes, take)? {
                return answer.refusal.map_or(Ok(!answer.torn), Err);
            }
        }
    }
}

/// A part of the response to a batch.
enum Event {
    /// The earlier replies are void.
    Begin,
    Reply(Reply),
}

/// The state of reading the response to a batch.
struct Answer<'a> {
    steps: &'a [Operation],
    /// The first failure.
    refusal: Option<NetlinkError>,
    /// A list changed while the kernel sent it.
    torn: bool,
}

impl<'a> Answer<'a> {
    fn to(steps: &'a [Operation]) -> Self {
        Self { steps, refusal: None, torn: false }
    }

    /// Reads a datagram. Returns true if it acknowledges the last message.
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

/// Reads a datagram as the response to `messages` messages.
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

/// Returns the error in a response, unless it counts as success for this step.
fn refused(step: Operation, head: &Head, body: &[u8]) -> Option<NetlinkError> {
    // The end of a list may have no body.
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
