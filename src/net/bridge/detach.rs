//! Detaching a pod.

use model::{ErrorClass, ErrorKind};

use super::host_ports::conntrack;
use super::link;
use super::link::{LinkRemoval, PendingLink};
use super::netlink::{Batch, NetlinkError, Socket};
use super::state::Bridge;

/// What could not be taken back. Trying again goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    #[error("closing host ports")]
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
        let closed = self.close_ports(pod).map_err(DetachError::Ports);
        let name = self.link_name(pod);
        if self.is_of_another(&self.lock(), pod) || !take_down(&name).map_err(DetachError::Link)? {
            let mut state = self.lock();
            state.pool.release(pod);
            state.leaving.remove(pod);
            return closed.map(|()| LinkRemoval::done());
        }
        self.lock().leaving.insert(pod.to_owned());
        let removal = self.remove_links(vec![PendingLink { name, pod: Some(pod.to_owned()) }]);
        closed.map(|()| removal)
    }

    fn close_ports(&self, pod: &str) -> Result<(), NetlinkError> {
        let mut state = self.lock();
        let forwards = state.ports.release(pod);
        // What another daemon has is not ours to change; of ours nothing is in it.
        if forwards.is_empty() || self.is_of_another_daemon() {
            return Ok(());
        }
        self.remove_ports(&mut state, &forwards)?;
        drop(state);
        if forwards.iter().any(conntrack::is_udp) {
            // Without it senders go on missing the next pod for a while, and nothing else.
            self.netfilter(|socket| conntrack::forget_after(socket, &forwards)).ok();
        }
        Ok(())
    }
}

/// Cuts an interface off. False where there is none.
fn take_down(name: &str) -> Result<bool, NetlinkError> {
    let mut batch = Batch::new();
    link::down(&mut batch, name);
    match Socket::route()?.ask(batch) {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(false),
        Err(error) => Err(error),
    }
}
