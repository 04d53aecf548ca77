//! Launches into a user namespace.
//!
//! Root of the namespace has no rights on the host: it cannot enter crisp's directories, use the
//! shim's descriptors or create device nodes. So the launcher opens all that it needs before, and
//! puts it where it finds it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use model::UserNs;
use oci_spec::OciSpecError;
use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, MountBuilder, Spec};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, OpenTreeFlags, UnmountFlags, mount, open_tree, unmount};
use sys::mount::{Attributes, NODEV, NOEXEC, NOSUID, RDONLY, Reach, detach_copy, set_attributes};

use crate::launch::shared_pid_ns::PROC;
use crate::rootfs::idmap;
use crate::rootfs::mounts::attach;

/// The paths in the container's directory that must be reachable.
const ROOTFS: &str = "rootfs";
const BUNDLE: &str = "libcontainer";
const SYS: &str = "sys";
/// The files there that hooks read.
const CONFIG: &str = "config.json";

/// A container in a user namespace.
#[derive(Debug)]
pub(crate) struct UserNsLaunch {
    pub(crate) ids: UserNs,
    pub(crate) user: OwnedFd,
    /// The requested namespaces, and those of them to join.
    spaces: Vec<(LinuxNamespace, Option<File>)>,
    /// The host's `/sys`, if the container has the host's network: then it may not mount one
    /// itself.
    sys: Option<OwnedFd>,
}

impl UserNsLaunch {
    /// Returns `None` for a container with the host's ids. Runs in the host's mount namespace.
    pub(crate) fn of(spec: &Spec) -> io::Result<Option<Self>> {
        let Some(ids) = idmap::of_container(spec) else { return Ok(None) };
        let requested = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
        let open = |space: &LinuxNamespace| Ok((space.clone(), space.path().as_ref().map(File::open).transpose()?));
        let spaces = requested.into_iter().flatten().map(open).collect::<io::Result<Vec<_>>>()?;
        let networked = spaces.iter().any(|(space, _)| space.typ() == LinuxNamespaceType::Network);
        let sys = if networked { None } else { Some(host_sys()?) };
        let user = spaces.iter().find(|(space, _)| space.typ() == LinuxNamespaceType::User);
        let user = user.and_then(|(_, file)| file.as_ref()).ok_or(io::ErrorKind::NotFound)?.try_clone()?.into();
        Ok(Some(Self { ids, user, spaces, sys }))
    }

    /// Makes `dir` reachable for root of the namespace, in this mount namespace: the mount at its
    /// `rootfs`, the directory of libcontainer, the configuration for hooks, and with `proc` the
    /// proc file system mounted there. Hides everything else beside them and on the path to `dir`.
    pub(crate) fn make_reachable(&self, dir: &Path, hooked: bool, proc: bool) -> io::Result<()> {
        let dir = &dir.canonicalize()?;
        let rootfs = dir.join(ROOTFS);
        let taken = open_tree(open(&rootfs)?, "", OpenTreeFlags::AT_EMPTY_PATH | CLONE)?;
        unmount(&rootfs, UnmountFlags::DETACH)?;
        let mut places = vec![(rootfs, taken), (dir.join(BUNDLE), detach_copy(&dir.join(BUNDLE), Reach::Top)?)];
        if let Some(sys) = &self.sys {
            places.push((dir.join(SYS), sys.try_clone()?));
        }
        if proc {
            places.push((dir.join(PROC), detach_copy(&dir.join(PROC), Reach::Top)?));
        }
        let config = hooked.then(|| detach_copy(&dir.join(CONFIG), Reach::Top)).transpose()?;
        if let Some(closed) = first_closed(dir)? {
            mount("reachable", &closed, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=711,size=64k"))?;
        }
        for (place, tree) in places {
            std::fs::create_dir_all(&place)?;
            attach(tree, open(&place)?)?;
        }
        if let Some(config) = config {
            let place = dir.join(CONFIG);
            File::options().append(true).create(true).open(&place)?;
            attach(config, rustix::fs::open(&place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)?;
        }
        Ok(())
    }

    /// Changes libcontainer's configuration accordingly.
    pub(crate) fn adapt(&self, slim: &mut Spec, dir: &Path) -> Result<(), OciSpecError> {
        if let Some(linux) = slim.linux_mut() {
            let spaces = self.spaces.iter().map(|(space, file)| match file {
                Some(file) => LinuxNamespaceBuilder::default()
                    .typ(space.typ())
                    .path(format!("/proc/self/fd/{}", file.as_raw_fd()))
                    .build(),
                None => Ok(space.clone()),
            });
            linux.set_namespaces(Some(spaces.collect::<Result<_, _>>()?));
            linux.set_devices(None);
            linux.set_uid_mappings(None).set_gid_mappings(None);
        }
        if self.sys.is_some() {
            let bound = MountBuilder::default()
                .destination("/sys")
                .typ("bind")
                .source(dir.join(SYS))
                .options(["rbind", "ro", "nosuid", "noexec", "nodev"].map(str::to_owned))
                .build()?;
            let mounts = slim.mounts_mut().iter_mut().flatten();
            mounts.filter(|mount| mount.typ().as_deref() == Some("sysfs")).for_each(|mount| *mount = bound.clone());
        }
        Ok(())
    }
}

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

fn open(directory: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns a read-only mount of the host's `/sys`, without the mounts below it.
fn host_sys() -> io::Result<OwnedFd> {
    let tree = detach_copy(Path::new("/sys"), Reach::Top)?;
    let attributes = Attributes { set: RDONLY | NOSUID | NODEV | NOEXEC, ..Attributes::default() };
    set_attributes(&tree, attributes, Reach::Top)?;
    Ok(tree)
}

/// Returns the first directory on the path to `dir`, or `dir`, that other users cannot enter.
fn first_closed(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut way: Vec<&Path> = dir.ancestors().collect();
    way.reverse();
    for step in way {
        if std::fs::metadata(step)?.mode() & 0o001 == 0 {
            return Ok(Some(step.to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_first_directory_closed_to_other_users_is_found() {
        let top = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let (a, b) = (top.path().join("a"), top.path().join("a/b"));
        std::fs::create_dir_all(&b).unwrap();
        for (modes, closed) in [
            ([0o755, 0o711, 0o701], None),
            ([0o755, 0o711, 0o770], Some(&b)),
            ([0o711, 0o700, 0o700], Some(&a)),
            ([0o700, 0o700, 0o700], Some(&top.path().to_owned())),
        ] {
            for (path, mode) in [top.path(), &a, &b].into_iter().zip(modes) {
                set(path, mode);
            }
            assert_eq!(first_closed(&b).unwrap().as_ref(), closed, "{modes:?}");
        }
    }
}
