//! Removes what pods that no longer exist left behind.

use std::collections::BTreeMap;

use model::{ErrorClass, ErrorKind};

use super::link::{LinkRemoval, PendingLink};
use super::netlink::{NetlinkError, Socket};
use super::setup::NotReady;
use super::state::Bridge;

/// A cleanup that failed.
#[derive(Debug, thiserror::Error)]
pub enum GcError {
    #[error("removing interfaces of pods that no longer exist")]
    Links(#[source] NetlinkError),
    #[error(transparent)]
    NotReady(#[from] NotReady),
}

impl ErrorClass for GcError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Links(_) => ErrorKind::Internal,
            Self::NotReady(e) => e.kind(),
        }
    }
}

impl Bridge {
    /// Removes interfaces and host ports of unknown pods, and repairs those of the known ones.
    /// Changes nothing else on the host. Returns the names of the interfaces that are being
    /// removed.
    pub fn gc(&self) -> Result<(Vec<String>, LinkRemoval), GcError> {
        let mut state = self.lock();
        let socket = Socket::route().map_err(GcError::Links)?;
        let links = socket.links().map_err(GcError::Links)?;
        let (prefix, stay) = (self.link_prefix(), self.remaining(&state));
        let ours = links.iter().filter(|link| link.kind == "veth" && link.name.starts_with(&prefix));
        let gone: Vec<_> = ours.map(|link| link.name.clone()).filter(|name| !stay.contains(name)).collect();
        // On a node with another network for its pods there is nothing to repair.
        let in_use = state.pool.taken().next().is_some() || links.iter().any(|link| link.name == self.settings.bridge);
        if in_use || !gone.is_empty() {
            self.acquire()?;
        }
        // Pods whose interface another process removed are detached already.
        let owners: BTreeMap<_, _> = state.leaving.iter().map(|pod| (self.link_name(pod), pod.clone())).collect();
        for (_, pod) in owners.iter().filter(|(name, _)| !gone.contains(name)) {
            state.pool.release(pod);
            state.leaving.remove(pod);
        }
        let link = |name: &String| PendingLink { name: name.clone(), pod: owners.get(name).cloned() };
        let removal = self.remove_links(gone.iter().map(link).collect());
        if in_use {
            state.rules = None;
            self.make(&mut state)?;
        }
        Ok((gone, removal))
    }
}
