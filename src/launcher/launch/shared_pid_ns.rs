//! A PID namespace that a container shares with existing processes: that of its pod or of another
//! container.
//!
//! These processes may be able to trace others. So libcontainer does not get the namespace: the
//! container's first process is created outside of it, and forked into it when it has no right,
//! file or descriptor that the container does not have ([`super::libcontainer_executor`]). Only a
//! process of the namespace can mount its proc file system, and none that may mount must be there:
//! so the mount is a copy of an existing one.
//!
//! The daemon names another container by the pid of its first process. If that exits, another pod
//! or the host may get the number: so the namespaces are opened first, and their owner is checked
//! after.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};
use oci_spec::OciSpecError;
use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType, MountBuilder, Spec};
use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat};
use sys::mount::{Attributes, NODEV, NOEXEC, NOSUID, Reach, detach_copy, set_attributes};

use crate::rootfs::mounts::attach;

/// Where the proc file system is mounted for libcontainer, in the container's directory.
pub(crate) const PROC: &str = "proc";

#[derive(Debug)]
pub(crate) struct SharedPidNs {
    pub(crate) namespace: OwnedFd,
    /// A detached mount of its proc file system.
    pub(crate) proc: OwnedFd,
}

impl SharedPidNs {
    /// Removes the shared namespace from `spec` and opens it. All first processes are children of
    /// `shim`, and no other processes are. `pod_proc` is a mount namespace whose root is the proc
    /// file system of the pod's PID namespace. Runs in the host's mount namespace.
    pub(crate) fn take(spec: &mut Spec, shim: i32, pod_proc: Option<BorrowedFd<'_>>) -> io::Result<Option<Self>> {
        let Some(path) = take_path(spec) else { return Ok(None) };
        let namespace = File::open(&path)?;
        let proc = match process(&path) {
            None => copy_mount(pod_proc.ok_or(io::ErrorKind::NotFound)?, "/")?,
            Some(pid) => {
                let mounts = File::open(format!("/proc/{pid}/ns/mnt"))?;
                if crate::process::process_tree::parent(pid) != Some(shim) {
                    return Err(io::Error::other("its first process has exited"));
                }
                copy_mount(mounts.as_fd(), "/proc")?
            }
        };
        is_proc_of(&proc, &namespace)?;
        let attributes = Attributes { set: NOSUID | NODEV | NOEXEC, ..Attributes::default() };
        set_attributes(&proc, attributes, Reach::Top)?;
        Ok(Some(Self { namespace: namespace.into(), proc }))
    }

    /// Attaches the proc file system where libcontainer finds it. Runs in the launcher's mount
    /// namespace.
    pub(crate) fn attach_proc(&self, dir: &Path) -> io::Result<()> {
        let place = dir.join(PROC);
        std::fs::create_dir_all(&place)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        attach(&self.proc, rustix::fs::open(&place, flags, Mode::empty())?)
    }
}

/// Makes libcontainer bind the proc file system in `dir` instead of mounting one.
pub(crate) fn adapt(slim: &mut Spec, dir: &Path) -> Result<(), OciSpecError> {
    let options = ["bind", "nosuid", "noexec", "nodev"].map(str::to_owned);
    let shown =
        MountBuilder::default().destination("/proc").typ("bind").source(dir.join(PROC)).options(options).build()?;
    let mounts = slim.mounts_mut().iter_mut().flatten();
    mounts.filter(|mount| mount.typ().as_deref() == Some("proc")).for_each(|mount| *mount = shown.clone());
    Ok(())
}

fn take_path(spec: &mut Spec) -> Option<PathBuf> {
    let namespaces = spec.linux_mut().as_mut()?.namespaces_mut().as_mut()?;
    let is_shared = |one: &LinuxNamespace| one.typ() == LinuxNamespaceType::Pid && one.path().is_some();
    let at = namespaces.iter().position(is_shared)?;
    namespaces.remove(at).path().clone()
}

/// Returns a copy of the mount at `path` in another mount namespace. Its content is not trusted.
fn copy_mount(namespace: BorrowedFd<'_>, path: &str) -> io::Result<OwnedFd> {
    let own = File::open("/proc/self/ns/mnt")?;
    setns(namespace, CloneFlags::CLONE_NEWNS)?;
    let copied = detach_copy(Path::new(path), Reach::Top);
    setns(own, CloneFlags::CLONE_NEWNS)?;
    copied
}

/// Returns whether `mount` is the whole proc file system of `namespace`: a container may have
/// mounted another at its `/proc`.
fn is_proc_of(mount: &OwnedFd, namespace: &File) -> io::Result<()> {
    const ROOT_INODE: u64 = 1;
    let other = || io::Error::other("its /proc is not the proc file system of its PID namespace");
    if fstatfs(mount)?.f_type != PROC_SUPER_MAGIC || fstat(mount)?.st_ino != ROOT_INODE {
        return Err(other());
    }
    let first = openat(mount, "1/ns/pid", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (shown, requested) = (fstat(&first)?, fstat(namespace)?);
    if (shown.st_dev, shown.st_ino) == (requested.st_dev, requested.st_ino) { Ok(()) } else { Err(other()) }
}

/// Returns the process that a path such as `/proc/7/ns/pid` names.
fn process(path: &Path) -> Option<i32> {
    path.to_str()?.strip_prefix("/proc/")?.strip_suffix("/ns/pid")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joining(path: &str) -> Spec {
        let text = format!(
            r#"{{"ociVersion":"1.2.0","linux":{{"namespaces":[{{"type":"mount"}},{{"type":"pid","path":"{path}"}}]}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn kinds(spec: &Spec) -> Vec<LinuxNamespaceType> {
        spec.linux().as_ref().unwrap().namespaces().iter().flatten().map(LinuxNamespace::typ).collect()
    }

    #[test]
    fn a_shared_pid_namespace_is_removed_from_libcontainers_configuration() {
        let mut shared = joining("/proc/7/fd/9");
        assert_eq!(take_path(&mut shared), Some("/proc/7/fd/9".into()));
        assert_eq!(kinds(&shared), [LinuxNamespaceType::Mount]);
        let own = r#"{"ociVersion":"1.2.0","linux":{"namespaces":[{"type":"mount"},{"type":"pid"}]}}"#;
        let mut own: Spec = serde_json::from_str(own).unwrap();
        assert_eq!(take_path(&mut own), None);
        assert_eq!(kinds(&own), [LinuxNamespaceType::Mount, LinuxNamespaceType::Pid]);
    }

    #[test]
    #[ignore = "needs root"]
    fn only_a_child_of_the_shim_is_joined() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let named = format!("/proc/{}/ns/pid", child.id());
        assert!(SharedPidNs::take(&mut joining(&format!("/proc/{own}/ns/pid")), own, None).is_err(), "not a child");
        assert!(SharedPidNs::take(&mut joining(&named), own + 1, None).is_err(), "another's child");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(SharedPidNs::take(&mut joining(&named), own, None).is_err(), "it has exited");
    }

    #[test]
    #[ignore = "needs root"]
    fn only_the_proc_file_system_of_the_namespace_is_accepted() {
        use std::process::{Child, Command};
        struct Namespace(Child, tempfile::TempDir);
        impl Drop for Namespace {
            fn drop(&mut self) {
                rustix::mount::unmount(self.1.path(), rustix::mount::UnmountFlags::DETACH).ok();
                self.0.kill().ok();
                self.0.wait().ok();
            }
        }
        let child = Command::new("unshare").args(["--pid", "--fork", "--kill-child", "sleep", "1000"]).spawn().unwrap();
        let fixture = Namespace(child, tempfile::tempdir().unwrap());
        let (pid, dir) = (fixture.0.id(), fixture.1.path());
        while std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let path = format!("/proc/{pid}/ns/pid_for_children");
        let mut nsenter = Command::new("nsenter");
        let mount = nsenter.arg(format!("--pid={path}")).args(["mount", "-t", "proc", "proc"]).arg(dir);
        assert!(mount.status().unwrap().success());
        let namespace = File::open(&path).unwrap();
        is_proc_of(&detach_copy(dir, Reach::Top).unwrap(), &namespace).unwrap();
        for other in ["/proc", "/proc/self", "/dev", "/"] {
            assert!(is_proc_of(&detach_copy(Path::new(other), Reach::Top).unwrap(), &namespace).is_err(), "{other}");
        }
        let mounts = File::open("/proc/self/ns/mnt").unwrap();
        assert!(is_proc_of(&detach_copy(dir, Reach::Top).unwrap(), &mounts).is_err());
    }
}
