//! Logs the end of every container, with what the kernel still knows about it.

use cgroup::{MemoryExtent, ReadBuffer};
use model::ContainerState;

use crate::log_names::LogNames;
use crate::runtime::Runtime;
use crate::store::{ContainerRecord, Entry};

impl Runtime {
    /// Logs a container that has just exited: once, whether its shim or the kernel reported it.
    ///
    /// Called before its limits are released. Values that the kernel no longer has are left out, such as those of
    /// a scope that systemd removed.
    pub(crate) fn log_exit(&self, entry: &Entry<ContainerRecord>) {
        let record = entry.get();
        let ContainerState::Exited { started, exit } = &record.state else { return };
        let MemoryExtent { limit: memory_limit_bytes, peak: memory_peak_bytes, oom_kills } =
            self.cgroup_of(entry).memory_extent(&mut ReadBuffer::default()).unwrap_or_default();
        let ran = started.and_then(|started| exit.at.duration_since(started).ok());
        let ran_ms = ran.and_then(|ran| u64::try_from(ran.as_millis()).ok());
        let (code, reason, detail) = (exit.code, exit.reason(), exit.detail());
        let pod = self.pod(record.pod.as_str()).ok();
        LogNames::of_container(&record, pod.as_deref()).event_span().in_scope(|| match exit.oom {
            true => tracing::warn!(
                code,
                reason,
                detail,
                ran_ms,
                memory_limit_bytes,
                memory_peak_bytes,
                oom_kills,
                "container exited"
            ),
            false => tracing::info!(
                code,
                reason,
                detail,
                ran_ms,
                memory_limit_bytes,
                memory_peak_bytes,
                oom_kills,
                "container exited"
            ),
        });
    }
}
