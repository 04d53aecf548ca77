//! Starts a child from a confined process: one that has dropped its privileges, entered other
//! namespaces and loaded a seccomp filter.
//!
//! The new process is a child of the caller's parent, and the caller exits. All later calls of both
//! pass the filter: the calls that they need are [`ConfinedCall`]s. Each has a token in its last
//! argument, which the kernel ignores and a filter can check, so that a filter can allow the calls
//! of these processes only.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::unistd::Pid;

use crate::fork::{SingleThread, run_child};

const PAGE: usize = 4096;

/// The place where the kernel writes the pid of a new process: a page that the caller shares with
/// its parent, and not with the new process. The pid is that in the parent's PID namespace.
#[derive(Debug)]
pub struct SiblingPid(NonNull<AtomicI32>);

impl SiblingPid {
    /// Creates the page in the process that reads the pid, before it forks the one that calls
    /// [`fork_sibling`].
    pub fn new() -> io::Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address chosen by the kernel does not overlap
        // memory in use.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(page.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Returns the pid, once the process exists.
    #[must_use]
    pub fn get(&self) -> Option<Pid> {
        // SAFETY: the page is mapped as long as this value exists, it is aligned, and initially
        // zero.
        let pid = unsafe { self.0.as_ref() }.load(Ordering::Acquire);
        (pid > 0).then(|| Pid::from_raw(pid))
    }

    /// Excludes the page from children of this process.
    fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping; it only affects processes that are forked later.
        let done = unsafe { libc::madvise(self.0.as_ptr().cast(), PAGE, libc::MADV_DONTFORK) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for SiblingPid {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and there are no other references to it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// A system call of a process after its filter was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfinedCall {
    /// Creates the sibling.
    Fork,
    /// Creates a session.
    NewSession,
    /// Becomes the parent of orphaned descendants.
    BecomeSubreaper,
    /// Makes the terminal on stdin the controlling terminal.
    TakeTerminal,
    /// Reads from a descriptor.
    Read,
}

const FORK_FLAGS: libc::c_int = libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;

impl ConfinedCall {
    /// Returns its number, and index and value of the argument that selects the operation. All
    /// other arguments are pointers, descriptors, lengths or 0.
    #[must_use]
    pub fn signature(self) -> (libc::c_long, Option<(usize, u32)>) {
        match self {
            Self::Fork => (libc::SYS_clone, Some((0, FORK_FLAGS.cast_unsigned()))),
            Self::NewSession => (libc::SYS_setsid, None),
            Self::BecomeSubreaper => (libc::SYS_prctl, Some((0, libc::PR_SET_CHILD_SUBREAPER.cast_unsigned()))),
            Self::TakeTerminal => (libc::SYS_ioctl, u32::try_from(libc::TIOCSCTTY).ok().map(|command| (1, command))),
            Self::Read => (libc::SYS_read, None),
        }
    }
}

/// The last argument of every [`ConfinedCall`]; 0 for a filter that allows all of them anyway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallToken(pub u64);

/// Runs `child` in a child of this process' parent, which reads its pid from `pid`. This process
/// must exit afterwards.
pub fn fork_sibling(
    _proof: SingleThread,
    token: CallToken,
    pid: &PreparedPid<'_>,
    child: impl FnOnce() -> i32,
) -> io::Result<()> {
    let slot = pid.0.0.as_ptr();
    // SAFETY: without CLONE_VM and a stack this is a fork of the only thread. The slot is valid for
    // the kernel's write.
    let forked = unsafe { libc::syscall(libc::SYS_clone, FORK_FLAGS, 0, slot, 0, 0, token.0) };
    match forked {
        0 => run_child(child),
        pid if pid > 0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A [`SiblingPid`] that is excluded from children of this process.
#[derive(Debug)]
pub struct PreparedPid<'a>(&'a SiblingPid);

impl<'a> PreparedPid<'a> {
    /// Must be created before the filter is loaded.
    pub fn new(pid: &'a SiblingPid) -> io::Result<Self> {
        pid.keep_from_children()?;
        Ok(Self(pid))
    }
}

/// Creates a session.
pub fn new_session(token: CallToken) -> io::Result<()> {
    // SAFETY: setsid takes no arguments.
    checked(unsafe { libc::syscall(libc::SYS_setsid, 0, 0, 0, 0, 0, token.0) }).map(drop)
}

/// Becomes the parent of orphaned descendants.
pub fn become_subreaper(token: CallToken) -> io::Result<()> {
    // SAFETY: this option takes a number and accesses no memory.
    checked(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0, token.0) }).map(drop)
}

/// Makes the terminal on stdin the controlling terminal of this session.
pub fn take_terminal(token: CallToken) -> io::Result<()> {
    // SAFETY: this command takes a number and accesses no memory.
    checked(unsafe { libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0, 0, 0, token.0) }).map(drop)
}

/// Waits for a byte from `pipe`; returns false at its end.
pub fn wait_for_byte(pipe: BorrowedFd<'_>, token: CallToken) -> io::Result<bool> {
    let mut byte = 0u8;
    loop {
        // SAFETY: the buffer is one byte that outlives the call.
        let read = unsafe { libc::syscall(libc::SYS_read, pipe.as_raw_fd(), &raw mut byte, 1, 0, 0, token.0) };
        match checked(read) {
            Ok(read) => return Ok(read > 0),
            Err(again) if again.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
