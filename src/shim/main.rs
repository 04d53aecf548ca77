//! `crisp-shim`: one process per pod. It holds the pod's namespaces, launches containers, writes
//! their logs, reaps their processes and records their exit codes. It outlives the daemon.
//!
//! The shim has one thread and one event loop ([`server`]). Containers are created by a child
//! process of the shim, and processes inside them are started, by the crate `launcher`. [`pod`]
//! creates the pod's namespaces; the shim itself never enters a user namespace.
//!
//! The daemon starts the shim with a listening socket as standard input. libcontainer starts it as
//! a hook that waits (`launcher::launch::hook_gate`). With the argument `probe` it reports what
//! this host supports ([`probe`]).
#![forbid(unsafe_code)]

mod pod;
mod probe;
mod server;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::DumpableBehavior;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|word| word == "probe") {
        return probe::main(arguments.map(Into::into));
    }
    if let Some(passed) = launcher::launch::hook_gate::run_as_hook() {
        return passed;
    }
    match prepare().and_then(|(listener, signals)| server::Shim::new(listener, signals).run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            launcher::log(format_args!("exited: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prepares this process to be the parent of a pod's processes.
fn prepare() -> io::Result<(OwnedFd, SignalFd)> {
    let listener = io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::thread::set_name(c"crisp-shim")?;
    // Fails for the leader of a process group, which needs no new session.
    rustix::process::setsid().ok();
    sys::keyring::join_private()?;
    // If the quota of keys is used up, the processes of containers inherit this keyring.
    if let Err(error) = sys::keyring::lock() {
        launcher::log(format_args!("locking the session keyring: {error}"));
    }
    rustix::process::chdir("/")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let taken = signals_taken();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&taken), None)?;
    let signals = SignalFd::with_flags(&taken, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok((listener, signals))
}

/// Returns all signals except those of a fault in the shim's own instructions, which blocking would
/// hide. A signal to the shim does not end the pod.
fn signals_taken() -> SigSet {
    let mut taken = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGTRAP, Signal::SIGSYS] {
        taken.remove(fault);
    }
    taken
}
