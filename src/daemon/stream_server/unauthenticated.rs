//! Connections that have not shown a token yet: anybody on this machine may make one.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use sync::Mutex;
use tokio::task::AbortHandle;

/// The most that wait at the same time. One more, and the oldest has to go: a client that means it says what it wants at once.
const MOST: usize = 256;

#[derive(Debug, Default)]
pub(super) struct UnauthenticatedConns(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    waiting: BTreeMap<u64, AbortHandle>,
}

impl UnauthenticatedConns {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// Lets in what `begin` starts; its number comes along, to leave with.
    pub(super) fn enter(&self, begin: impl FnOnce(u64) -> AbortHandle) {
        let mut inner = self.inner();
        inner.next += 1;
        let number = inner.next;
        // It cannot leave before it is in: that takes the same lock.
        let handle = begin(number);
        inner.waiting.insert(number, handle);
        if inner.waiting.len() > MOST
            && let Some((_, oldest)) = inner.waiting.pop_first()
        {
            oldest.abort();
        }
    }

    pub(super) fn leave(&self, number: u64) {
        self.inner().waiting.remove(&number);
    }
}
