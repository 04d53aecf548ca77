//! Holds the shim's own namespaces open while it is in others, and returns to them.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns};

/// Every kind of namespace that the shim enters or leaves, by its name under `/proc`.
pub(crate) const KINDS: [(CloneFlags, &str); 6] = [
    (CloneFlags::CLONE_NEWPID, "pid"),
    (CloneFlags::CLONE_NEWNET, "net"),
    (CloneFlags::CLONE_NEWIPC, "ipc"),
    (CloneFlags::CLONE_NEWUTS, "uts"),
    (CloneFlags::CLONE_NEWCGROUP, "cgroup"),
    // Last when restoring: it brings back the host's root.
    (CloneFlags::CLONE_NEWNS, "mnt"),
];

/// The namespaces of this process, held open while it is in others. A process with one thread can
/// enter others and return without a child.
#[derive(Debug)]
#[must_use = "the process must return to its namespaces"]
pub struct SavedNamespaces(Vec<(CloneFlags, File)>);

impl SavedNamespaces {
    /// Opens the current namespaces of `kinds`.
    pub fn save(kinds: CloneFlags) -> io::Result<Self> {
        let open = |(flag, name)| Ok((flag, File::open(format!("/proc/self/ns/{name}"))?));
        let held = KINDS.into_iter().filter(|(flag, _)| kinds.contains(*flag)).map(open).collect::<io::Result<_>>()?;
        Ok(Self(held))
    }

    /// Returns to them. The shim exits if it cannot: it could not serve requests, and a container
    /// could hold it.
    pub fn restore(self) {
        for (flag, namespace) in self.0 {
            if let Err(errno) = setns(namespace, flag) {
                crate::log(format_args!("the way back from other namespaces is closed: {errno}"));
                std::process::abort();
            }
        }
    }

    /// Returns all kinds.
    pub(crate) fn kinds() -> CloneFlags {
        KINDS.iter().fold(CloneFlags::empty(), |all, (flag, _)| all | *flag)
    }
}
