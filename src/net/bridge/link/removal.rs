//! Removes interfaces on a background thread, and frees their addresses afterwards.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use sync::Mutex;

use crate::bridge::link;
use crate::bridge::netlink::{Batch, Socket};
use crate::bridge::state::{Bridge, State, lock};

/// Interfaces that the kernel is removing.
#[derive(Debug)]
pub struct LinkRemoval(Option<JoinHandle<()>>);

impl LinkRemoval {
    pub(in crate::bridge) fn done() -> Self {
        Self(None)
    }

    /// Waits until they are removed and the addresses of their pods are free. Optional.
    pub fn wait(self) {
        if let Some(thread) = self.0 {
            // The thread returns nothing and cannot panic.
            thread.join().ok();
        }
    }
}

/// An interface to remove, and the pod whose addresses are free afterwards.
#[derive(Debug, Clone)]
pub(in crate::bridge) struct PendingLink {
    pub(in crate::bridge) name: String,
    pub(in crate::bridge) pod: Option<String>,
}

impl Bridge {
    /// Removes interfaces on a thread that waits for the kernel.
    pub(in crate::bridge) fn remove_links(&self, links: Vec<PendingLink>) -> LinkRemoval {
        let (state, list) = (self.shared(), links.clone());
        match Builder::new().name("net-removal".to_owned()).spawn(move || remove(&state, &list)) {
            Ok(thread) => LinkRemoval(Some(thread)),
            Err(_) => {
                remove(&self.shared(), &links);
                LinkRemoval::done()
            }
        }
    }
}

/// If an interface cannot be removed, its addresses stay reserved until the next [`Bridge::gc`].
fn remove(state: &Arc<Mutex<State>>, links: &[PendingLink]) {
    for PendingLink { name, pod } in links {
        let mut batch = Batch::new();
        link::remove(&mut batch, name);
        if let Err(error) = Socket::route().and_then(|socket| socket.request(batch)) {
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::warn!(interface = name, error, "cannot remove the network interface of a pod; will retry");
            continue;
        }
        if let Some(pod) = pod {
            let mut state = lock(state);
            state.pool.release(pod);
            state.leaving.remove(pod);
        }
    }
}
