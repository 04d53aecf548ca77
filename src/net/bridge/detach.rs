//! Detaches a pod from the bridge.

use std::net::IpAddr;

use model::{ErrorClass, ErrorKind};

use super::host_ports::conntrack;
use super::link::{self, neighbor};
use super::link::{LinkRemoval, PendingLink};
use super::netlink::{Batch, NetlinkError, Socket};
use super::state::Bridge;

/// A pod that could not be detached completely. A repeated call continues.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    #[error("removing the pod's nftables rules")]
    Ports(#[source] NetlinkError),
    #[error("disconnecting the pod from the bridge")]
    Link(#[source] NetlinkError),
}

impl ErrorClass for DetachError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Ports(_) | Self::Link(_) => ErrorKind::Internal,
        }
    }
}

impl Bridge {
    /// Removes the host ports, the interface and the addresses of a pod; a missing one is not an
    /// error, nor is a missing namespace. When this returns, no packet passes and the host ports
    /// are free. The kernel removes the interface in the background, in about 20 ms; then the
    /// addresses are free.
    pub fn detach(&self, pod: &str) -> Result<LinkRemoval, DetachError> {
        let name = self.link_name(pod);
        let (another, neighbors) = {
            let state = self.lock();
            let ips = state.attached.get(pod).cloned().unwrap_or_default();
            (self.is_of_another(&state, pod), state.made.map(|made| (made.index, ips)))
        };
        // First: the bridge filters a pod's packets only while the pod is in its sets.
        let down = if another { Ok(false) } else { take_down(&name, neighbors).map_err(DetachError::Link) };
        let closed = self.close(pod).map_err(DetachError::Ports);
        if !down? {
            let mut state = self.lock();
            state.pool.release(pod);
            state.leaving.remove(pod);
            return closed.map(|()| LinkRemoval::done());
        }
        self.lock().leaving.insert(pod.to_owned());
        let removal = self.remove_links(vec![PendingLink { name, pod: Some(pod.to_owned()) }]);
        closed.map(|()| removal)
    }

    fn close(&self, pod: &str) -> Result<(), NetlinkError> {
        let mut state = self.lock();
        let forwards = state.ports.release(pod);
        let link: Vec<_> = state.attached.remove(pod).map(|ips| self.pod_link(pod, &ips)).into_iter().collect();
        // Without the lock the tables belong to another daemon and contain nothing of this one.
        let removed = if (forwards.is_empty() && link.is_empty()) || self.is_of_another_daemon() {
            Ok(())
        } else {
            self.remove_elements(&mut state, &link, &forwards)
        };
        state.ports.sockets.release(pod);
        drop(state);
        removed?;
        if forwards.iter().any(conntrack::is_udp) {
            // After a failure, senders may miss the next pod with this port until their entries
            // expire.
            let forget = |list: &Socket| self.netfilter(|change| conntrack::forget_after((list, change), &forwards));
            self.netfilter(forget).ok();
        }
        Ok(())
    }
}

/// Takes an interface down and removes its neighbours from the bridge. Returns false if it does not
/// exist.
fn take_down(name: &str, neighbors: Option<(u32, Vec<IpAddr>)>) -> Result<bool, NetlinkError> {
    let mut batch = Batch::new();
    if let Some((bridge, ips)) = neighbors {
        ips.iter().for_each(|ip| neighbor::remove(&mut batch, bridge, *ip));
    }
    link::down(&mut batch, name);
    match Socket::route()?.request(batch) {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(false),
        Err(error) => Err(error),
    }
}
