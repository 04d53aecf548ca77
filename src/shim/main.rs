//! The process that watches over one pod: it holds the pod's namespaces, launches its containers through libcontainer,
//! writes their logs, reaps them, and remembers how they ended. The daemon that started it may come and go.
//!
//! One thread, one loop ([`shim`]). A launch happens in a child ([`launch`]), since libcontainer must not meet threads
//! and leaves traces in the process that calls it. Around libcontainer there are two stages of our own, both inside the
//! container's first process: [`stage`] makes the mounts that libcontainer cannot make well, and [`become_program`]
//! turns it into the container's program with exactly the rights that were asked. Exec ([`exec`]) is all ours and ends
//! in the same last stage.
//!
//! A pod may have a user namespace ([`user_ns`], [`id_maps`]). The shim itself never enters one; [`apart`] has what is
//! different about launching into one.
//!
//! Started by the daemon with a listening socket as its standard input; by libcontainer to wait at the [`gate`]; or, with the
//! argument `probe`, to find out what this host can do ([`probe`]).
#![forbid(unsafe_code)]

mod apart;
mod attach;
mod attach_client;
mod become_program;
mod capability;
mod connection;
mod console;
mod container;
mod cover;
mod device_nodes;
mod exec;
mod family;
mod gate;
mod home;
mod hook;
mod id_maps;
mod image_mount;
mod init;
mod joins;
mod label;
mod launch;
mod layers;
mod life;
mod locked;
mod log;
mod mount_options;
mod peers;
mod pod;
mod poll;
mod poststart;
mod probe;
mod report;
mod shed;
mod shim;
mod split;
mod stage;
mod stages;
mod stdio;
mod target;
mod user_ns;
mod verbs;

use std::io::{self, Write as _};
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
    if let Some(passed) = gate::knock() {
        return passed;
    }
    match prepare().and_then(|(listener, signals)| shim::Shim::new(listener, signals)?.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("ended: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to the shim's log, if it can be written: a shim must not end because nobody can read why it complains.
fn say(words: std::fmt::Arguments<'_>) {
    writeln!(io::stderr(), "crisp-shim: {words}").ok();
}

/// Makes this process fit to stand over a pod.
fn prepare() -> io::Result<(OwnedFd, SignalFd)> {
    let listener = io::stdin().as_fd().try_clone_to_owned()?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::thread::set_name(c"crisp-shim")?;
    // Fails for a process that leads its group already, which is as good.
    rustix::process::setsid().ok();
    sys::keyring::join_new()?;
    rustix::process::chdir("/")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let mut taken = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE] {
        taken.add(signal);
    }
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&taken), None)?;
    let signals = SignalFd::with_flags(&taken, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok((listener, signals))
}
