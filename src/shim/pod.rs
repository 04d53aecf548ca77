//! What holds a pod together while it has no container: its namespaces, its shared memory, its init.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use link::{Held, HoldAsk};
use nix::sched::CloneFlags;
use nix::unistd::Pid;
use rustix::mount::{MountFlags, mount, mount_bind};

use crate::home::Home;
use crate::init;

#[derive(Debug, thiserror::Error)]
pub(crate) enum HoldError {
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
    #[error("sysctl {name}={value}: {source}")]
    Sysctl { name: String, value: String, source: io::Error },
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> HoldError {
    move |source| HoldError::Step { step, source: source.into() }
}

/// The pod, held. The namespaces live as long as this does; that of the network is also pinned in the file system.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) held: Held,
    /// The first process of the pod's PID namespace, where it has one.
    pub(crate) init: Option<Pid>,
    _namespaces: Vec<OwnedFd>,
}

/// Makes the namespaces by entering new ones and going back.
pub(crate) fn hold(ask: &HoldAsk) -> Result<Pod, HoldError> {
    let mut held = Held::default();
    let mut kept = Vec::new();
    let mut flags = CloneFlags::empty();
    flags.set(CloneFlags::CLONE_NEWNET, ask.namespaces.network);
    flags.set(CloneFlags::CLONE_NEWIPC, ask.namespaces.ipc);
    flags.set(CloneFlags::CLONE_NEWUTS, ask.namespaces.uts);
    let home = Home::of(flags).map_err(step("opening the host's namespaces"))?;
    nix::sched::unshare(flags).map_err(step("making the namespaces"))?;
    let made = furnish(ask, &mut held, &mut kept);
    home.go_back();
    made?;
    if ask.namespaces.ipc {
        held.shm = Some(shared_memory(&ask.dir, ask.shm_size)?);
    }
    let init = if ask.namespaces.pid { Some(start_init(ask, &held)?) } else { None };
    if let Some(pid) = init {
        // By descriptor: a pid could be another process's one day.
        let ns = std::fs::File::open(format!("/proc/{pid}/ns/pid")).map_err(step("keeping the PID namespace"))?;
        held.pid = Some(named(ns.into(), &mut kept));
    }
    Ok(Pod { held, init, _namespaces: kept })
}

/// Runs inside the new namespaces.
fn furnish(ask: &HoldAsk, held: &mut Held, kept: &mut Vec<OwnedFd>) -> Result<(), HoldError> {
    if ask.namespaces.uts {
        nix::unistd::sethostname(&ask.hostname).map_err(step("setting the host name"))?;
        held.uts = Some(keep("uts", kept).map_err(step("keeping the UTS namespace"))?);
    }
    if ask.namespaces.ipc {
        held.ipc = Some(keep("ipc", kept).map_err(step("keeping the IPC namespace"))?);
    }
    if ask.namespaces.network {
        sys::net::loopback_up().map_err(step("bringing up the loopback interface"))?;
        let pin = ask.dir.join("netns");
        std::fs::File::create(&pin).map_err(step("making the pin of the network namespace"))?;
        mount_bind("/proc/thread-self/ns/net", &pin).map_err(step("pinning the network namespace"))?;
        held.network = Some(pin);
    }
    for (name, value) in &ask.sysctls {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        std::fs::write(file, value).map_err(|source| HoldError::Sysctl {
            name: name.clone(),
            value: value.clone(),
            source,
        })?;
    }
    Ok(())
}

fn open_ns(name: &str) -> io::Result<OwnedFd> {
    Ok(std::fs::File::open(format!("/proc/thread-self/ns/{name}"))?.into())
}

/// Keeps the current namespace alive by a descriptor, and says where others find it.
fn keep(name: &str, kept: &mut Vec<OwnedFd>) -> io::Result<PathBuf> {
    Ok(named(open_ns(name)?, kept))
}

fn named(fd: OwnedFd, kept: &mut Vec<OwnedFd>) -> PathBuf {
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()));
    kept.push(fd);
    path
}

fn shared_memory(dir: &Path, size: u64) -> Result<PathBuf, HoldError> {
    let shm = dir.join("shm");
    std::fs::create_dir_all(&shm).map_err(step("making the directory of the shared memory"))?;
    let data = std::ffi::CString::new(format!("mode=1777,size={size}")).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("shm", &shm, "tmpfs", flags, Some(data.as_c_str())).map_err(step("mounting the shared memory"))?;
    Ok(shm)
}

/// The next child is the first process of a new PID namespace; later ones are the host's again.
fn start_init(ask: &HoldAsk, held: &Held) -> Result<Pid, HoldError> {
    let home = Home::of(CloneFlags::CLONE_NEWPID).map_err(step("opening the host's PID namespace"))?;
    nix::sched::unshare(CloneFlags::CLONE_NEWPID).map_err(step("making the PID namespace"))?;
    let pid = init::start(&ask.dir, held);
    home.go_back();
    pid.map_err(step("starting the pod's init"))
}
