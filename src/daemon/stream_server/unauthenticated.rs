//! Connections that have not shown a token yet; any process on the host can open them.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use sync::Mutex;
use tokio::task::AbortHandle;

/// Maximum number. One more closes the oldest: a client sends its request immediately.
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

    /// Adds the connection that `begin` starts; it gets its number, for `leave`.
    pub(super) fn enter(&self, begin: impl FnOnce(u64) -> AbortHandle) {
        let mut inner = self.inner();
        inner.next += 1;
        let number = inner.next;
        // `leave` cannot come first: it takes the same lock.
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
