//! The LSM label of the container's program: an AppArmor profile or an SELinux context.
//!
//! The kernel reads it from a file of this very thread below `/proc`, and inside a container an
//! image, a volume or a privileged process may have replaced `/proc`. So each step is checked: the
//! root of a real proc file system, no mount below it, no magic link on the path. A label that
//! cannot be set is an error, never ignored.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use oci_spec::runtime::Process;
use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, XattrFlags, fsetxattr, fstat, fstatfs, openat2};
use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    #[error("setting the AppArmor profile {profile:?} of the container: {source}")]
    Apparmor { profile: String, source: io::Error },
    #[error("setting the SELinux label {label:?} of the container: {source}")]
    Selinux { label: String, source: io::Error },
    #[error("creating the container's session keyring: {0}")]
    Keyring(io::Error),
}

/// The inode number of the root of every proc file system.
const PROC_ROOT_INODE: u64 = 1;

/// A proc file system in which this process has files.
#[derive(Debug)]
pub(crate) enum ProcFs {
    /// The one at `/proc`, which the container may have replaced.
    Mounted,
    /// That of the host, opened before the host's mounts were left. For a process of the host's PID
    /// namespace.
    Host(OwnedFd),
}

impl ProcFs {
    /// Opens that of the host.
    pub(crate) fn of_host() -> io::Result<Self> {
        Ok(Self::Host(root(Path::new("/proc"))?))
    }

    pub(crate) fn host(&self) -> Option<&OwnedFd> {
        match self {
            Self::Mounted => None,
            Self::Host(root) => Some(root),
        }
    }

    fn open(&self, file: &str, flags: OFlags) -> io::Result<OwnedFd> {
        match self {
            Self::Mounted => open_below(Path::new("/proc"), file, flags),
            Self::Host(root) => open_in(root, file, flags),
        }
    }
}

/// Sets the labels of `process`, if it has any, for the next program of this thread.
pub(crate) fn on_exec(process: &Process, proc: &ProcFs) -> Result<(), LabelError> {
    if let Some(profile) = process.apparmor_profile().as_ref().filter(|name| !name.is_empty()) {
        let failed = |source| LabelError::Apparmor { profile: profile.clone(), source };
        // With other modules, AppArmor has a directory of its own; older kernels have none.
        let command = format!("exec {profile}");
        match set(proc, "attr/apparmor/exec", &command) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound && !own_directory(proc) => {
                set(proc, "attr/exec", &command)
            }
            other => other,
        }
        .map_err(failed)?;
    }
    if let Some(label) = process.selinux_label().as_ref().filter(|label| !label.is_empty()) {
        set(proc, "attr/exec", label).map_err(|source| LabelError::Selinux { label: label.clone(), source })?;
    }
    Ok(())
}

/// Runs `work`, which creates a keyring, with the label of `process` for new keys: otherwise its
/// program cannot use them.
pub(crate) fn with_keys<T>(
    process: &Process,
    proc: &ProcFs,
    work: impl FnOnce() -> io::Result<T>,
) -> Result<T, LabelError> {
    let label = process.selinux_label().as_deref().unwrap_or_default();
    if label.is_empty() {
        return work().map_err(LabelError::Keyring);
    }
    set(proc, "attr/keycreate", label).map_err(LabelError::Keyring)?;
    let done = work();
    // An empty line resets it.
    set(proc, "attr/keycreate", "\n").and(done).map_err(LabelError::Keyring)
}

/// Returns the mount option that labels the files. In quotes, since levels contain commas.
pub fn mount_data(label: Option<&str>) -> String {
    label.map(|label| format!(",context=\"{label}\"")).unwrap_or_default()
}

const MQUEUE_SUPER_MAGIC: u64 = 0x1980_0202;

/// Labels the pod's message queues, which the kernel mounts without a label. Ignores another file
/// system at `path`, and one without labels, such as all that a user namespace mounts.
pub(crate) fn on_queues(path: &Path, label: &str) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let queues = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        found => found?,
    };
    if u64::try_from(fstatfs(&queues)?.f_type) != Ok(MQUEUE_SUPER_MAGIC) {
        return Ok(());
    }
    match fsetxattr(&queues, "security.selinux", label.as_bytes(), XattrFlags::empty()) {
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns whether AppArmor has its own directory: then a missing one is a missing profile, and the
/// other file belongs to another module.
fn own_directory(proc: &ProcFs) -> bool {
    proc.open("attr/apparmor", OFlags::PATH).is_ok()
}

fn set(proc: &ProcFs, file: &str, command: &str) -> io::Result<()> {
    let file = proc.open(file, OFlags::WRONLY)?;
    File::from(file).write_all(command.as_bytes())
}

/// Opens a file of this thread in the proc file system at `proc`.
fn open_below(proc: &Path, file: &str, flags: OFlags) -> io::Result<OwnedFd> {
    open_in(&root(proc)?, file, flags)
}

/// Opens the root of the proc file system at `proc`.
fn root(proc: &Path) -> io::Result<OwnedFd> {
    let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(proc, root, Mode::empty())?;
    if fstatfs(&root)?.f_type != PROC_SUPER_MAGIC || fstat(&root)?.st_ino != PROC_ROOT_INODE {
        return Err(io::Error::other("/proc is not the kernel's"));
    }
    Ok(root)
}

fn open_in(root: &OwnedFd, file: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let path = format!("thread-self/{file}");
    loop {
        match openat2(root.as_fd(), &path, flags | OFlags::CLOEXEC, Mode::empty(), how) {
            // A file was renamed somewhere on the machine during the lookup.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::XDEV) => return Err(io::Error::other("something is mounted in /proc")),
            found => return Ok(found?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use nix::sched::CloneFlags;
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

    use super::*;

    #[test]
    fn the_file_of_this_thread_in_a_real_proc_is_opened() {
        let mut name = String::new();
        let file = open_below(Path::new("/proc"), "comm", OFlags::RDONLY).unwrap();
        File::from(file).read_to_string(&mut name).unwrap();
        assert_eq!(name, std::fs::read_to_string("/proc/thread-self/comm").unwrap());
    }

    #[test]
    fn a_directory_that_is_not_proc_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("thread-self/attr")).unwrap();
        std::fs::write(dir.path().join("thread-self/attr/exec"), "").unwrap();
        let link = dir.path().join("proc");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        // A directory, a part of proc, and a link to it.
        for fake in [dir.path(), Path::new("/proc/self"), &link] {
            open_below(fake, "attr/exec", OFlags::WRONLY).unwrap_err();
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn a_mount_or_a_magic_link_on_the_path_is_refused() {
        // In a thread with a mount namespace of its own, which is removed with its mounts.
        std::thread::spawn(|| {
            nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            open_below(Path::new("/proc"), "comm", OFlags::WRONLY).unwrap();
            open_below(Path::new("/proc"), "cwd/.", OFlags::RDONLY).unwrap_err();
            mount("fake", "/proc/thread-self/attr", "tmpfs", MountFlags::empty(), None).unwrap();
            std::fs::write("/proc/thread-self/attr/exec", "").unwrap();
            let refused = open_below(Path::new("/proc"), "attr/exec", OFlags::WRONLY).unwrap_err();
            assert_eq!(refused.to_string(), "something is mounted in /proc");
            mount("fake", "/proc", "tmpfs", MountFlags::empty(), None).unwrap();
            std::fs::create_dir_all("/proc/thread-self/attr").unwrap();
            std::fs::write("/proc/thread-self/attr/exec", "").unwrap();
            let refused = open_below(Path::new("/proc"), "attr/exec", OFlags::WRONLY).unwrap_err();
            assert_eq!(refused.to_string(), "/proc is not the kernel's");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_label_with_commas_is_one_option() {
        assert_eq!(mount_data(None), "");
        assert_eq!(mount_data(Some("u:o:f:s0:c1,c2")), ",context=\"u:o:f:s0:c1,c2\"");
    }

    #[test]
    fn only_a_message_queue_file_system_is_labelled() {
        let dir = tempfile::tempdir().unwrap();
        on_queues(dir.path(), "u:o:f:s0").unwrap();
        on_queues(&dir.path().join("none"), "u:o:f:s0").unwrap();
        assert!(
            rustix::fs::getxattr(dir.path(), "security.selinux", &mut [0u8; 64][..]).is_err_and(|e| e == Errno::NODATA)
        );
    }

    #[test]
    fn a_process_without_labels_needs_no_proc() {
        on_exec(&Process::default(), &ProcFs::Mounted).unwrap();
        let mut done = false;
        with_keys(&Process::default(), &ProcFs::Mounted, || {
            done = true;
            Ok(())
        })
        .unwrap();
        assert!(done);
    }
}
