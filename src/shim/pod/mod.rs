//! The sandbox of a pod: its namespaces, its shared memory, its init process.

mod init;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use launcher::namespaces::create_user_ns;
use launcher::namespaces::saved_namespaces::SavedNamespaces;
use launcher::process::lsm_label;
use launcher::{StepError, step};
use model::UserNs;
use nix::sched::CloneFlags;
use nix::unistd::{Pid, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind};
use shim_protocol::{Sandbox, SandboxRequest, ShimErrorKind};
use sys::fork::SingleThread;

use crate::pod::init::InitNamespaces;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(
        "{step}: root has as many namespaces as user.max_*_namespaces permits (`sysctl user`; containers that create \
         namespaces count towards it): {source}"
    )]
    NamespaceLimit { step: &'static str, source: io::Error },
    #[error("setting the pod's sysctl {name}={value}: {source}")]
    Sysctl { name: String, value: String, source: io::Error },
}

impl SandboxError {
    pub(crate) fn kind(&self) -> ShimErrorKind {
        match self {
            Self::NamespaceLimit { .. } => ShimErrorKind::Exhausted,
            Self::Step { .. } | Self::Sysctl { .. } => ShimErrorKind::Refused,
        }
    }
}

/// The sandbox. Its namespaces live as long as this value; the network namespace is also pinned in
/// the file system.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) sandbox: Sandbox,
    /// The first process of the pod's PID namespace, if it has one.
    pub(crate) init: Option<Pid>,
    /// A mount namespace whose root is the proc file system of that PID namespace.
    pub(crate) proc: Option<OwnedFd>,
    _namespaces: Vec<OwnedFd>,
}

/// Creates the namespaces by entering new ones and returning. A user namespace, if the pod has one,
/// is created first and owns the others; the shim never enters it.
pub(crate) fn create(request: &SandboxRequest) -> Result<Pod, SandboxError> {
    let mut sandbox = Sandbox::default();
    let mut namespaces = Vec::new();
    let mut flags = CloneFlags::empty();
    flags.set(CloneFlags::CLONE_NEWNET, request.namespaces.network);
    flags.set(CloneFlags::CLONE_NEWIPC, request.namespaces.ipc);
    flags.set(CloneFlags::CLONE_NEWUTS, request.namespaces.uts);
    let saved = SavedNamespaces::save(flags).map_err(step("opening the host's namespaces"))?;
    let created = enter_new(request, flags).and_then(|user| {
        sandbox.user = user.map(|user| named(user, &mut namespaces));
        populate(request, &mut sandbox, &mut namespaces)
    });
    saved.restore();
    created?;
    if request.namespaces.ipc {
        sandbox.shm = Some(shared_memory(request)?);
    }
    let (init, proc) = if request.namespaces.pid {
        start_init(&sandbox).map(|(init, proc)| (Some(init), Some(proc)))?
    } else {
        (None, None)
    };
    if let Some(pid) = init {
        // By descriptor, since another process may get the pid.
        let ns = std::fs::File::open(format!("/proc/{pid}/ns/pid")).map_err(step("keeping the PID namespace"))?;
        sandbox.pid = Some(named(ns.into(), &mut namespaces));
    }
    Ok(Pod { sandbox, init, proc, _namespaces: namespaces })
}

/// The kernel reports a full limit of namespaces as a full device.
fn creating<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> SandboxError {
    move |source| {
        let source = source.into();
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC) => SandboxError::NamespaceLimit { step, source },
            _ => self::step(step)(source).into(),
        }
    }
}

/// Enters new namespaces of these kinds. Returns the user namespace that owns them, if the pod has
/// one.
fn enter_new(request: &SandboxRequest, kinds: CloneFlags) -> Result<Option<OwnedFd>, SandboxError> {
    let Some(ids) = &request.user else {
        nix::sched::unshare(kinds).map_err(creating("creating the namespaces"))?;
        return Ok(None);
    };
    let created =
        create_user_ns::create(ids, kinds).map_err(creating("creating the user namespace and those it owns"))?;
    created.enter_others().map_err(step("entering the namespaces"))?;
    Ok(Some(created.user))
}

/// Sets up the new namespaces, from inside.
fn populate(
    request: &SandboxRequest,
    sandbox: &mut Sandbox,
    namespaces: &mut Vec<OwnedFd>,
) -> Result<(), SandboxError> {
    if request.namespaces.uts {
        nix::unistd::sethostname(&request.hostname).map_err(step("setting the host name"))?;
        sandbox.uts = Some(keep("uts", namespaces).map_err(step("keeping the UTS namespace"))?);
    }
    if request.namespaces.ipc {
        sandbox.ipc = Some(keep("ipc", namespaces).map_err(step("keeping the IPC namespace"))?);
    }
    if request.namespaces.network {
        sys::netns::loopback_up().map_err(step("bringing up the loopback interface"))?;
        let pin = request.dir.join("netns");
        std::fs::File::create(&pin).map_err(step("creating the mount point of the network namespace"))?;
        mount_bind("/proc/thread-self/ns/net", &pin).map_err(step("pinning the network namespace"))?;
        sandbox.network = Some(pin);
    }
    for (name, value) in &request.sysctls {
        set_sysctl(name, value, request.user.as_ref()).map_err(|source| SandboxError::Sysctl {
            name: name.clone(),
            value: value.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Writes a sysctl. Depending on the kernel, some accept root of the host only, others only root of
/// the namespace.
fn set_sysctl(name: &str, value: &str, ids: Option<&UserNs>) -> io::Result<()> {
    let file = format!("/proc/sys/{}", name.replace('.', "/"));
    let root = ids.and_then(|ids| ids.uid(0));
    match (std::fs::write(&file, value), root) {
        (Err(refused), Some(root)) if refused.kind() == io::ErrorKind::PermissionDenied => {
            nix::unistd::seteuid(Uid::from_raw(root))?;
            let written = std::fs::write(&file, value);
            if let Err(errno) = nix::unistd::seteuid(Uid::from_raw(0)) {
                launcher::log(format_args!("the way back to root is closed: {errno}"));
                std::process::abort();
            }
            written
        }
        (written, _) => written,
    }
}

fn open_ns(name: &str) -> io::Result<OwnedFd> {
    Ok(std::fs::File::open(format!("/proc/thread-self/ns/{name}"))?.into())
}

/// Keeps the current namespace alive by a descriptor, and returns its path for other processes.
fn keep(name: &str, namespaces: &mut Vec<OwnedFd>) -> io::Result<PathBuf> {
    Ok(named(open_ns(name)?, namespaces))
}

fn named(fd: OwnedFd, namespaces: &mut Vec<OwnedFd>) -> PathBuf {
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()));
    namespaces.push(fd);
    path
}

fn shared_memory(request: &SandboxRequest) -> Result<PathBuf, SandboxError> {
    let shm = request.dir.join("shm");
    std::fs::create_dir_all(&shm).map_err(step("creating the directory of the shared memory"))?;
    let owner = |id: fn(&UserNs, u32) -> Option<u32>| request.user.as_ref().and_then(|ids| id(ids, 0)).unwrap_or(0);
    let (uid, gid) = (owner(UserNs::uid), owner(UserNs::gid));
    let label = lsm_label::mount_data(request.mount_label.as_deref());
    let data = format!("mode=1777,size={},uid={uid},gid={gid}{label}", request.shm_size);
    let data = std::ffi::CString::new(data).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("shm", &shm, "tmpfs", flags, Some(data.as_c_str())).map_err(step("mounting the shared memory"))?;
    Ok(shm)
}

/// Starts the init process: the first child in a new PID namespace. Later children are in the
/// host's again.
fn start_init(sandbox: &Sandbox) -> Result<(Pid, OwnedFd), SandboxError> {
    let spaces = InitNamespaces::open(sandbox).map_err(step("opening the pod's namespaces"))?;
    let started = match &sandbox.user {
        None => init::start(spaces, fork_in_new_pid_ns),
        Some(user) => {
            let user = std::fs::File::open(user).map_err(step("opening the user namespace"))?;
            let enter = move || {
                nix::sched::setns(user, CloneFlags::CLONE_NEWUSER)?;
                create_user_ns::become_root()?;
                Ok(nix::sched::unshare(CloneFlags::CLONE_NEWPID)?)
            };
            init::start(spaces, |child| create_user_ns::fork_in_userns(enter, child))
        }
    };
    Ok(started.map_err(step("starting the pod's init"))?)
}

fn fork_in_new_pid_ns(child: Box<dyn FnOnce() -> i32>) -> io::Result<Pid> {
    let alone = SingleThread::check()?;
    let saved = SavedNamespaces::save(CloneFlags::CLONE_NEWPID)?;
    nix::sched::unshare(CloneFlags::CLONE_NEWPID)?;
    let born = sys::fork::fork(alone, child);
    saved.restore();
    born
}
