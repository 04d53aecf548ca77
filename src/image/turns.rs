//! Keyed locks: work on the same thing is done one after another, on different things at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Weak<AsyncMutex<()>>>>);

/// Held while it is our turn.
pub(crate) type Turn = OwnedMutexGuard<()>;

impl Turns {
    /// Waits until nobody else works on `key`.
    pub(crate) async fn take(&self, key: &str) -> Turn {
        self.queue(key).lock_owned().await
    }

    /// [`Turns::take`] on a thread that may block.
    pub(crate) fn take_blocking(&self, key: &str) -> Turn {
        self.queue(key).blocking_lock_owned()
    }

    fn queue(&self, key: &str) -> Arc<AsyncMutex<()>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(key).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::default();
        queues.insert(key.to_owned(), Arc::downgrade(&queue));
        queue
    }
}
