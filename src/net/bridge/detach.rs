//! Detaching a pod.

use std::net::IpAddr;

use model::{ErrorClass, ErrorKind};

use super::host_ports::conntrack;
use super::link::{self, neighbor};
use super::link::{LinkRemoval, PendingLink};
use super::netlink::{Batch, NetlinkError, Socket};
use super::state::Bridge;

/// What could not be taken back. Trying again goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    #[error("removing the rules for the pod")]
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
    /// Takes back all that a pod has: host ports, interface, addresses. What is missing is no error, the pod itself included.
    ///
    /// Its network namespace may be gone already, and its interface with it. When this returns, the pod is cut off and its host
    /// ports are free. The kernel takes some 20 ms to let go of an interface; nobody has to wait for that, and the addresses are
    /// free after it.
    pub fn detach(&self, pod: &str) -> Result<LinkRemoval, DetachError> {
        let name = self.link_name(pod);
        let (another, neighbors) = {
            let state = self.lock();
            let ips = state.attached.get(pod).cloned().unwrap_or_default();
            (self.is_of_another(&state, pod), state.made.map(|made| (made.index, ips)))
        };
        // First, since the bridge looks at what the pod sends no longer than it knows the pod.
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
        // What another daemon has is not ours to change; of ours nothing is in it.
        let removed = if (forwards.is_empty() && link.is_empty()) || self.is_of_another_daemon() {
            Ok(())
        } else {
            self.remove_elements(&mut state, &link, &forwards)
        };
        state.ports.sockets.release(pod);
        drop(state);
        removed?;
        if forwards.iter().any(conntrack::is_udp) {
            // Without it senders go on missing the next pod for a while, and nothing else.
            let forget = |list: &Socket| self.netfilter(|change| conntrack::forget_after((list, change), &forwards));
            self.netfilter(forget).ok();
        }
        Ok(())
    }
}

/// Cuts an interface off, and has the bridge's neighbours forgotten that were behind it. False where there is none.
fn take_down(name: &str, neighbors: Option<(u32, Vec<IpAddr>)>) -> Result<bool, NetlinkError> {
    let mut batch = Batch::new();
    if let Some((bridge, ips)) = neighbors {
        ips.iter().for_each(|ip| neighbor::remove(&mut batch, bridge, *ip));
    }
    link::down(&mut batch, name);
    match Socket::route()?.ask(batch) {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(false),
        Err(error) => Err(error),
    }
}
