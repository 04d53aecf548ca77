//! Detects connections without traffic, to close them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct IdleTimer {
    begin: Instant,
    /// Time of the last traffic in milliseconds since the creation.
    last: AtomicU64,
}

impl IdleTimer {
    pub(crate) fn new() -> Self {
        Self { begin: Instant::now(), last: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn touch(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// Returns when there was no traffic for `limit`.
    pub(crate) async fn idle(&self, limit: Duration) {
        loop {
            let still = Duration::from_millis(self.now().saturating_sub(self.last.load(Ordering::Relaxed)));
            match limit.checked_sub(still) {
                Some(left) if !left.is_zero() => tokio::time::sleep(left).await,
                _ => return,
            }
        }
    }
}
