//! The configuration of a container's launch in addition to its OCI configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::LayerNumber;
use serde::{Deserialize, Serialize};

/// `launch.json` in the container's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchConfig {
    pub rootfs: Overlay,
    /// Images mounted in the container: the layers of each by image id, as in [`Overlay::lower`].
    #[serde(default)]
    pub images: BTreeMap<String, Vec<LayerNumber>>,
    pub tty: bool,
    /// Keep stdin open for attach clients; otherwise it is empty.
    pub stdin: bool,
    pub stdin_once: bool,
    /// Maximum length of a log line in bytes; longer ones are split.
    pub log_line_max: u32,
    /// Maximum log rate in bytes per second; 0 is unlimited.
    #[serde(default)]
    pub log_rate_max: u64,
    /// A compiled seccomp filter, 8 bytes for each instruction.
    pub seccomp: Option<PathBuf>,
    /// The score at creation. A later one is in [`crate::ExecRequest`].
    pub oom_score_adj: Option<i32>,
    /// Hooks must run after the program has started; they are in the OCI configuration.
    #[serde(default)]
    pub poststart: bool,
    /// The log, for the launcher to open; `None` if it is sent with the request, or nothing is
    /// logged.
    #[serde(default)]
    pub log: Option<LogPath>,
    /// Host directories of mounts, which the launcher creates if they are missing.
    #[serde(default)]
    pub mount_sources: Vec<PathBuf>,
    pub cgroup: CgroupPaths,
}

/// The path of a log: a file below the log directory of its pod.
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

/// The container's root file system: read-only layers below a writable one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// The directory with all layers. `lowerdir` is relative to it, since mount options are limited to one page.
    pub layers: PathBuf,
    /// Top-most first.
    pub lower: Vec<LayerNumber>,
    pub upper: PathBuf,
    pub work: PathBuf,
}

/// The container's cgroups: those its processes join, and those mounted in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    /// The file with the `oom_kill` count.
    pub oom: Option<PathBuf>,
    /// Every `cgroup.procs` that a process of the container writes its pid to.
    pub join: Vec<PathBuf>,
    /// On v1: the directories mounted read-only below `/sys/fs/cgroup`. Empty on v2, where the
    /// cgroup namespace hides other cgroups.
    pub shown: Vec<CgroupMount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMount {
    /// The directory name, such as `cpu,cpuacct`.
    pub name: String,
    pub dir: PathBuf,
    /// Other names for it, such as `cpu` and `cpuacct`.
    pub aliases: Vec<String>,
}
