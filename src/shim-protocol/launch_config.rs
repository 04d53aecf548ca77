//! What a shim needs for a container beside its OCI configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// `launch.json` in the container's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchConfig {
    pub rootfs: Overlay,
    /// The images that are mounted in the container: the layers of each by its id, as in [`Overlay::lower`].
    #[serde(default)]
    pub images: BTreeMap<String, Vec<String>>,
    pub tty: bool,
    /// Keep a stdin open for those who attach; else it is empty.
    pub stdin: bool,
    pub stdin_once: bool,
    /// Longer log lines are split.
    pub log_line_max: u32,
    /// The most that is written to the log, in bytes a second; 0: no limit.
    #[serde(default)]
    pub log_rate_max: u64,
    /// A compiled seccomp filter, 8 bytes for each instruction.
    pub seccomp: Option<PathBuf>,
    pub oom_score_adj: Option<i32>,
    /// Hooks are to run once the program does; what they are is in the OCI configuration.
    #[serde(default)]
    pub poststart: bool,
    /// The log, for the launcher to open; none: it comes beside the request, or nothing is logged.
    #[serde(default)]
    pub log: Option<LogPath>,
    /// Directories that are mounted, for the launcher to make where they are missing.
    #[serde(default)]
    pub mount_sources: Vec<PathBuf>,
    pub cgroup: CgroupPaths,
}

/// A log: a file below a directory of its pod's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPath {
    pub directory: PathBuf,
    pub file: PathBuf,
}

impl LaunchConfig {
    pub const FILE: &str = "launch.json";

    #[must_use]
    pub fn path(container_dir: &Path) -> PathBuf {
        container_dir.join(Self::FILE)
    }
}

/// The container's root file system: read-only layers under one it may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// `lower` is relative to it: mount options are limited to one page.
    pub layers: PathBuf,
    /// Top-most first.
    pub lower: Vec<String>,
    pub upper: PathBuf,
    pub work: PathBuf,
}

/// The container's cgroups: where its processes go, and what it sees of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    /// The file with the `oom_kill` count.
    pub oom: Option<PathBuf>,
    /// Every `cgroup.procs` that a process of the container writes itself into.
    pub join: Vec<PathBuf>,
    /// On version 1: the directories shown below `/sys/fs/cgroup`, read-only. Empty on version 2, where the cgroup
    /// namespace shows the container its own.
    pub shown: Vec<CgroupMount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMount {
    /// Such as `cpu,cpuacct`.
    pub name: String,
    pub dir: PathBuf,
    /// Other names for it, such as `cpu` and `cpuacct`.
    pub aliases: Vec<String>,
}
