//! One verb at a time for each pod.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Whose turn it is, by pod.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until nobody else is at the pod.
    pub(super) async fn take(&self, pod: &str) -> OwnedMutexGuard<()> {
        self.of(pod).lock_owned().await
    }

    fn of(&self, pod: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(pod).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(pod.to_owned(), Arc::downgrade(&turn));
        turn
    }
}
