//! The file about resizes in a container.
//!
//! It is in a file system of its own, which the container has read-only: a container with `CAP_SYS_ADMIN` can make that
//! mount writable, and then fills only this one.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use model::resources::{Bytes, Micros, ObservedLimits};
use nix::mount::{MsFlags, mount};
use safe_fs::FileError;
use security::Labels;
use serde::Serialize;

/// The directory in the container's directory.
pub(crate) const DIR: &str = "resize-notice";
const FILE: &str = "resources";

/// The content of the file, described in docs/resize.md.
#[derive(Debug, Serialize)]
struct Content {
    version: u32,
    /// Milliseconds since 1970.
    time_ms: u64,
    /// `None` without a limit; so are the others.
    cpu_quota_us: Option<u64>,
    cpu_period_us: Option<u64>,
    memory_bytes: Option<u64>,
}

/// Mounts the file system at `dir`. Unmounted by [`crate::runtime::cleanup`].
pub(crate) fn create(dir: &Path, labels: Option<&Labels>) -> Result<(), FileError> {
    safe_fs::private_dir(dir)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let label = labels.map(|labels| format!(",context=\"{}\"", labels.mount)).unwrap_or_default();
    let options = format!("mode=755,nr_inodes=8,size=64k{label}");
    mount(Some("resize-notice"), dir, Some("tmpfs"), flags, Some(options.as_str()))
        .map_err(|errno| FileError::new("mounting a file system at", dir, errno))
}

/// Replaces the file atomically.
pub(crate) fn write(dir: &Path, limits: &ObservedLimits) -> Result<(), FileError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let content = Content {
        version: 1,
        time_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        cpu_quota_us: limits.cpu_quota.map(|Micros(quota)| quota),
        cpu_period_us: limits.cpu_period.map(|Micros(period)| period),
        memory_bytes: limits.memory.map(|Bytes(bytes)| bytes),
    };
    safe_fs::write_shared_json(&dir.join(FILE), &content)
}
