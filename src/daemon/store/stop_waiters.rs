//! Requests that wait to stop a pod.

use tokio::sync::watch;

/// The number of requests. A create in the pod is abandoned for them, because it may never end.
#[derive(Debug, Default)]
pub(crate) struct StopWaiters(watch::Sender<usize>);

/// A waiting request, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the wait"]
pub(crate) struct StopWaiter<'a>(&'a StopWaiters);

impl StopWaiters {
    pub(crate) fn wait(&self) -> StopWaiter<'_> {
        self.0.send_modify(|count| *count += 1);
        StopWaiter(self)
    }

    pub(crate) fn is_awaited(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Waits until there is such a request.
    pub(crate) async fn awaited(&self) {
        // The sender is in self, so the channel cannot close.
        self.0.subscribe().wait_for(|count| *count > 0).await.ok();
    }
}

impl Drop for StopWaiter<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
