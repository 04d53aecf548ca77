//! The first process of a PID namespace that a pod's containers share. It only reaps.
//!
//! Containers can see it through `/proc/1`, which must lead nowhere: it has an empty root, no
//! capability and no descriptor, and exits with the shim.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::WaitOptions;
use rustix::thread::{CapabilitySet, CapabilitySets};
use shim_protocol::Sandbox;

/// The namespaces that it enters, held open: it may not be able to open them later.
#[derive(Debug)]
pub(crate) struct InitNamespaces(Vec<(CloneFlags, File)>);

impl InitNamespaces {
    pub(crate) fn open(sandbox: &Sandbox) -> io::Result<Self> {
        let kinds = [
            (&sandbox.network, CloneFlags::CLONE_NEWNET),
            (&sandbox.ipc, CloneFlags::CLONE_NEWIPC),
            (&sandbox.uts, CloneFlags::CLONE_NEWUTS),
        ];
        let all = kinds.into_iter().filter_map(|(path, kind)| path.as_ref().map(|path| (kind, path)));
        Ok(Self(all.map(|(kind, path)| Ok((kind, File::open(path)?))).collect::<io::Result<_>>()?))
    }
}

/// Starts it by `birth`, and waits until it is confined. Also returns a mount namespace whose root
/// is the proc file system of the new PID namespace: only a process in that namespace with the
/// right to mount can mount it, and later there are containers in it that may trace such a process.
pub(crate) fn start(
    spaces: InitNamespaces,
    birth: impl FnOnce(Box<dyn FnOnce() -> i32>) -> io::Result<Pid>,
) -> io::Result<(Pid, OwnedFd)> {
    let (mut confined, writer) = io::pipe()?;
    let (begin, mut go) = io::pipe()?;
    let pid = birth(Box::new(move || {
        let mut keep = vec![writer.as_fd(), begin.as_fd()];
        keep.extend(spaces.0.iter().map(|(_, space)| space.as_fd()));
        let ready = sys::fork::close_all_but(&keep).and_then(|()| confine(&begin, &writer, &spaces));
        if let Err(error) = ready {
            rustix::io::write(&writer, error.to_string().as_bytes()).ok();
            return 1;
        }
        drop((writer, begin, spaces));
        reap()
    }))?;
    // An intermediate parent has exited by now.
    go.write_all(b"\0")?;
    let mut trouble = vec![0];
    let proc = match confined.read(&mut trouble)? {
        1 if trouble == MOUNTED => Some(File::open(format!("/proc/{pid}/ns/mnt"))?),
        n => {
            trouble.truncate(n);
            None
        }
    };
    if proc.is_some() {
        trouble.clear();
        go.write_all(b"\0")?;
    }
    confined.read_to_end(&mut trouble)?;
    drop(go);
    match proc.filter(|_| trouble.is_empty()) {
        Some(proc) => Ok((pid, proc.into())),
        None if trouble.is_empty() => Err(io::Error::other("it exited without a message")),
        None => Err(io::Error::other(String::from_utf8_lossy(&trouble).into_owned())),
    }
}

/// Sends a message when the proc file system is the root of its mount namespace.
const MOUNTED: &[u8] = b"\0";

fn confine(mut begin: &PipeReader, mut writer: &PipeWriter, InitNamespaces(spaces): &InitNamespaces) -> io::Result<()> {
    begin.read_exact(&mut [0])?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Exits if the shim died just before this.
    let mut shim = [PollFd::new(begin, PollFlags::empty())];
    if rustix::event::poll(&mut shim, Some(&Timespec::default()))? > 0 {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    rustix::thread::set_name(c"crisp-init")?;
    for (kind, space) in spaces {
        nix::sched::setns(space, *kind)?;
    }
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let null = launcher::io::stdio::null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    enter_root("/proc")?;
    writer.write_all(MOUNTED)?;
    begin.read_exact(&mut [0])?;
    // The shim holds that namespace. This process gets one without mounts; any directory can be its
    // root.
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    mount("empty", "/sys", "tmpfs", flags | MountFlags::RDONLY, Some(c"size=4k,mode=555"))?;
    enter_root("/sys")?;
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

/// Makes the mount at `place` the root, and leaves all other mounts.
fn enter_root(place: &str) -> io::Result<()> {
    rustix::process::chdir(place)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Reaps until the namespace ends. SIGCHLD is blocked since the shim's start, so none is missed.
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
