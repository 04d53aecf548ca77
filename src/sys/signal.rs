//! Signals by number, including real-time ones, and their reset before `execve`.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

/// Returns the signals that programs can set: the C library reserves 32 and 33, the kernel 9 and
/// 19.
fn settable() -> impl Iterator<Item = i32> {
    (1..=64).filter(|n| !matches!(n, 9 | 19 | 32 | 33))
}

/// Sends `signal` to one process. A pid of 0 or below, which means a group, is refused.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: kill takes two numbers and accesses no memory.
    let done = unsafe { libc::kill(pid, signal) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Resets signals for a new program: none blocked, none ignored.
///
/// Rust ignores `SIGPIPE`, and the shim blocks the signals it reads from a descriptor; both would
/// be inherited.
pub fn reset() -> io::Result<()> {
    for signal in settable() {
        // SAFETY: the default action is not a handler, so no code can run in a signal context.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_never_signalled_and_every_real_signal_is_known() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(send(0, 9).is_err() && send(-own, 9).is_err());
        // Signal 0 only checks whether the process could be signalled.
        send(own, 0).unwrap();
        assert!(send(own, 65).is_err());
    }
}
