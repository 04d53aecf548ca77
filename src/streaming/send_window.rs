//! Flow control: how many bytes may be sent to the other side.
//!
//! The client library of Kubernetes never sends window updates, and accepts any amount; a client
//! that sends one is held to the limits. Until then only TCP limits a sender.

use std::collections::HashMap;
use std::sync::MutexGuard;

use sync::Mutex;
use tokio::sync::Notify;

use crate::spdy::WINDOW;

#[derive(Debug, Default)]
pub(crate) struct SendWindow {
    state: Mutex<State>,
    opened: Notify,
}

#[derive(Debug)]
struct State {
    whole: Window,
    /// The windows of open streams, and whether an update was received for any of them.
    streams: HashMap<u32, i64>,
    counted: bool,
}

#[derive(Debug)]
struct Window {
    left: i64,
    counted: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { whole: Window { left: WINDOW.into(), counted: false }, streams: HashMap::new(), counted: false }
    }
}

impl SendWindow {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn open(&self, stream: u32) {
        self.state().streams.insert(stream, WINDOW.into());
    }

    /// Removes the stream and wakes its waiting sender.
    pub(crate) fn close(&self, stream: u32) {
        self.state().streams.remove(&stream);
        self.opened.notify_waiters();
    }

    pub(crate) fn close_all(&self) {
        self.state().streams.clear();
        self.opened.notify_waiters();
    }

    /// Handles a window update. Stream 0 is the whole connection.
    pub(crate) fn widen(&self, stream: u32, more: u32) {
        let mut state = self.state();
        if stream == 0 {
            state.whole.left = state.whole.left.saturating_add(more.into());
            state.whole.counted = true;
        } else if let Some(left) = state.streams.get_mut(&stream) {
            *left = left.saturating_add(more.into());
            state.counted = true;
        }
        drop(state);
        self.opened.notify_waiters();
    }

    /// Waits until bytes may be sent on the stream, and returns how many of `wanted`; `None` if it
    /// is closed.
    pub(crate) async fn pass(&self, stream: u32, wanted: usize) -> Option<usize> {
        loop {
            let mut opened = std::pin::pin!(self.opened.notified());
            // No notification is missed from here on.
            opened.as_mut().enable();
            if let Some(passed) = self.state().take(stream, wanted)? {
                return Some(passed);
            }
            opened.await;
        }
    }
}

impl State {
    fn take(&mut self, stream: u32, wanted: usize) -> Option<Option<usize>> {
        let left = self.streams.get_mut(&stream)?;
        let mut most = i64::try_from(wanted).unwrap_or(i64::MAX);
        if self.counted {
            most = most.min(*left);
        }
        if self.whole.counted {
            most = most.min(self.whole.left);
        }
        if most <= 0 && wanted > 0 {
            return Some(None);
        }
        *left -= most;
        self.whole.left -= most;
        Some(Some(usize::try_from(most).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn pass(window: &SendWindow, stream: u32, wanted: usize) -> Result<Option<usize>, ()> {
        tokio::time::timeout(Duration::from_millis(20), window.pass(stream, wanted)).await.map_err(drop)
    }

    #[tokio::test]
    async fn a_client_without_window_updates_is_sent_everything() {
        let window = SendWindow::default();
        window.open(1);
        for _ in 0..100 {
            assert_eq!(pass(&window, 1, 1 << 20).await, Ok(Some(1 << 20)));
        }
    }

    #[tokio::test]
    async fn a_client_with_window_updates_gets_no_more_than_its_window() {
        let window = SendWindow::default();
        window.open(1);
        window.open(3);
        window.widen(1, 36 << 10);
        assert_eq!(pass(&window, 1, 1 << 20).await, Ok(Some(100 << 10)));
        assert_eq!(pass(&window, 1, 1).await, Err(()));
        assert_eq!(pass(&window, 1, 0).await, Ok(Some(0)), "a close needs no window");
        assert_eq!(pass(&window, 3, 1 << 20).await, Ok(Some(64 << 10)), "each stream has its own window");
        window.widen(1, 5);
        assert_eq!(pass(&window, 1, 10).await, Ok(Some(5)));
        // All streams have sent 164 KiB and 5 bytes of the 64 KiB.
        window.widen(0, (100 << 10) + 6);
        window.widen(1, 100);
        assert_eq!(pass(&window, 1, 10).await, Ok(Some(1)));
        assert_eq!(pass(&window, 1, 10).await, Err(()));
    }

    #[tokio::test]
    async fn closing_a_stream_wakes_its_sender() {
        let window = SendWindow::default();
        window.open(1);
        window.widen(1, 1);
        assert_eq!(pass(&window, 1, 1 << 20).await, Ok(Some((64 << 10) + 1)));
        let (passed, ()) = tokio::join!(window.pass(1, 1), async {
            tokio::task::yield_now().await;
            window.close(1);
        });
        assert_eq!(passed, None);
    }
}
