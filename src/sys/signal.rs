//! Signals across an `execve`.

use std::io;

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};

/// Gives a program the signals as it expects them: none blocked, none ignored.
///
/// Rust ignores `SIGPIPE` and the shim blocks what it reads from a descriptor; both would be inherited.
pub fn reset() -> io::Result<()> {
    for each in Signal::iterator() {
        if matches!(each, Signal::SIGKILL | Signal::SIGSTOP) {
            continue;
        }
        // SAFETY: the default action is no handler, so nothing can run in a signal's context.
        unsafe { signal(each, SigHandler::SigDfl) }?;
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    Ok(())
}
