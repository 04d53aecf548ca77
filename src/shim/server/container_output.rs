//! Copies the output of containers to their logs and to attached clients, and reports what was dropped.

use std::time::{Duration, Instant};

use model::ContainerId;
use shim_protocol::Event;

use crate::server::Shim;
use crate::server::poller::Source;
use launcher::io::cri_log::{DroppedBytes, Stream};
use launcher::io::stdio::Flow;
use launcher::launch::report::truncate;

/// How often at most a container's lost output is told.
const TELL_LOST_EVERY: Duration = Duration::from_secs(10);

impl Shim {
    /// Moves some output to the log.
    pub(crate) fn copy_output(&mut self, id: &ContainerId, stream: Stream) {
        let Self { poller, containers, buffer, .. } = self;
        let Some(container) = containers.get_mut(id) else { return };
        let (flow, lost) = container.streams.copy_output(stream, buffer);
        if flow == Flow::Ended
            && let Some(fd) = container.streams.fd(stream)
        {
            poller.forget(fd, &Source::Output(id.clone(), stream));
            container.streams.close(stream);
        }
        self.detach_slow(id);
        self.record_dropped(id, lost);
    }

    /// Sums up what is lost, and tells of it now and then: a full disk is not told of with every line.
    pub(super) fn record_dropped(&mut self, id: &ContainerId, lost: impl IntoIterator<Item = DroppedBytes>) {
        let Some(container) = self.containers.get_mut(id) else { return };
        for DroppedBytes { bytes, error } in lost {
            container.lost.bytes += bytes;
            container.lost.error = truncate(error.to_string());
        }
        let quiet = container.lost.told.is_none_or(|told| told.elapsed() >= TELL_LOST_EVERY);
        if container.lost.bytes > 0 && quiet {
            self.report_dropped(id);
        }
    }

    pub(super) fn report_dropped(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if container.lost.bytes > 0 {
            let bytes = std::mem::take(&mut container.lost.bytes);
            let error = container.lost.error.clone();
            container.lost.told = Some(Instant::now());
            self.broadcast(Event::LogLost { container: id.clone(), bytes, error });
        }
    }
}
