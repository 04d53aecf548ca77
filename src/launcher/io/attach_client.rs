//! A client that is attached to a container. It never blocks the container: a client that does not
//! read in time, beyond what its socket buffers, is disconnected.

use std::os::fd::{BorrowedFd, OwnedFd};

use shim_protocol::AttachFrame;

use crate::io::cri_log::Stream;

/// A client that attached to a container.
#[derive(Debug)]
pub struct AttachClient {
    pub number: u64,
    pub socket: OwnedFd,
    pub stdout: bool,
    pub stderr: bool,
    /// Has the container's stdin.
    pub input: bool,
    /// Too slow, or disconnected: it is removed next.
    pub over: bool,
}

impl AttachClient {
    pub fn send(&mut self, word: AttachFrame, fds: &[BorrowedFd<'_>]) {
        self.over |= sys::seqpacket::send(&self.socket, &[word.byte()], fds).is_err();
    }

    /// Sends a piece of output. The first byte of `packet` is reserved for the frame type.
    pub(crate) fn send_output(&mut self, stream: Stream, packet: &mut [u8]) {
        let (wanted, word) = match stream {
            Stream::Stdout => (self.stdout, AttachFrame::Stdout),
            Stream::Stderr => (self.stderr, AttachFrame::Stderr),
        };
        if let (true, false, Some(first)) = (wanted, self.over, packet.first_mut()) {
            *first = word.byte();
            self.over = sys::seqpacket::send(&self.socket, packet, &[]).is_err();
        }
    }
}
