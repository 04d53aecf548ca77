//! Copies the output of containers to their logs and to attached clients, and reports what was
//! dropped.

use std::time::{Duration, Instant};

use model::ContainerId;
use shim_protocol::Event;

use crate::server::Shim;
use crate::server::container::Container;
use crate::server::poller::Source;
use launcher::io::cri_log::{DroppedBytes, Stream};
use launcher::io::stdio::Flow;
use launcher::launch::report::truncate;

/// The minimum time between two reports of a container's lost output.
const LOST_REPORT_INTERVAL: Duration = Duration::from_secs(10);

impl Shim {
    /// Copies available output to the log.
    pub(crate) fn copy_output(&mut self, id: &ContainerId, stream: Stream) {
        let Self { poller, containers, buffer, .. } = self;
        // Its other stream may have paused it in the same round.
        let Some(container) = containers.get_mut(id).filter(|container| container.paused.is_none()) else { return };
        let (flow, lost) = container.streams.copy_output(stream, buffer);
        if let Flow::Paused(pause) = flow {
            container.paused = Some(Instant::now() + pause);
            self.unwatch_output(id);
        } else if flow == Flow::Ended
            && let Some(fd) = container.streams.fd(stream)
        {
            poller.forget(fd, &Source::Output(id.clone(), stream));
            container.streams.close(stream);
        }
        self.detach_slow(id);
        self.record_dropped(id, lost);
    }

    /// Returns how long the loop may wait before it resumes a paused container.
    pub(crate) fn next_resume(&self) -> Option<Duration> {
        let next = self.containers.values().filter_map(|container| container.paused).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Resumes the containers whose pause is over.
    pub(crate) fn resume_output(&mut self) {
        let now = Instant::now();
        let over = |container: &Container| container.paused.is_some_and(|until| until <= now);
        while let Some(id) = self.containers.iter().find(|(_, container)| over(container)).map(|(id, _)| id.clone()) {
            if let Some(container) = self.containers.get_mut(&id) {
                container.paused = None;
            }
            self.watch_output(&id);
        }
    }

    /// Adds up lost output and reports it at intervals, since a full disk loses every line.
    pub(super) fn record_dropped(&mut self, id: &ContainerId, lost: impl IntoIterator<Item = DroppedBytes>) {
        let Some(container) = self.containers.get_mut(id) else { return };
        for DroppedBytes { bytes, error } in lost {
            container.lost.bytes += bytes;
            container.lost.error = truncate(error.to_string());
        }
        let quiet = container.lost.reported.is_none_or(|reported| reported.elapsed() >= LOST_REPORT_INTERVAL);
        if container.lost.bytes > 0 && quiet {
            self.report_dropped(id);
        }
    }

    pub(super) fn report_dropped(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if container.lost.bytes > 0 {
            let bytes = std::mem::take(&mut container.lost.bytes);
            let error = container.lost.error.clone();
            container.lost.reported = Some(Instant::now());
            self.broadcast(Event::LogLost { container: id.clone(), bytes, error });
        }
    }
}
