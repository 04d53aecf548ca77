//! Who waits to end a pod.

use tokio::sync::watch;

/// How many there are. What is being made in the pod is given up for them: it may never be done.
#[derive(Debug, Default)]
pub(crate) struct StopWaiters(watch::Sender<usize>);

/// One of them, until this is dropped.
#[derive(Debug)]
#[must_use = "who waits holds this"]
pub(crate) struct StopWaiter<'a>(&'a StopWaiters);

impl StopWaiters {
    pub(crate) fn wait(&self) -> StopWaiter<'_> {
        self.0.send_modify(|count| *count += 1);
        StopWaiter(self)
    }

    pub(crate) fn is_awaited(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Until somebody does.
    pub(crate) async fn awaited(&self) {
        // The sender is here.
        self.0.subscribe().wait_for(|count| *count > 0).await.ok();
    }
}

impl Drop for StopWaiter<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
