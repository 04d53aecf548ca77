//! A terminal inside the container.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::mount::OpenTreeFlags;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};

use crate::stage::{attach, find_or_make};

/// The two sides of a terminal of the container's own devpts.
#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) master: OwnedFd,
    pub(crate) slave: OwnedFd,
}

/// Opens a terminal for `uid`, and shows it as `/dev/console`. Runs in the container.
pub(crate) fn open(uid: u32) -> io::Result<Console> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty())?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::fs::fchown(&slave, Some(Uid::from_raw(uid)), None::<Gid>)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let shown = rustix::mount::open_tree(&slave, "", flags)?;
    attach(shown, find_or_make(Path::new("/dev/console"), false)?)?;
    Ok(Console { master, slave })
}

/// Makes the slave side the controlling terminal and the standard streams of this session leader.
pub(crate) fn take(slave: &OwnedFd) -> io::Result<()> {
    rustix::process::ioctl_tiocsctty(slave)?;
    rustix::stdio::dup2_stdin(slave)?;
    rustix::stdio::dup2_stdout(slave)?;
    rustix::stdio::dup2_stderr(slave)?;
    Ok(())
}
