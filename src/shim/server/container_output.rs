//! Copies the output of containers to their logs and to attached clients, and reports what was dropped.

use std::time::{Duration, Instant};

use model::ContainerId;
use shim_protocol::Event;

use crate::server::Shim;
use crate::server::container::Container;
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
        // One that was paused by its other stream may have been ready at the same time.
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

    /// How long the loop may wait before the next paused container goes on.
    pub(crate) fn next_resume(&self) -> Option<Duration> {
        let next = self.containers.values().filter_map(|container| container.paused).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Reads on from the containers whose pause is over.
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
