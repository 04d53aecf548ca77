//! Locks the bridge for one daemon in a network namespace.
//!
//! The lock is an empty nftables table that a socket owns. The kernel refuses the table to others,
//! `nft flush ruleset` leaves it alone, and it is removed with the socket, however the process
//! exits. Creating it needs the same capability as changing the bridge does.

use std::time::Duration;

use super::netlink::{NetlinkError, Socket};
use super::nft;
use super::setup::NotReady;
use super::state::{Bridge, lock};

/// A process that a killed daemon had just started keeps the daemon's sockets for up to this time.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) enum BridgeLock {
    Ours {
        /// Keeps it.
        _socket: Socket,
    },
    /// For good: when the other daemon exits, its pods still use the bridge, and so does its
    /// successor.
    Another,
}

impl Bridge {
    /// Acquires the bridge and its table in this network namespace. Call it before any change.
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

    /// Returns whether another daemon has the bridge, as of the last attempt.
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
                // Linux before 5.12 has no owned tables: two daemons are not detected there.
                Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                    tracing::debug!(%error, "this kernel does not support nftables tables with an owner; a second daemon on this bridge is not detected");
                    return Ok(BridgeLock::Ours { _socket: socket });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(BridgeLock::Another)
    }
}
