//! Opens terminals in the container's devpts, for `/dev/console` and for processes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use oci_spec::runtime::Process;
use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid, openat2};
use rustix::mount::OpenTreeFlags;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};

use crate::rootfs::mount_propagation::PropagationGuard;
use crate::rootfs::mount_target::find_or_create;

/// Both ends of a terminal of the container's own devpts.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) master: OwnedFd,
    pub(crate) slave: OwnedFd,
}

/// Opens a terminal for `uid`. Runs in the container.
pub(crate) fn pair(uid: u32) -> io::Result<Console> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    // The container may have replaced it: no link is followed, and the next call fails for a file
    // that is not a terminal.
    let master = openat2(CWD, "/dev/pts/ptmx", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::fs::fchown(&slave, Some(Uid::from_raw(uid)), None::<Gid>)?;
    Ok(Console { master, slave })
}

/// Opens a terminal and mounts it at `/dev/console`.
pub(crate) fn open(uid: u32, propagation: &mut PropagationGuard) -> io::Result<Console> {
    let Console { master, slave } = pair(uid)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let shown = rustix::mount::open_tree(&slave, "", flags)?;
    propagation.attach(shown, find_or_create(Path::new("/dev/console"), false)?)?;
    Ok(Console { master, slave })
}

/// Sets `TERM` for a program, unless the container's environment has it.
pub(crate) fn name_terminal(process: &mut Process) {
    let mut env = process.env().clone().unwrap_or_default();
    if !env.iter().any(|entry| entry.starts_with("TERM=")) {
        env.push("TERM=xterm".to_owned());
        process.set_env(Some(env));
    }
}

/// Connects the standard streams to the slave end.
pub(crate) fn connect(slave: &OwnedFd) -> io::Result<()> {
    rustix::stdio::dup2_stdin(slave)?;
    rustix::stdio::dup2_stdout(slave)?;
    rustix::stdio::dup2_stderr(slave)?;
    Ok(())
}
