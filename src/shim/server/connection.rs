//! A connection of a daemon. Messages that it does not read at once wait in a bounded queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

/// A daemon that is further behind is disconnected; it reconnects and requests the state.
const MAX_WAITING: usize = 4096;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, waiting: VecDeque::new() }
    }

    /// Sends or queues a message; an error ends the connection.
    pub(crate) fn send(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(io::Error::other("the daemon does not listen"));
        }
        self.waiting.push_back(bytes);
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some(bytes) = self.waiting.front() {
            match sys::seqpacket::send(&self.socket, bytes, &[]) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(full) if full.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }
}
