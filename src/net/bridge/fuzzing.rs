//! Everything that reads what the kernel sends.

use super::host_ports::conntrack;
use super::netlink::{self, Reply};
use super::{link, nft};

/// Reads `data` as the answer to three messages, and what is in it as each thing that it can be.
pub(crate) fn netlink(data: &[u8]) {
    let mut replies: Vec<Reply> = Vec::new();
    // A refusal is an outcome, too.
    netlink::read_answer(data, 3, |reply| replies.push(reply)).ok();
    let bytes: usize = replies.iter().map(|reply| reply.body.len()).sum();
    assert!(bytes <= data.len(), "{bytes} bytes came of {}", data.len());
    for reply in &replies {
        link::fuzzing::read(reply);
        nft::read_any(reply);
        conntrack::read_any(reply);
    }
}
