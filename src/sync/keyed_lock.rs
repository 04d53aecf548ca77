//! A lock per key: work on the same key runs one after another, work on different keys in parallel.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::Mutex;

/// Locks by key, which exist while they are held or waited for.
#[derive(Debug, Default)]
pub struct KeyedLock(Mutex<HashMap<String, Weak<AsyncMutex<()>>>>);

/// Holds the lock of one key until it is dropped.
pub type KeyedGuard = OwnedMutexGuard<()>;

impl KeyedLock {
    /// Waits for the lock of `key`.
    pub async fn lock(&self, key: &str) -> KeyedGuard {
        self.lock_of(key).lock_owned().await
    }

    /// Does the same as [`KeyedLock::lock`] on a thread that may block.
    pub fn lock_blocking(&self, key: &str) -> KeyedGuard {
        self.lock_of(key).blocking_lock_owned()
    }

    fn lock_of(&self, key: &str) -> Arc<AsyncMutex<()>> {
        let mut locks = self.0.lock();
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_locked_once_at_a_time_and_removed_when_free() {
        let locks = KeyedLock::default();
        let first = locks.lock("a").await;
        let other = locks.lock("b").await;
        let second = tokio::time::timeout(std::time::Duration::from_millis(20), locks.lock("a")).await;
        assert!(second.is_err());
        drop((first, other));
        let _again = locks.lock("a").await;
        assert_eq!(locks.0.lock().len(), 1);
    }
}
