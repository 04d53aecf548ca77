//! Signals by number, real-time ones included, and across an `execve`.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

/// The signals that programs can set: the C library keeps 32 and 33 for itself, 9 and 19 are the kernel's.
fn settable() -> impl Iterator<Item = i32> {
    (1..=64).filter(|n| !matches!(n, 9 | 19 | 32 | 33))
}

/// Sends `signal` to one process. A pid of 0 or below would mean a group, and is refused.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: kill takes two numbers and touches no memory of ours.
    let done = unsafe { libc::kill(pid, signal) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives a program the signals as it expects them: none blocked, none ignored.
///
/// Rust ignores `SIGPIPE` and the shim blocks what it reads from a descriptor; both would be inherited.
pub fn reset() -> io::Result<()> {
    for signal in settable() {
        // SAFETY: the default action is no handler, so nothing can run in a signal's context.
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
        // Signal 0 only asks whether the process could be signalled.
        send(own, 0).unwrap();
        assert!(send(own, 65).is_err());
    }
}
