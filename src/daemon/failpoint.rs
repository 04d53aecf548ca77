//! Failpoints: a test makes a named step fail, or kills the daemon there.
//!
//! `CRISP_FAILPOINTS="run_pod.sandbox=fail,create.cgroup=kill"`. Only in builds with the feature
//! `failpoints`; otherwise [`at`] does nothing.

/// A step that a test made fail.
#[derive(Debug, thiserror::Error)]
#[error("a test made this step fail with failpoint {0}")]
pub(crate) struct InjectedFailure(pub(crate) &'static str);

/// Passes, fails or kills the process, as `CRISP_FAILPOINTS` sets for `point`.
#[cfg(feature = "failpoints")]
pub(crate) fn at(point: &'static str) -> Result<(), InjectedFailure> {
    if passes(point) { Ok(()) } else { Err(InjectedFailure(point)) }
}

#[cfg(feature = "failpoints")]
fn passes(point: &str) -> bool {
    let wish = std::env::var("CRISP_FAILPOINTS").unwrap_or_default();
    let action = wish.split(',').find_map(|w| w.split_once('=').filter(|(name, _)| *name == point).map(|(_, a)| a));
    if action == Some("kill") {
        let own = nix::unistd::getpid();
        nix::sys::signal::kill(own, nix::sys::signal::Signal::SIGKILL).ok();
    }
    !matches!(action, Some("kill" | "fail"))
}

/// Returns a cgroup where every write is a failpoint; the first is `resize.write.0`.
#[cfg(feature = "failpoints")]
pub(crate) fn with_failpoints(group: &cgroup::Cgroup) -> impl cgroup::CgroupFs {
    cgroup_fs::FailpointCgroupFs::new(group.clone())
}

#[cfg(not(feature = "failpoints"))]
pub(crate) fn with_failpoints(group: &cgroup::Cgroup) -> cgroup::Cgroup {
    group.clone()
}

#[cfg(feature = "failpoints")]
mod cgroup_fs {
    use std::cell::Cell;
    use std::io;
    use std::path::PathBuf;

    use cgroup::{Cgroup, CgroupFs, Knob, SyncError, Values, Version};
    use model::resources::HugePageSize;

    pub(super) struct FailpointCgroupFs {
        group: Cgroup,
        writes: Cell<usize>,
    }

    impl FailpointCgroupFs {
        pub(super) fn new(group: Cgroup) -> Self {
            Self { group, writes: Cell::new(0) }
        }
    }

    impl CgroupFs for FailpointCgroupFs {
        fn version(&self) -> Version {
            self.group.version()
        }

        fn exists(&self) -> bool {
            self.group.exists()
        }

        fn read(&self, knob: &Knob) -> io::Result<String> {
            self.group.read(knob)
        }

        fn write(&self, knob: &Knob, value: &str) -> io::Result<()> {
            let number = self.writes.replace(self.writes.get() + 1);
            let point = format!("resize.write.{number}");
            if super::passes(&point) { self.group.write(knob, value) } else { Err(io::Error::other(point)) }
        }

        fn location(&self, knob: &Knob) -> PathBuf {
            self.group.location(knob)
        }

        fn huge_page_sizes(&self) -> Vec<HugePageSize> {
            self.group.huge_page_sizes()
        }

        fn sync_manager(&self, changed: &Values) -> Result<(), SyncError> {
            self.group.sync(changed)
        }
    }
}

#[cfg(not(feature = "failpoints"))]
#[inline]
pub(crate) fn at(_: &'static str) -> Result<(), InjectedFailure> {
    Ok(())
}
