//! The parent cgroup of the benchmark's pods, as a kubelet creates one.

use std::io;
use std::sync::Arc;

use cgroup::{Cgroup, Layout};
use model::CgroupPath;

/// A cgroup that is removed on drop, with everything below it.
#[derive(Debug)]
pub(super) struct ParentCgroup(Cgroup);

impl ParentCgroup {
    /// Creates the cgroup at `path`, or at a unique path.
    pub(super) fn make(path: Option<&str>) -> io::Result<Self> {
        let layout = Arc::new(Layout::detect().map_err(io::Error::other)?);
        let own = format!("/crisp-bench-{}", std::process::id());
        let path = CgroupPath::new(path.unwrap_or(&own)).map_err(io::Error::other)?;
        let parent = Self(Cgroup::new(layout, path));
        drop(parent.0.create().map_err(io::Error::other)?);
        Ok(parent)
    }

    /// Creates a child cgroup.
    pub(super) fn child(&self, name: &str) -> io::Result<Cgroup> {
        let child = self.0.child(name).map_err(io::Error::other)?;
        drop(child.create().map_err(io::Error::other)?);
        Ok(child)
    }
}

impl Drop for ParentCgroup {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            tracing::warn!(cgroup = %self.0.path(), %error, "cannot remove the benchmark's parent cgroup; remove it with rmdir");
        }
    }
}
