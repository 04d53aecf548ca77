//! The mount stage: volumes, shared memory, cgroups.
//!
//! It has two halves. [`MountSources`] runs on the host, before the container's namespaces exist:
//! it opens every source as a detached mount with its attributes. [`attach_in_root`] runs in the
//! container's root, after libcontainer entered it or by the gatekeeper
//! ([`crate::launch::hook_gate`]): it finds every target by descriptor, so that no link or rename
//! in the image or in a shared volume leads a mount out of the root, and attaches the mount there.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use oci_spec::runtime::Mount;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat2};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, move_mount,
};
use shim_protocol::{CgroupMount, CgroupPaths, LaunchWarning, LaunchWarningKind};
use sys::mount::{Attributes, Reach, SHARED, SLAVE, detach_copy, set_attributes};

use super::mount_target::{allowed, find_or_create, open_in_root};
use crate::rootfs::idmap::{IdMaps, Mapped};
use crate::rootfs::mount_options::{MountOptions, UnknownOption};
use crate::rootfs::mount_propagation::PropagationGuard;

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("container mount at {target}: {source}")]
    Option { target: PathBuf, source: UnknownOption },
    #[error("container mount at {0}: type {1:?} is not supported")]
    Type(PathBuf, String),
    #[error("container mount at {target}: opening {from}: {source}")]
    Source { target: PathBuf, from: PathBuf, source: io::Error },
    #[error("container mount at {target}: {from} is not on a {wanted} mount, so mounts cannot propagate")]
    NotShared { target: PathBuf, from: PathBuf, wanted: &'static str },
    #[error("container mount at {target}: {step}: {source}")]
    Step { target: PathBuf, step: &'static str, source: io::Error },
    #[error("container mount at {target}: the ids of {from} cannot be mapped: {source}")]
    Ids { target: PathBuf, from: PathBuf, source: io::Error },
    #[error("container mount at {target}: the file system of {from} does not support ID-mapped mounts")]
    NoIds { target: PathBuf, from: PathBuf },
    #[error("container mount at {target}: its source is {source_kind}, the target is {target_kind}")]
    Kind { target: PathBuf, source_kind: &'static str, target_kind: &'static str },
    #[error("container mount at {0}: mounts are not allowed there")]
    Forbidden(PathBuf),
    #[error("making the container's root file system read-only: {0}")]
    Root(io::Error),
}

/// A mount that is to be attached in the container.
#[derive(Debug)]
pub(crate) struct PreparedMount {
    /// Its position in the order of all mounts.
    turn: usize,
    target: PathBuf,
    what: MountKind,
}

impl PreparedMount {
    pub(crate) fn tree(turn: usize, target: PathBuf, mount: OwnedFd, directory: bool) -> Self {
        Self { turn, target, what: MountKind::Tree { mount, directory } }
    }

    /// Returns the mounts that came from the host, and whether each is of a directory.
    pub(crate) fn trees(&mut self) -> Vec<(&mut OwnedFd, bool)> {
        match &mut self.what {
            MountKind::Tree { mount, directory } => vec![(mount, *directory)],
            MountKind::CgroupV1 { controllers, .. } => controllers.iter_mut().map(|(_, tree)| (tree, true)).collect(),
            MountKind::Tmpfs(_) | MountKind::CgroupV2 { .. } => Vec::new(),
        }
    }
}

/// The type of a mount of an image, which [`crate::rootfs::image_mount`] prepares.
pub(crate) const IMAGE: &str = "image";

#[derive(Debug)]
enum MountKind {
    Tree {
        mount: OwnedFd,
        directory: bool,
    },
    /// Created inside the container's root.
    Tmpfs(MountOptions),
    CgroupV1 {
        controllers: Vec<(CgroupMount, OwnedFd)>,
        above: MountOptions,
        readonly: bool,
    },
    /// Created inside the container's cgroup namespace.
    CgroupV2 {
        readonly: bool,
    },
}

/// Opens the sources of mounts on the host.
pub(crate) struct MountSources<'a> {
    pub(crate) cgroup: &'a CgroupPaths,
    /// The SELinux label of tmpfs mounts.
    pub(crate) label: Option<&'a str>,
    pub(crate) ids: &'a mut IdMaps,
    pub(crate) warnings: &'a mut Vec<LaunchWarning>,
}

impl MountSources<'_> {
    /// Opens all sources but those of images. Runs in the host's mount namespace.
    pub(crate) fn prepare(&mut self, mounts: &[Mount]) -> Result<Vec<PreparedMount>, MountError> {
        let not_images = mounts.iter().enumerate().filter(|(_, mount)| mount.typ().as_deref() != Some(IMAGE));
        not_images.map(|(turn, mount)| self.prepare_one(turn, mount)).collect()
    }

    fn prepare_one(&mut self, turn: usize, mount: &Mount) -> Result<PreparedMount, MountError> {
        let Self { cgroup, label, ids, warnings } = self;
        let target = mount.destination().clone();
        let kind = mount.typ().as_deref().unwrap_or("bind");
        let options = mount.options().as_deref().unwrap_or_default();
        let options = MountOptions::read(options, kind == "tmpfs")
            .map_err(|source| MountError::Option { target: target.clone(), source })?;
        let readonly = options.top.set & sys::mount::RDONLY != 0;
        let what = match kind {
            "bind" => bind(mount, &options, ids, warnings)?,
            "tmpfs" => MountKind::Tmpfs(options.labelled(*label)),
            "cgroup" if cgroup.shown.is_empty() => MountKind::CgroupV2 { readonly },
            "cgroup" => cgroup_v1(&target, cgroup, *label, readonly)?,
            other => return Err(MountError::Type(target, other.to_owned())),
        };
        Ok(PreparedMount { turn, target, what })
    }
}

fn bind(
    mount: &Mount,
    options: &MountOptions,
    ids: &mut IdMaps,
    warnings: &mut Vec<LaunchWarning>,
) -> Result<MountKind, MountError> {
    let target = mount.destination();
    let from = mount.source().clone().unwrap_or_default();
    let step = |step| move |source: io::Error| MountError::Step { target: target.clone(), step, source };
    let failed = |source| MountError::Source { target: target.clone(), from: from.clone(), source };
    let required = match options.propagation() {
        SHARED => Some((true, "shared")),
        SLAVE => Some((false, "shared or slave")),
        _ => None,
    };
    if let Some((shared, wanted)) = required
        && !propagates(&from, shared).map_err(failed)?
    {
        return Err(MountError::NotShared { target: target.clone(), from, wanted });
    }
    let tree = detach_copy(&from, options.reach).map_err(failed)?;
    let stat = rustix::fs::fstat(&tree).map_err(|e| failed(e.into()))?;
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if ids.map(mount, &tree, options.reach).map_err(|source| ids_refused(target, &from, source))? == Mapped::TopAlone {
        let (target, from) = (target.display(), from.display());
        let message = format!(
            "mount at {target}: a mount below {from} does not support ID-mapped mounts, so none below it is mapped"
        );
        warnings.push(LaunchWarningKind::IdMap.warning(message));
    }
    options.apply(&tree).map_err(step("setting its attributes"))?;
    Ok(MountKind::Tree { mount: tree, directory })
}

/// Returns the error of a refused id mapping. The kernel does not give the reason, but there are
/// few.
pub(crate) fn ids_refused(target: &Path, from: &Path, source: io::Error) -> MountError {
    let (target, from) = (target.to_owned(), from.to_owned());
    match source.kind() {
        io::ErrorKind::InvalidInput => MountError::NoIds { target, from },
        _ => MountError::Ids { target, from, source },
    }
}

/// Returns whether mounts under `path` propagate to other mounts (`shared`), or at least arrive
/// from others.
fn propagates(path: &Path, shared: bool) -> io::Result<bool> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    let id = stat.stx_mnt_id.to_string();
    // Some names in it may not be UTF-8.
    let table = std::fs::read("/proc/self/mountinfo")?;
    let table = String::from_utf8_lossy(&table);
    let line = table.lines().find(|line| line.split(' ').next() == Some(&id));
    let mut optional = line.into_iter().flat_map(|l| l.split(' ').skip(6).take_while(|f| *f != "-"));
    Ok(optional.any(|f| f.starts_with("shared:") || (!shared && f.starts_with("master:"))))
}

fn tmpfs(target: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let step = |source: rustix::io::Errno| MountError::Step {
        target: target.to_owned(),
        step: "creating a tmpfs",
        source: source.into(),
    };
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(step)?;
    for (key, value) in &options.data {
        match value {
            Some(value) => fsconfig_set_string(&fs, key, value),
            None => fsconfig_set_flag(&fs, key),
        }
        .map_err(step)?;
    }
    fsconfig_create(&fs).map_err(step)?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).map_err(step)?;
    set_attributes(&mount, options.top, Reach::Top).map_err(|source| MountError::Step {
        target: target.to_owned(),
        step: "setting its attributes",
        source,
    })?;
    Ok(mount)
}

fn cgroup_v1(
    target: &Path,
    cgroup: &CgroupPaths,
    label: Option<&str>,
    readonly: bool,
) -> Result<MountKind, MountError> {
    let safe = sys::mount::NOSUID | sys::mount::NODEV | sys::mount::NOEXEC;
    let set = safe | if readonly { sys::mount::RDONLY } else { 0 };
    let mut controllers = Vec::new();
    for shown in &cgroup.shown {
        let failed = |source| MountError::Source { target: target.to_owned(), from: shown.dir.clone(), source };
        let tree = detach_copy(&shown.dir, Reach::Top).map_err(failed)?;
        let attributes = Attributes { set, clear: 0, propagation: sys::mount::PRIVATE };
        set_attributes(&tree, attributes, Reach::Top).map_err(failed)?;
        controllers.push((shown.clone(), tree));
    }
    Ok(MountKind::CgroupV1 { controllers, above: cgroup_tmpfs().labelled(label), readonly })
}

/// The options of the tmpfs that has the directories of v1 controllers.
fn cgroup_tmpfs() -> MountOptions {
    let safe = sys::mount::NOSUID | sys::mount::NODEV | sys::mount::NOEXEC;
    MountOptions {
        top: Attributes { set: safe, ..Attributes::default() },
        tree: Attributes::default(),
        reach: Reach::Top,
        data: vec![("mode".into(), Some("755".into())), ("size".into(), Some("64k".into()))],
    }
}

/// Attaches all mounts. Runs in the container, as root, after it entered its root.
pub(crate) fn attach_in_root(staged: &[PreparedMount], propagation: &mut PropagationGuard) -> Result<(), MountError> {
    let mut in_turn: Vec<&PreparedMount> = staged.iter().collect();
    in_turn.sort_by_key(|one| one.turn);
    for PreparedMount { turn: _, target, what } in in_turn {
        let step = |step| move |source: io::Error| MountError::Step { target: target.clone(), step, source };
        match what {
            MountKind::Tree { mount, directory } => {
                let onto = find_or_create(target, *directory).map_err(step("preparing the target"))?;
                allowed(target, &onto)?;
                same_kind(target, *directory, &onto)?;
                propagation.attach(mount, onto).map_err(step("attaching"))?;
            }
            MountKind::Tmpfs(options) => {
                let onto = find_or_create(target, true).map_err(step("preparing the target"))?;
                allowed(target, &onto)?;
                propagation.attach(&tmpfs(target, options)?, onto).map_err(step("attaching"))?;
            }
            MountKind::CgroupV1 { controllers, above, readonly } => {
                let onto = find_or_create(target, true).map_err(step("preparing the target"))?;
                allowed(target, &onto)?;
                let tmpfs = &tmpfs(target, above)?;
                propagation.attach(tmpfs, onto).map_err(step("attaching"))?;
                attach_controllers(tmpfs, controllers).map_err(step("showing the controllers"))?;
                let set = if *readonly { sys::mount::RDONLY } else { 0 };
                let attributes = Attributes { set, ..Attributes::default() };
                set_attributes(tmpfs, attributes, Reach::Top).map_err(step("making it read-only"))?;
            }
            MountKind::CgroupV2 { readonly } => {
                let onto = find_or_create(target, true).map_err(step("preparing the target"))?;
                allowed(target, &onto)?;
                let cgroup = cgroup_v2(*readonly).map_err(step("mounting cgroup2"))?;
                propagation.attach(cgroup, onto).map_err(step("attaching"))?;
            }
        }
    }
    Ok(())
}

/// Compares the file types, since the kernel reports only EINVAL if a directory and a file are
/// mounted on each other.
fn same_kind(target: &Path, directory: bool, onto: &OwnedFd) -> Result<(), MountError> {
    let step = |source: rustix::io::Errno| MountError::Step {
        target: target.to_owned(),
        step: "checking the target",
        source: source.into(),
    };
    let mode = rustix::fs::fstat(onto).map_err(step)?.st_mode;
    let kind = |directory| if directory { "a directory" } else { "not a directory" };
    let found = FileType::from_raw_mode(mode) == FileType::Directory;
    if found == directory {
        return Ok(());
    }
    Err(MountError::Kind { target: target.to_owned(), source_kind: kind(directory), target_kind: kind(found) })
}

/// Makes the container's root read-only, after everything is created in it.
pub(crate) fn seal_root() -> Result<(), MountError> {
    let root = open_in_root(Path::new("/")).map_err(MountError::Root)?;
    let attributes = Attributes { set: sys::mount::RDONLY, ..Attributes::default() };
    set_attributes(root, attributes, Reach::Top).map_err(MountError::Root)
}

fn attach_controllers(tmpfs: &OwnedFd, controllers: &[(CgroupMount, OwnedFd)]) -> io::Result<()> {
    for (shown, tree) in controllers {
        rustix::fs::mkdirat(tmpfs, &shown.name, Mode::from_raw_mode(0o755))?;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let onto = openat2(tmpfs, &shown.name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how)?;
        attach(tree, onto)?;
        for alias in shown.aliases.iter().filter(|a| **a != shown.name) {
            rustix::fs::symlinkat(&shown.name, tmpfs, alias)?;
        }
    }
    Ok(())
}

fn cgroup_v2(readonly: bool) -> io::Result<OwnedFd> {
    let fs = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    let mut flags =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, readonly);
    Ok(fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

pub(crate) fn attach(mount: impl AsFd, onto: OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", onto, "", flags)?)
}
