//! The first process of a PID namespace that a pod's containers share: it reaps, and does nothing else.
//!
//! Whatever a container can see of it through `/proc/1` must lead nowhere: it has an empty root, no capability, no
//! descriptor, and ends with the shim.

use std::io;
use std::path::Path;

use link::Held;
use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::WaitOptions;
use rustix::thread::{CapabilitySet, CapabilitySets};
use sys::fork::OneThread;

/// Starts it, and waits until it is confined.
pub(crate) fn start(dir: &Path, held: &Held) -> io::Result<Pid> {
    let (mut confined, tell) = std::io::pipe()?;
    let pid = sys::fork::fork(OneThread::check()?, move || {
        let keep = [std::os::fd::AsFd::as_fd(&tell)];
        let ready = sys::fork::close_all_but(&keep).and_then(|()| confine(dir, held));
        if let Err(error) = ready {
            rustix::io::write(&tell, error.to_string().as_bytes()).ok();
            return 1;
        }
        drop(tell);
        reap()
    })?;
    let mut trouble = String::new();
    io::Read::read_to_string(&mut confined, &mut trouble)?;
    if trouble.is_empty() { Ok(pid) } else { Err(io::Error::other(trouble)) }
}

fn confine(dir: &Path, held: &Held) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    rustix::thread::set_name(c"crisp-init")?;
    for (path, flag) in [
        (&held.network, CloneFlags::CLONE_NEWNET),
        (&held.ipc, CloneFlags::CLONE_NEWIPC),
        (&held.uts, CloneFlags::CLONE_NEWUTS),
    ] {
        if let Some(path) = path {
            // The IPC and UTS namespaces are named by descriptors of the shim, which this process has closed, but
            // which the shim still has.
            nix::sched::setns(std::fs::File::open(path)?, flag)?;
        }
    }
    let null = crate::stdio::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("empty", dir, "tmpfs", flags, Some(c"size=4k,mode=555"))?;
    rustix::process::chdir(dir)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    for bit in 0..64u32 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false) {
            rustix::thread::remove_capability_from_bounding_set(one)?;
        }
    }
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Collects the dead until the namespace ends. SIGCHLD is blocked since the shim's start, so none is missed.
fn reap() -> i32 {
    let mut child = SigSet::empty();
    child.add(Signal::SIGCHLD);
    loop {
        while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        if child.wait().is_err() {
            return 1;
        }
    }
}
