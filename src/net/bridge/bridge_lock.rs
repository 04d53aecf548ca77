//! Whose bridge it is: one daemon's at a time in a network namespace.
//!
//! The claim is an empty table in nftables that belongs to a socket. The kernel gives it to no other, whoever flushes all rules
//! leaves it alone, and it goes with the socket, however the process ends. It takes the right that changing the bridge takes, so
//! nobody can keep a daemon from its bridge who could not take that away as well.

use std::time::Duration;

use super::netlink::{NetlinkError, Socket};
use super::nft;
use super::setup::NotReady;
use super::state::{Bridge, lock};

/// A process that was just started by a daemon that was just killed still has its sockets for a moment.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) enum BridgeLock {
    Ours {
        /// Keeps it.
        _socket: Socket,
    },
    /// For good: once the other daemon is gone, its pods are still there, and so will its successor be.
    Another,
}

impl Bridge {
    /// Makes sure that no other daemon has this bridge, or its table, in this network namespace. Before anything is changed.
    pub fn acquire(&self) -> Result<(), NotReady> {
        let mut claim = lock(&self.claim);
        if claim.is_none() {
            *claim = Some(self.try_acquire().map_err(NotReady::Rules)?);
        }
        match &*claim {
            Some(BridgeLock::Another) => Err(NotReady::Taken { name: self.settings.bridge.clone() }),
            Some(BridgeLock::Ours { .. }) | None => Ok(()),
        }
    }

    /// Whether another daemon has it, as far as was asked.
    pub(super) fn is_of_another_daemon(&self) -> bool {
        matches!(*lock(&self.claim), Some(BridgeLock::Another))
    }

    fn try_acquire(&self) -> Result<BridgeLock, NetlinkError> {
        let socket = Socket::netfilter()?;
        let name = format!("{}_claim", self.settings.table);
        for _ in 0..TRIES {
            match nft::own_table(&socket, &name) {
                Ok(true) => return Ok(BridgeLock::Ours { _socket: socket }),
                Ok(false) => std::thread::sleep(PAUSE),
                // Linux before 5.12: nobody is kept away there.
                Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                    tracing::debug!(%error, "this kernel has no tables with owners");
                    return Ok(BridgeLock::Ours { _socket: socket });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(BridgeLock::Another)
    }
}
