//! Entry points for fuzzing all parsers of netlink messages.

use super::host_ports::conntrack;
use super::netlink::{self, Reply};
use super::{link, nft};

/// Reads `data` as the response to three messages, and each reply in it by all parsers.
pub(crate) fn netlink(data: &[u8]) {
    let mut replies: Vec<Reply> = Vec::new();
    // An error is a valid outcome.
    netlink::read_answer(data, 3, |reply| replies.push(reply)).ok();
    let bytes: usize = replies.iter().map(|reply| reply.body.len()).sum();
    assert!(bytes <= data.len(), "{bytes} bytes came of {}", data.len());
    for reply in &replies {
        link::fuzzing::read(reply);
        nft::read_any(reply);
        conntrack::read_any(reply);
    }
}
