//! Forks a process with one thread.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::unistd::{ForkResult, Pid};

/// Proof that this process has only one thread, as long as it starts no other. So has its fork.
#[derive(Debug, Clone, Copy)]
pub struct SingleThread(());

impl SingleThread {
    /// Counts the threads in `/proc`, so it does not work in a process that has left the host's
    /// mounts.
    pub fn check() -> io::Result<Self> {
        if threads()? == 1 {
            Ok(Self(()))
        } else {
            Err(io::Error::other("fork requires a process with a single thread"))
        }
    }
}

/// Runs `child` in a fork of this process and returns its pid to the caller.
///
/// Not for a process with several threads: the fork would have locks of threads that do not exist
/// in it. The child never returns into the caller's code: it exits with the result of `child`.
pub fn fork(_proof: SingleThread, child: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: this is the only thread, so no lock is held by another one and the child may run any code.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => run_child(child),
    }
}

/// Runs `child` in a new process, and never returns into the code of its parent.
pub(crate) fn run_child(child: impl FnOnce() -> i32) -> ! {
    exit_now(std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101))
}

/// Exits without running exit handlers or flushing buffers that the parent flushes, too.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions; it does not return.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor from 3 on that is not in `keep`. For a forked child that owns no others:
/// the owners of the closed descriptors must not be used or dropped there.
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept.into_iter().filter(|fd| *fd >= 3) {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the caller does not use the descriptors in the range any more, see `close_all_but`.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn threads() -> io::Result<usize> {
    // The link count of the task directory is its number of threads plus the entries `.` and `..`.
    let links = rustix::fs::stat("/proc/self/task")?.st_nlink;
    usize::try_from(links).map(|n| n.saturating_sub(2)).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_may_not_fork() {
        // The test runner has a thread for each test in addition to the main one.
        assert!(threads().unwrap() > 1);
        assert!(SingleThread::check().is_err());
    }
}
