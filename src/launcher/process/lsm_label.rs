//! The label under which the program will run: a profile of AppArmor or a context of SELinux.
//!
//! The kernel takes it through a file of this very thread below `/proc`, and inside a container `/proc` is what an image, a volume
//! or a privileged process made of it. So each step is checked: the root of a real proc file system, nothing mounted below it, no
//! magic link on the way. A label that cannot be set is an error, never no label.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use oci_spec::runtime::Process;
use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, XattrFlags, fsetxattr, fstat, fstatfs, openat2};
use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    #[error("AppArmor profile {profile:?}: {source}")]
    Apparmor { profile: String, source: io::Error },
    #[error("SELinux label {label:?}: {source}")]
    Selinux { label: String, source: io::Error },
    #[error("the session keyring: {0}")]
    Keyring(io::Error),
}

/// Every kernel that has proc gives its root this number.
const PROC_ROOT_INODE: u64 = 1;

/// A proc file system in which this process has files.
#[derive(Debug)]
pub(crate) enum ProcFs {
    /// The one at `/proc`, which is whatever the container made of it.
    Mounted,
    /// That of the host, opened before the host's mounts were left. For a process of the host's PID namespace.
    Host(OwnedFd),
}

impl ProcFs {
    /// Opens the host's.
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

/// Lets the next program of this thread run under the labels of `process`, where it has any.
pub(crate) fn on_exec(process: &Process, proc: &ProcFs) -> Result<(), LabelError> {
    if let Some(profile) = process.apparmor_profile().as_ref().filter(|name| !name.is_empty()) {
        let failed = |source| LabelError::Apparmor { profile: profile.clone(), source };
        // Beside other modules AppArmor has a directory of its own; older kernels have no such thing.
        let words = format!("exec {profile}");
        match set(proc, "attr/apparmor/exec", &words) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound && !own_directory(proc) => {
                set(proc, "attr/exec", &words)
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

/// Does `work`, which makes a keyring, with the label of `process` for new keys: its program could not use them otherwise.
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
    // An empty line takes it back.
    set(proc, "attr/keycreate", "\n").and(done).map_err(LabelError::Keyring)
}

/// What is added to the options of a mount whose files are to have `label`. In quotes, since levels have commas.
pub fn mount_data(label: Option<&str>) -> String {
    label.map(|label| format!(",context=\"{label}\"")).unwrap_or_default()
}

const MQUEUE_SUPER_MAGIC: u64 = 0x1980_0202;

/// Labels the pod's message queues, which the kernel mounts without one. What lies at `path` instead is let be, and so is
/// what takes no labels, as all that a user namespace mounts.
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

/// Whether the kernel keeps AppArmor's files apart: then a missing one is a missing profile, and the other file is another module's.
fn own_directory(proc: &ProcFs) -> bool {
    proc.open("attr/apparmor", OFlags::PATH).is_ok()
}

fn set(proc: &ProcFs, file: &str, words: &str) -> io::Result<()> {
    let file = proc.open(file, OFlags::WRONLY)?;
    File::from(file).write_all(words.as_bytes())
}

/// A file of this thread's, in the proc file system at `proc`.
fn open_below(proc: &Path, file: &str, flags: OFlags) -> io::Result<OwnedFd> {
    open_in(&root(proc)?, file, flags)
}

/// The root of the proc file system at `proc`.
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
            // Something was renamed meanwhile, anywhere.
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
    fn the_file_is_this_threads_own_in_the_kernels_proc() {
        let mut name = String::new();
        let file = open_below(Path::new("/proc"), "comm", OFlags::RDONLY).unwrap();
        File::from(file).read_to_string(&mut name).unwrap();
        assert_eq!(name, std::fs::read_to_string("/proc/thread-self/comm").unwrap());
    }

    #[test]
    fn what_only_looks_like_proc_is_refused() {
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
    fn a_mount_or_a_magic_link_on_the_way_is_refused() {
        // In a thread with a mount namespace of its own: what it mounts goes with it.
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
    fn a_label_is_one_option_though_it_has_commas() {
        assert_eq!(mount_data(None), "");
        assert_eq!(mount_data(Some("u:o:f:s0:c1,c2")), ",context=\"u:o:f:s0:c1,c2\"");
    }

    #[test]
    fn only_message_queues_are_labelled_as_such() {
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
