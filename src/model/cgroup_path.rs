//! The path of a cgroup, relative to the root of each hierarchy and safe to join to a mount point.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{ErrorClass, ErrorKind};

/// An absolute cgroup path such as `/kubepods/burstable/pod1/c1`; never the root, without `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CgroupPath(String);

/// A text that is not a valid cgroup path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cgroup path {path:?} {fault}")]
pub struct InvalidCgroupPath {
    path: String,
    fault: &'static str,
}

impl InvalidCgroupPath {
    #[must_use]
    pub fn new(path: &str, fault: &'static str) -> Self {
        Self { path: path.to_owned(), fault }
    }

    /// Returns the error for a path at which the kernel has a file.
    #[must_use]
    pub fn kernel_file(path: &CgroupPath) -> Self {
        Self::new(path.as_str(), "contains the name of a kernel file")
    }
}

impl ErrorClass for InvalidCgroupPath {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// Files that every v1 cgroup or the root of a v1 hierarchy has.
const FILES: [&str; 3] = ["tasks", "notify_on_release", "release_agent"];
/// The kernel names all other files after their controller, or `cgroup`, or `irq` for pressure:
/// `memory.stat`.
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

/// The maximum length of a directory name in the kernel.
const NAME_MAX: usize = 255;
/// The maximum length; with a mount point and a file name a path stays below `PATH_MAX`.
const LENGTH_MAX: usize = 3072;

impl CgroupPath {
    /// Parses a path from a request; doubled and trailing slashes are dropped.
    pub fn new(path: &str) -> Result<Self, InvalidCgroupPath> {
        let invalid = |fault| InvalidCgroupPath::new(path, fault);
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
                return Err(invalid("has \".\" or \"..\" as a component"));
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

    /// Returns a path that no cgroup has: for a record whose cgroup is not known.
    #[must_use]
    pub fn unknown(id: &str) -> Self {
        let name: String = id.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
        Self(format!("/unknown-{name}"))
    }

    /// Returns the path of the child `name`.
    pub fn join(&self, name: &str) -> Result<Self, InvalidCgroupPath> {
        if name.is_empty() || name.contains('/') {
            return Err(InvalidCgroupPath::new(name, "is not a single name"));
        }
        Self::new(&format!("{self}/{name}"))
    }

    /// Iterates over the cgroups above this one, the nearest first, without the root.
    pub fn parents(&self) -> impl Iterator<Item = Self> + '_ {
        let cuts = self.0.rmatch_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
        cuts.map(|at| Self(self.0[..at].to_owned()))
    }

    /// Rejects a path with a component that is the name of a kernel file in any hierarchy: a cgroup
    /// cannot be created there or below. systemd escapes names by the same rule.
    pub fn refuse_kernel_files(self) -> Result<Self, InvalidCgroupPath> {
        let is_file = |name: &str| {
            let prefix = name.split_once('.').map(|(prefix, _)| prefix);
            FILES.contains(&name) || prefix.is_some_and(|prefix| FILE_PREFIXES.contains(&prefix))
        };
        if self.0.split('/').any(is_file) { Err(InvalidCgroupPath::kernel_file(&self)) } else { Ok(self) }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the directory of this cgroup in the hierarchy mounted at `mount`.
    #[must_use]
    pub fn under(&self, mount: &Path) -> PathBuf {
        mount.join(&self.0[1..])
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for CgroupPath {
    type Error = InvalidCgroupPath;
    fn try_from(path: String) -> Result<Self, InvalidCgroupPath> {
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
    fn a_path_with_the_name_of_a_kernel_file_is_refused() {
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

    #[test]
    fn parents_are_listed_up_to_the_root_without_it() {
        let parents = |path: &str| CgroupPath::new(path).unwrap().parents().map(|path| path.0).collect::<Vec<_>>();
        assert_eq!(parents("/kubepods/pod1/c1"), ["/kubepods/pod1", "/kubepods"]);
        assert!(parents("/pod1").is_empty());
    }

    #[test]
    fn a_path_is_stored_as_its_text() {
        let path = CgroupPath::new("/kubepods/pod1").unwrap();
        assert_eq!(serde_json::to_string(&path).unwrap(), r#""/kubepods/pod1""#);
        assert_eq!(serde_json::from_str::<CgroupPath>(r#""/kubepods/pod1""#).unwrap(), path);
        assert!(serde_json::from_str::<CgroupPath>(r#""/kubepods/../x""#).is_err());
    }

    #[test]
    fn the_path_for_an_unknown_cgroup_is_valid() {
        let path = CgroupPath::unknown(&"ab/..".repeat(200));
        assert_eq!(CgroupPath::new(path.as_str()).unwrap(), path);
    }
}
