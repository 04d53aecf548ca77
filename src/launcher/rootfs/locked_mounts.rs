//! Mounts that root of a user namespace cannot undo.
//!
//! A process that may mount in a mount namespace may change the flags of a mount there, unless the
//! kernel locked them: a container with `CAP_SYS_ADMIN` could write to a read-only volume, with the
//! ids of the host if they are mapped. The kernel locks the mounts with which a mount namespace of
//! a user namespace is created, and copies keep the lock. So a child creates such a namespace while
//! the mounts are copied.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, OpenTreeFlags, UnmountFlags, mount, open_tree, unmount};
use sys::fork::SingleThread;

use crate::namespaces::create_user_ns;
use crate::rootfs::mounts::{PreparedMount, attach};

/// Replaces each mount of `staged` by a locked copy, for containers in the user namespace `user`.
/// `spare` is an empty directory, which is mounted over temporarily. Requires an own mount
/// namespace.
pub(crate) fn lock(staged: &mut [PreparedMount], user: BorrowedFd<'_>, spare: &Path) -> io::Result<()> {
    let mut trees: Vec<_> = staged.iter_mut().flat_map(PreparedMount::trees).collect();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("locking", spare, "tmpfs", flags, Some(c"mode=711"))?;
    let done = lock_at(&mut trees, user, spare);
    unmount(spare, UnmountFlags::DETACH)?;
    done
}

fn lock_at(trees: &mut [(&mut OwnedFd, bool)], user: BorrowedFd<'_>, place: &Path) -> io::Result<()> {
    for (number, (tree, directory)) in trees.iter().enumerate() {
        let place = place.join(number.to_string());
        if *directory {
            std::fs::create_dir(&place)?
        } else {
            drop(File::create(&place)?)
        }
        attach(&**tree, rustix::fs::open(&place, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)?;
    }
    let (ours, theirs) = sys::seqpacket::pair()?;
    for end in [&ours, &theirs] {
        rustix::io::ioctl_fionbio(end, false)?;
    }
    let count = trees.len();
    let child = sys::fork::fork(SingleThread::check()?, || match send_copies(count, user, place, &theirs) {
        Ok(()) => 0,
        Err(error) => i32::from(sys::seqpacket::send(&theirs, error.to_string().as_bytes(), &[]).is_err()),
    })?;
    drop(theirs);
    let received = trees.iter_mut().try_for_each(|(tree, _)| receive(&ours).map(|locked| **tree = locked));
    drop(ours);
    sys::child_wait::reap(child.as_raw())?;
    received
}

/// Runs in the child. It finds the mounts from its working directory, since root of a user
/// namespace cannot enter the path.
fn send_copies(count: usize, user: BorrowedFd<'_>, place: &Path, to: &OwnedFd) -> io::Result<()> {
    rustix::process::chdir(place)?;
    setns(user, CloneFlags::CLONE_NEWUSER)?;
    create_user_ns::become_root()?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    for number in 0..count {
        let locked = open_tree(CWD, number.to_string(), flags)?;
        sys::seqpacket::send(to, b"\0", &[locked.as_fd()])?;
    }
    Ok(())
}

fn receive(from: &OwnedFd) -> io::Result<OwnedFd> {
    let mut message = [0; 256];
    match sys::seqpacket::receive(from, &mut message)? {
        Some((n, mut fds)) => {
            fds.pop().ok_or_else(|| io::Error::other(String::from_utf8_lossy(&message[..n]).into_owned()))
        }
        None => Err(io::Error::other("the process that locks them exited without a message")),
    }
}
