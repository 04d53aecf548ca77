//! The way back from other namespaces.

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
    // Last on the way back: it brings the host's root.
    (CloneFlags::CLONE_NEWNS, "mnt"),
];

/// The namespaces that this process is in, held open while it is in others. A process with one thread can go and come
/// back without a child.
#[derive(Debug)]
#[must_use = "the way back is to be gone"]
pub struct SavedNamespaces(Vec<(CloneFlags, File)>);

impl SavedNamespaces {
    /// Holds those of the current namespaces that `kinds` names.
    pub fn save(kinds: CloneFlags) -> io::Result<Self> {
        let open = |(flag, name)| Ok((flag, File::open(format!("/proc/self/ns/{name}"))?));
        let held = KINDS.into_iter().filter(|(flag, _)| kinds.contains(*flag)).map(open).collect::<io::Result<_>>()?;
        Ok(Self(held))
    }

    /// Goes back. A shim that cannot, serves nobody and could be held by a container: it ends.
    pub fn restore(self) {
        for (flag, namespace) in self.0 {
            if let Err(errno) = setns(namespace, flag) {
                crate::log(format_args!("the way back from other namespaces is closed: {errno}"));
                std::process::abort();
            }
        }
    }

    /// All kinds there are.
    pub(crate) fn kinds() -> CloneFlags {
        KINDS.iter().fold(CloneFlags::empty(), |all, (flag, _)| all | *flag)
    }
}
