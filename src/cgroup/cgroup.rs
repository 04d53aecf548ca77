//! A cgroup by its path, in all trees of the host: creation, removal, and its files.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fs, io};

use model::resources::{HugePageSize, LimitsPatch};
use model::{CgroupPath, ErrorClass, ErrorKind, InvalidCgroupPath};
use rustix::io::Errno;

use crate::cgroupfs::{make_dirs, read_file, read_once, remove_dir, remove_tree, write_file, write_once};
use crate::created_cgroup::CreatedCgroup;
use crate::driver::Driver;
use crate::file_cache::FileCache;
use crate::layout::{HierarchyKind, Layout, Version};
use crate::limits::apply;
use crate::limits::apply::{ApplyError, CurrentLimits};
use crate::limits::knob::{AppliedValues, CgroupFs, Knob, Values};
use crate::systemd::{SyncError, Systemd, SystemdError, Unit};

/// A cgroup that may not exist yet. Cheap to clone; only files of its cache stay open.
#[derive(Debug, Clone)]
pub struct Cgroup {
    layout: Arc<Layout>,
    path: CgroupPath,
    kept: Option<Arc<FileCache>>,
    /// The unit, if systemd manages the cgroup.
    unit: Option<(Arc<Systemd>, Unit)>,
}

/// A v1 tree as a container sees it, read-only, under `/sys/fs/cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedController {
    /// The directory name: `cpu`, `cpu,cpuacct` or `systemd`.
    pub name: String,
    /// The cgroup's directory on the host.
    pub dir: PathBuf,
    /// Names of symbolic links to `name`.
    pub links: Vec<String>,
}

/// Why a cgroup could not be created, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("creating the cgroup directory {path}")]
    Make { path: PathBuf, source: io::Error },
    #[error("reading the cgroup file {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("writing {value:?} to the cgroup file {path}")]
    Write { path: PathBuf, value: String, source: io::Error },
    #[error("removing the cgroup directory {path}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("changing the unit {unit} in systemd")]
    Systemd { unit: String, source: SystemdError },
    #[error("sending SIGKILL to process {pid} of a cgroup")]
    Kill { pid: NonZeroU32, source: io::Error },
    #[error("cannot freeze or kill cgroup {0}: the calling crisp process is in it")]
    Own(CgroupPath),
    #[error("cannot freeze cgroup {0}: the host has no freezer controller")]
    NoFreezer(CgroupPath),
    #[error("cgroup {path} is still not {wanted} after {:.1} s; a process in it may be blocked in the kernel", after.as_secs_f64())]
    TooSlow { path: CgroupPath, wanted: &'static str, after: Duration },
}

impl ErrorClass for CgroupError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Remove { source, .. } if Errno::from_io_error(source) == Some(Errno::BUSY) => ErrorKind::Busy,
            Self::Make { source, .. } if Errno::from_io_error(source) == Some(Errno::AGAIN) => ErrorKind::Exhausted,
            Self::Make { .. } | Self::Read { .. } | Self::Write { .. } | Self::Remove { .. } | Self::Kill { .. } => {
                ErrorKind::Internal
            }
            Self::Systemd { source, .. } => source.kind(),
            Self::Own(_) => ErrorKind::Precondition,
            Self::NoFreezer(_) => ErrorKind::Unsupported,
            Self::TooSlow { .. } => ErrorKind::Deadline,
        }
    }
}

/// How long `remove` waits until the kernel has released exited processes.
pub(crate) const REMOVE_WITHIN: Duration = Duration::from_secs(2);

impl Cgroup {
    pub fn new(layout: Arc<Layout>, path: CgroupPath) -> Self {
        Self { layout, path, kept: None, unit: None }
    }

    /// Reads through the files that `kept`, the cache of this cgroup, holds open.
    #[must_use]
    pub fn with_file_cache(self, kept: Arc<FileCache>) -> Self {
        Self { kept: Some(kept), ..self }
    }

    pub(crate) fn file_cache(&self) -> Option<&Arc<FileCache>> {
        self.kept.as_ref()
    }

    /// A cgroup that this driver creates. With systemd, crisp itself creates one whose path cannot
    /// be that of a unit.
    pub fn with_driver(layout: Arc<Layout>, driver: &Driver, path: CgroupPath) -> Self {
        let unit = match driver {
            Driver::Cgroupfs => None,
            Driver::Systemd(systemd) => Unit::of(&path).map(|unit| (Arc::clone(systemd), unit)),
        };
        Self { unit, ..Self::new(layout, path) }
    }

    /// The cgroup `name` directly below this one, which crisp creates itself.
    pub fn child(&self, name: &str) -> Result<Self, InvalidCgroupPath> {
        Ok(Self::new(Arc::clone(&self.layout), self.path.join(name)?))
    }

    pub fn path(&self) -> &CgroupPath {
        &self.path
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn shared_layout(&self) -> Arc<Layout> {
        Arc::clone(&self.layout)
    }

    /// Whether changes must be sent to systemd, which takes milliseconds.
    pub fn uses_systemd(&self) -> bool {
        self.unit.is_some()
    }

    /// The unit that systemd has for this cgroup.
    pub(crate) fn unit(&self) -> Option<(&Systemd, &Unit)> {
        self.unit.as_ref().map(|(systemd, unit)| (&**systemd, unit))
    }

    /// The directory of this cgroup in each tree.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.layout.mounts().into_iter().map(|mount| self.path.under(mount))
    }

    /// The directory in which files of `controller` are found.
    pub(crate) fn dir_of(&self, controller: &str) -> Option<PathBuf> {
        self.layout.mount_of(controller).map(|mount| self.path.under(mount))
    }

    /// The directory in the v2 tree, which a hybrid host has too.
    pub(crate) fn unified_dir(&self) -> Option<PathBuf> {
        self.layout.unified().map(|root| self.path.under(root))
    }

    /// Creates the cgroup in every tree, with missing parents, ready for processes and limits.
    /// Existing directories are used unchanged. A failure removes the created ones.
    pub fn create(&self) -> Result<CreatedCgroup, CgroupError> {
        let mut made = CreatedCgroup::default();
        match self.create_into(&mut made) {
            Ok(()) => Ok(made),
            Err(e) => {
                // Only the first failure is reported; directories without processes can be removed.
                drop(made.undo());
                Err(e)
            }
        }
    }

    fn create_into(&self, made: &mut CreatedCgroup) -> Result<(), CgroupError> {
        if let Some((systemd, unit)) = &self.unit
            && systemd.start(unit, self.layout.version()).map_err(|source| request_error(unit, source))?
        {
            made.unit = self.unit.clone();
        }
        // systemd does not support every controller.
        for mount in self.layout.mounts() {
            make_dirs(&self.path.under(mount), &mut made.dirs)?;
        }
        match self.layout.version() {
            Version::V1 => self.prepare_v1(),
            Version::V2 => self.delegate(),
        }
    }

    /// On v1 a new cpuset is empty and accepts no process, and before Linux 5.11 a memory limit may
    /// not include children.
    fn prepare_v1(&self) -> Result<(), CgroupError> {
        if let Some(mount) = self.layout.mount_of("cpuset") {
            let levels = self.levels(mount);
            ["cpuset.cpus", "cpuset.mems"].into_iter().try_for_each(|file| inherit_cpuset(&levels, file))?;
        }
        if let Some(dir) = self.dir_of("memory") {
            let file = dir.join("memory.use_hierarchy");
            if fs::read_to_string(&file).is_ok_and(|value| value.trim() == "0") {
                write_file(&file, "1")?;
            }
        }
        Ok(())
    }

    /// On v2 each level has to enable its controllers for the next. A controller that cannot be
    /// enabled is not an error here: a limit that needs it fails later.
    fn delegate(&self) -> Result<(), CgroupError> {
        let Some(root) = self.layout.unified() else { return Ok(()) };
        for (parent, _) in self.levels(root) {
            let file = parent.join("cgroup.subtree_control");
            let enabled = read_file(&file)?;
            let offered = read_file(&parent.join("cgroup.controllers"))?;
            for controller in offered.split_whitespace().filter(|c| !enabled.split_whitespace().any(|e| e == *c)) {
                drop(write_once(&file, &format!("+{controller}")));
            }
        }
        Ok(())
    }

    /// Returns every step from the top of a tree to this cgroup: a parent and its child.
    fn levels(&self, mount: &Path) -> Vec<(PathBuf, PathBuf)> {
        let mut levels = Vec::new();
        let mut parent = mount.to_owned();
        for name in self.path.as_str()[1..].split('/') {
            let child = parent.join(name);
            levels.push((parent, child.clone()));
            parent = child;
        }
        levels
    }

    /// Whether the cgroup exists in any tree.
    pub fn exists(&self) -> bool {
        self.dirs().any(|dir| dir.is_dir())
    }

    /// Removes the cgroup and its descendants from every tree; none of them may hold a live
    /// process. Thaws first, since a frozen process cannot exit. A missing cgroup is not an error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        self.thaw_all()?;
        if let Some((systemd, unit)) = &self.unit {
            systemd.stop(unit).map_err(|source| request_error(unit, source))?;
        }
        let deadline = Instant::now() + REMOVE_WITHIN;
        self.dirs().try_for_each(|dir| remove_tree(&dir, deadline))
    }

    /// Releases a cgroup of another owner, such as a pod's that the kubelet created. Owners of v1
    /// cgroups do not remove directories in the v2 tree of a hybrid host, where
    /// [`create`](Self::create) of a child made one. A directory in use stays. systemd removes its
    /// own.
    pub fn release_foreign(&self) -> Result<(), CgroupError> {
        if self.unit.is_some() {
            return Ok(());
        }
        let Layout::V1 { unified: Some(root), .. } = &*self.layout else { return Ok(()) };
        match remove_dir(&self.path.under(root), Instant::now()) {
            Err(e) if e.kind() == ErrorKind::Busy => Ok(()),
            outcome => outcome,
        }
    }

    /// The files to which a process writes its pid to join this cgroup.
    pub fn join_files(&self) -> Vec<PathBuf> {
        self.dirs().map(|dir| dir.join("cgroup.procs")).collect()
    }

    /// The content of `/sys/fs/cgroup` of a container in this cgroup. Empty on v2, where a cgroup
    /// namespace provides it. The v2 tree of a hybrid host is not shown: programs would take the
    /// host for a v2 one.
    pub fn mounts(&self) -> Vec<MountedController> {
        let Layout::V1 { hierarchies, .. } = &*self.layout else { return Vec::new() };
        let shown = hierarchies.iter().map(|hierarchy| {
            let (name, links) = match &hierarchy.kind {
                HierarchyKind::Named(name) => (name.clone(), Vec::new()),
                HierarchyKind::Controllers(names) if names.len() == 1 => (names.concat(), Vec::new()),
                HierarchyKind::Controllers(names) => (names.join(","), names.clone()),
            };
            MountedController { name, dir: self.path.under(&hierarchy.mount), links }
        });
        shown.collect()
    }

    /// Changes limits, completely or not at all, and reads them back.
    pub fn apply(&self, patch: &LimitsPatch) -> Result<AppliedValues, ApplyError> {
        apply::apply(self, patch)
    }

    /// Returns the active limits, and those that differ from the written values in `settings`.
    pub fn observe(&self, settings: &AppliedValues) -> Result<CurrentLimits, ApplyError> {
        apply::observe(self, settings)
    }

    /// The file with the number of OOM kills, in a line `oom_kill N`.
    pub fn oom_file(&self) -> Option<PathBuf> {
        let file = match self.layout.version() {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        self.dir_of("memory").map(|dir| dir.join(file))
    }

    /// Returns the number of OOM kills in this cgroup; `None` if the kernel does not count them.
    pub fn oom_kills(&self) -> Option<u64> {
        cgroup_procs::oom_kills(&self.oom_file()?)
    }
}

impl CgroupFs for Cgroup {
    fn version(&self) -> Version {
        self.layout.version()
    }

    fn exists(&self) -> bool {
        Cgroup::exists(self)
    }

    fn read(&self, knob: &Knob) -> io::Result<String> {
        let dir = self.dir_of(knob.controller()).ok_or(io::ErrorKind::NotFound)?;
        let mut text = read_once(&dir.join(knob.file()), self.kept.as_deref())?;
        text.truncate(text.trim_end_matches('\n').len());
        Ok(text)
    }

    fn write(&self, knob: &Knob, value: &str) -> io::Result<()> {
        let dir = self.dir_of(knob.controller()).ok_or(io::ErrorKind::NotFound)?;
        write_once(&dir.join(knob.file()), value)
    }

    fn sync_manager(&self, changed: &Values) -> Result<(), SyncError> {
        Cgroup::sync(self, changed)
    }

    fn location(&self, knob: &Knob) -> PathBuf {
        self.dir_of(knob.controller()).map_or_else(|| knob.file().into(), |dir| dir.join(knob.file()))
    }

    fn huge_page_sizes(&self) -> Vec<HugePageSize> {
        // This setting is fixed when the kernel boots.
        static SIZES: OnceLock<Vec<HugePageSize>> = OnceLock::new();
        SIZES.get_or_init(|| huge_page_sizes(Path::new("/sys/kernel/mm/hugepages"))).clone()
    }
}

/// Gives every level with an empty cpuset the set of its parent. If a level has a set, so have all
/// its ancestors.
fn inherit_cpuset(levels: &[(PathBuf, PathBuf)], file: &str) -> Result<(), CgroupError> {
    let Some(((parent, child), above)) = levels.split_last() else { return Ok(()) };
    let own = child.join(file);
    if read_file(&own)?.trim().is_empty() {
        inherit_cpuset(above, file)?;
        let inherited = read_file(&parent.join(file))?;
        write_file(&own, inherited.trim())?;
    }
    Ok(())
}

pub(crate) fn request_error(unit: &Unit, source: SystemdError) -> CgroupError {
    CgroupError::Systemd { unit: unit.name().to_owned(), source }
}

fn huge_page_sizes(dir: &Path) -> Vec<HugePageSize> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let kilobytes =
        names.filter_map(|name| name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok());
    let mut sizes: Vec<HugePageSize> = kilobytes.filter_map(huge_page_size).collect();
    sizes.sort_unstable();
    sizes
}

/// The kernel's name for pages of this many kilobytes in files of a cgroup.
fn huge_page_size(kilobytes: u64) -> Option<HugePageSize> {
    let name = match kilobytes {
        0..0x400 => format!("{kilobytes}KB"),
        0x400..0x10_0000 => format!("{}MB", kilobytes >> 10),
        0x10_0000.. => format!("{}GB", kilobytes >> 20),
    };
    HugePageSize::new(&name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_page_sizes_have_the_names_of_the_kernel() {
        for (kilobytes, name) in [(64, "64KB"), (2048, "2MB"), (524_288, "512MB"), (1_048_576, "1GB")] {
            assert_eq!(huge_page_size(kilobytes).unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_container_sees_each_v1_tree_and_links_for_those_mounted_together() {
        let text = b"33 24 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            34 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            35 24 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
            36 24 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let layout = Layout::parse(text, "cpu 1 1 1\ncpuacct 1 1 1\nmemory 1 1 1\n").unwrap();
        let group = Cgroup::new(Arc::new(layout), CgroupPath::new("/pod/c1").unwrap());
        let shown = group.mounts();
        assert_eq!(shown.len(), 3, "the v2 tree is not shown");
        assert_eq!(shown[0].name, "cpu,cpuacct");
        assert_eq!(shown[0].links, ["cpu", "cpuacct"]);
        assert_eq!(shown[0].dir, Path::new("/sys/fs/cgroup/cpu,cpuacct/pod/c1"));
        assert_eq!((shown[1].name.as_str(), shown[1].links.len()), ("memory", 0));
        assert_eq!(shown[2].name, "systemd");
        assert_eq!(group.join_files().len(), 4, "processes must join it");
    }
}
