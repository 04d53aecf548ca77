//! The path of a cgroup below the top of each tree, safe to join to a mount point.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use serde::{Deserialize, Serialize};

use crate::layout::Layout;

/// An absolute cgroup path such as `/kubepods/burstable/pod1/c1`; never the root, never leaving it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CgroupPath(String);

/// Why a text is no cgroup path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cgroup path {path:?} {fault}")]
pub struct InvalidPath {
    path: String,
    fault: &'static str,
}

impl InvalidPath {
    pub(crate) fn new(path: &str, fault: &'static str) -> Self {
        Self { path: path.to_owned(), fault }
    }

    pub fn kind(&self) -> model::ErrorKind {
        model::ErrorKind::Invalid
    }
}

/// Files that the kernel has in every cgroup of v1, or at the top of a tree.
const FILES: [&str; 3] = ["tasks", "notify_on_release", "release_agent"];
/// The kernel names all other files after their controller, or `cgroup`, and `irq` for pressure: `memory.stat`.
const FILE_PREFIXES: [&str; 21] = [
    "cgroup",
    "blkio",
    "bpf",
    "cpu",
    "cpuacct",
    "cpuset",
    "debug",
    "devices",
    "dmem",
    "freezer",
    "hugetlb",
    "io",
    "irq",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
    "zswap",
];

/// The longest name the kernel gives to a directory.
const NAME_MAX: usize = 255;
/// Together with a mount point and a file name this stays below PATH_MAX.
const LENGTH_MAX: usize = 3072;

impl CgroupPath {
    /// Takes a path as it comes in a request; doubled and trailing slashes are dropped.
    pub fn new(path: &str) -> Result<Self, InvalidPath> {
        let invalid = |fault| InvalidPath { path: path.to_owned(), fault };
        let relative = path.strip_prefix('/').ok_or_else(|| invalid("is not absolute"))?;
        let names: Vec<&str> = relative.split('/').filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return Err(invalid("names the root"));
        }
        if path.len() > LENGTH_MAX {
            return Err(invalid("is too long"));
        }
        for name in &names {
            if *name == "." || *name == ".." {
                return Err(invalid("has a component that is no name"));
            }
            if name.len() > NAME_MAX {
                return Err(invalid("has a component that is too long"));
            }
            if name.bytes().any(|b| b.is_ascii_control()) {
                return Err(invalid("has a control character"));
            }
        }
        Ok(Self(format!("/{}", names.join("/"))))
    }

    /// The path of the child `name`.
    pub fn join(&self, name: &str) -> Result<Self, InvalidPath> {
        if name.is_empty() || name.contains('/') {
            return Err(InvalidPath { path: name.to_owned(), fault: "is not a single name" });
        }
        Self::new(&format!("{self}/{name}"))
    }

    /// Refuses a path that names a file of the kernel's, in any tree: no cgroup can be made there, nor below. By the rule
    /// after which systemd escapes names.
    pub fn refuse_kernel_files(self) -> Result<Self, InvalidPath> {
        let is_file = |name: &str| {
            let prefix = name.split_once('.').map(|(prefix, _)| prefix);
            FILES.contains(&name) || prefix.is_some_and(|prefix| FILE_PREFIXES.contains(&prefix))
        };
        if self.0.split('/').any(is_file) { Err(Self::is_kernel_file(self.0)) } else { Ok(self) }
    }

    /// The same, by what is there now: files of controllers that the names above do not know.
    pub fn refuse_existing_files(self, layout: &Layout) -> Result<Self, InvalidPath> {
        let is_file = |mount: &Path| match fs::symlink_metadata(self.under(mount)) {
            Ok(found) => !found.is_dir(),
            Err(e) => e.kind() == io::ErrorKind::NotADirectory,
        };
        if layout.mounts().into_iter().any(is_file) { Err(Self::is_kernel_file(self.0)) } else { Ok(self) }
    }

    fn is_kernel_file(path: String) -> InvalidPath {
        InvalidPath { path, fault: "names a file of the kernel's" }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory of this cgroup in the tree mounted at `mount`.
    pub(crate) fn under(&self, mount: &Path) -> PathBuf {
        mount.join(&self.0[1..])
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for CgroupPath {
    type Error = InvalidPath;
    fn try_from(path: String) -> Result<Self, InvalidPath> {
        Self::new(&path)
    }
}

impl From<CgroupPath> for String {
    fn from(path: CgroupPath) -> String {
        path.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_from_a_request_cannot_leave_the_tree() {
        for bad in ["", "/", "//", "a", "a/b", "/a/../b", "/..", "/a/.", "/a\0b", "/a\nb"] {
            assert!(CgroupPath::new(bad).is_err(), "{bad:?}");
        }
        assert!(CgroupPath::new(&format!("/{}", "x".repeat(256))).is_err());
        assert!(CgroupPath::new(&"/xxxxxxx".repeat(500)).is_err());
    }

    #[test]
    fn a_path_over_a_file_of_the_kernels_is_refused() {
        for bad in [
            "/cgroup.procs",
            "/cpu.shares",
            "/memory.stat/x",
            "/pods/cgroup.subtree_control/x",
            "/tasks",
            "/pods/release_agent",
            "/irq.pressure",
            "/hugetlb.2MB.max",
            "/cpu.slice",
        ] {
            assert!(CgroupPath::new(bad).unwrap().refuse_kernel_files().is_err(), "{bad:?}");
        }
        for good in ["/kubepods/burstable/pod1", "/kubepods.slice/kubepods-pod1.slice", "/cpu", "/tasks.d", "/cpus.x"] {
            assert_eq!(CgroupPath::new(good).unwrap().refuse_kernel_files().unwrap().as_str(), good);
        }
    }

    #[test]
    fn a_path_through_a_file_that_is_there_is_refused_whatever_its_name() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("pods")).unwrap();
        fs::write(root.path().join("pods/future"), "").unwrap();
        let layout = Layout::V2 { root: root.path().to_owned() };
        let refused = |path: &str| CgroupPath::new(path).unwrap().refuse_existing_files(&layout).is_err();
        assert!(refused("/pods/future") && refused("/pods/future/x"));
        assert!(!refused("/pods") && !refused("/pods/new") && !refused("/new/x"));
    }

    #[test]
    fn slashes_are_normalised() {
        let path = CgroupPath::new("/kubepods//pod1/").unwrap();
        assert_eq!(path.as_str(), "/kubepods/pod1");
        assert_eq!(path.under(Path::new("/sys/fs/cgroup/cpu")), Path::new("/sys/fs/cgroup/cpu/kubepods/pod1"));
    }

    #[test]
    fn a_child_is_one_name() {
        let pod = CgroupPath::new("/pod").unwrap();
        assert_eq!(pod.join("c1").unwrap().as_str(), "/pod/c1");
        for bad in ["", "..", "a/b", "/"] {
            assert!(pod.join(bad).is_err(), "{bad:?}");
        }
    }
}
