//! Making a container: a short-lived child of the shim that calls libcontainer.
//!
//! The child has a mount namespace of its own, so the container's root file system is never mounted on the host and
//! goes away with the container. All that libcontainer does to the process that calls it (working directory, dumpable
//! flag, memory) goes away with the child. The container's first process becomes a child of the shim.

mod cgroup_join;
pub(crate) mod executor;
pub mod hook_gate;
mod libcontainer_spec;
mod minimal_mounts;
pub mod report;
pub mod start;
mod target_pid_ns;
mod userns;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use nix::sched::CloneFlags;
use nix::unistd::Pid;
use oci_spec::runtime::{Process, Spec};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::CapabilitySet;
use shim_protocol::{CreateRequest, LaunchConfig, Overlay};
use sys::fork::SingleThread;

use crate::launch::cgroup_join::CgroupFds;
use crate::launch::executor::{HookPlan, LaunchStages, StartHooks};
use crate::launch::hook_gate::HookGate;
use crate::launch::libcontainer_spec::{for_libcontainer, own_mounts};
use crate::launch::minimal_mounts::pivot_to_minimal_mounts;
use crate::launch::report::{Report, send, trace, truncate};
use crate::launch::userns::UserNsLaunch;
use crate::process::exec_program::{clamped_limits, raise_limits};
use crate::process::{capabilities, lsm_label};
use crate::rootfs::idmap::IdMaps;
use crate::rootfs::mounts::prepare;
use crate::rootfs::{device_nodes, image_mount, locked_mounts, lowerdirs};

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("reading {file}: {source}")]
    Read { file: &'static str, source: io::Error },
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
    #[error(transparent)]
    Stage(#[from] crate::rootfs::mounts::MountError),
    #[error(transparent)]
    Node(#[from] crate::rootfs::device_nodes::NodeError),
    #[error("{0}")]
    Split(#[from] crate::launch::libcontainer_spec::SpecError),
    #[error("libcontainer: {0}")]
    Libcontainer(String),
    #[error("the configuration has no {0}")]
    Lacks(&'static str),
    #[error("/{0} of the image is not a directory")]
    NotADirectory(&'static str),
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> LaunchError {
    move |source| LaunchError::Step { step, source: source.into() }
}

/// The container's side of everything that connects it to the shim.
#[derive(Debug)]
pub struct ContainerStdio {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// [`Report`]s go there.
    pub(crate) report: OwnedFd,
    /// Closes when the program runs; before that, tells why it does not.
    pub(crate) started: OwnedFd,
}

/// Starts the launch. What comes of it is told through [`ContainerStdio::report`].
pub fn launch(request: &CreateRequest, stdio: ContainerStdio) -> io::Result<Pid> {
    sys::fork::fork(SingleThread::check()?, move || {
        let keep = [&stdio.stdin, &stdio.stdout, &stdio.stderr, &stdio.report, &stdio.started].map(|fd| fd.as_fd());
        let report = match sys::fork::close_all_but(&keep).and_then(|()| stdio.report.try_clone()) {
            Ok(report) => report,
            Err(_) => return 1,
        };
        match run(request, stdio) {
            Ok((pid, warnings)) => {
                send(&report, &Report::Created { pid, warnings }, &[]);
                0
            }
            Err(error) => {
                send(&report, &Report::Failed(truncate(error.to_string())), &[]);
                1
            }
        }
    })
}

fn run(request: &CreateRequest, stdio: ContainerStdio) -> Result<(u32, Vec<String>), LaunchError> {
    let dir = &request.dir;
    let mut spec: Spec = read(dir, "config.json")?;
    let shim = nix::unistd::getppid().as_raw();
    let _target = target_pid_ns::join(&mut spec, shim).map_err(step("joining the processes of another container"))?;
    let launch: LaunchConfig = read(dir, LaunchConfig::FILE)?;
    let process = spec.process().clone().ok_or(LaunchError::Lacks("process"))?;
    let mut warnings = clamped_limits(&process);
    let filter = launch.seccomp.as_ref().map(std::fs::read).transpose();
    let filter = filter.map_err(|source| LaunchError::Read { file: "the seccomp filter", source })?;
    let userns = UserNsLaunch::of(&spec).map_err(step("opening the pod's namespaces"))?;
    chown_stdio(&stdio, &process, userns.as_ref()).map_err(step("handing the standard streams to the user"))?;
    let mut ids = match &userns {
        Some(UserNsLaunch { ids, user, .. }) => {
            IdMaps::of_container(ids.clone(), user.try_clone().map_err(step("copying a descriptor"))?)
        }
        None => IdMaps::default(),
    };
    let mounts = own_mounts(&spec);
    let label = spec.linux().as_ref().and_then(|linux| linux.mount_label().clone());
    let label = label.as_deref();
    let mut staged = prepare(&mounts, &launch.cgroup, label, &mut ids, &mut warnings)?;
    let tracer = trace::ToShim(stdio.report.try_clone().map_err(step("copying a descriptor"))?);
    drop(tracing::subscriber::set_global_default(tracer));

    let rootfs = dir.join("rootfs");
    std::fs::create_dir_all(&rootfs).map_err(step("making the root directory"))?;
    let bundle = dir.join("libcontainer");
    std::fs::create_dir_all(&bundle).map_err(step("making the bundle"))?;
    let gated = hook_gate::is_needed(&spec);
    let cgroup_fds = CgroupFds::open(&launch.cgroup).map_err(step("opening the cgroups"))?;
    unshare_mounts()?;
    // Hooks of the host's may want to see all of them.
    if !gated {
        let unified = cgroup_fds.unified(&spec);
        if let Err(error) = needed_paths(dir, &spec, &launch)
            .and_then(|paths| pivot_to_minimal_mounts(&paths, unified.as_deref(), &bundle))
        {
            crate::log(format_args!("launching among all mounts of the host: {error}"));
        }
    }
    if let Some(userns) = &userns {
        raise_limits(&process);
        let devices = spec.linux().as_ref().and_then(|linux| linux.devices().as_deref()).unwrap_or_default();
        staged.splice(0..0, device_nodes::prepare(devices, &userns.ids, label, &rootfs)?);
    }
    staged.extend(image_mount::prepare(&mounts, &launch, label, &rootfs, &mut ids)?);
    if let Some(userns) = &userns {
        locked_mounts::lock(&mut staged, userns.user.as_fd(), &rootfs).map_err(step("locking the mounts"))?;
    }
    mount_overlay(&launch.rootfs, label, &rootfs, userns.as_ref().map(|userns| userns.user.as_fd()), &bundle)?;
    refuse_links(&rootfs)?;

    let held = if userns.is_some() { CapabilitySet::all() } else { capabilities::held() };
    let mut slim = for_libcontainer(&spec, rootfs.clone(), capabilities::names(held))?;
    if gated {
        slim.set_hooks(Some(hook_gate::hooks().map_err(crate::launch::libcontainer_spec::SpecError::from)?));
    }
    if let Some(userns) = &userns {
        userns.make_reachable(dir, gated).map_err(step("letting the user namespace find the root"))?;
        userns.adapt(&mut slim, dir).map_err(crate::launch::libcontainer_spec::SpecError::from)?;
    }
    slim.save(bundle.join("config.json")).map_err(|e| LaunchError::Libcontainer(e.to_string()))?;
    let hooks = HookPlan { gated, start: start_hooks(request, &spec)? };
    let stages = LaunchStages::new(staged, process, &spec, filter, launch.tty, [stdio.report, stdio.started], hooks);
    if gated {
        let (id, bundle) = (request.container.to_string(), dir.clone());
        let gate = HookGate { id, bundle, rootfs, spec, stages: Rc::clone(&stages) };
        hook_gate::spawn_gatekeeper(gate).map_err(step("raising the gate"))?;
    }
    let pid = build(request, &bundle, [stdio.stdin, stdio.stdout, stdio.stderr], stages)?;
    cgroup_fds.add(pid).map_err(step("joining the cgroups"))?;
    let asked = launch.oom_score_adj;
    let file = File::options().read(true).write(true).open(format!("/proc/{pid}/oom_score_adj"));
    if let Err(error) = file.and_then(|file| set_oom_score(file, asked.unwrap_or(0)))
        && let Some(score) = asked
    {
        warnings.push(format!("oom_score_adj {score} could not be set: {error}"));
    }
    Ok((pid, warnings))
}

/// What is mounted from here on is seen by this process and its children alone.
fn unshare_mounts() -> Result<(), LaunchError> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).map_err(step("unsharing the mount namespace"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(step("making mounts private"))
}

/// All that is looked for in the host's files from here on. What `/proc` and `/sys` have is always there.
fn needed_paths(dir: &Path, spec: &Spec, launch: &LaunchConfig) -> io::Result<Vec<PathBuf>> {
    let Overlay { layers, lower: _, upper, work } = &launch.rootfs;
    let spaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_deref()).unwrap_or_default();
    let spaces = spaces.iter().filter_map(|space| space.path().as_deref());
    let all = [dir, layers, upper, work].into_iter().chain(spaces);
    all.filter(|path| !path.starts_with("/proc") && !path.starts_with("/sys")).map(std::fs::canonicalize).collect()
}

/// The hooks that the container's first process runs itself.
fn start_hooks(request: &CreateRequest, spec: &Spec) -> Result<Option<StartHooks>, LaunchError> {
    let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.start_container().clone()).unwrap_or_default();
    if hooks.is_empty() {
        return Ok(None);
    }
    Ok(Some(StartHooks {
        alone: SingleThread::check().map_err(step("counting threads"))?,
        hooks,
        id: request.container.to_string(),
        bundle: request.dir.clone(),
        version: spec.version().clone(),
        annotations: spec.annotations().clone().unwrap_or_default(),
    }))
}

/// Sets a score through an open `oom_score_adj`: the shim's own, which is among the last to be killed, is not for
/// containers.
pub(crate) fn set_oom_score(mut file: File, score: i32) -> io::Result<()> {
    let now = io::read_to_string(&file)?;
    if now.trim() == score.to_string() { Ok(()) } else { file.write_all(score.to_string().as_bytes()) }
}

fn build(
    request: &CreateRequest,
    bundle: &Path,
    stdio: [OwnedFd; 3],
    stages: Rc<LaunchStages>,
) -> Result<u32, LaunchError> {
    let failed = |e: libcontainer::error::LibcontainerError| {
        let mut words = e.to_string();
        let mut cause = std::error::Error::source(&e);
        while let Some(next) = cause {
            words = format!("{words}: {next}");
            cause = next.source();
        }
        LaunchError::Libcontainer(words)
    };
    let [stdin, stdout, stderr] = stdio;
    let container = ContainerBuilder::new(request.container.to_string(), SyscallType::default())
        .with_executor(crate::launch::executor::CrispExecutor(stages))
        .with_root_path(bundle)
        .map_err(failed)?
        .with_stdin(stdin)
        .with_stdout(stdout)
        .with_stderr(stderr)
        .as_init(bundle)
        .with_systemd(false)
        .with_detach(true)
        .as_sibling(true)
        .build()
        .map_err(failed)?;
    let pid = container.pid().ok_or(LaunchError::Lacks("first process"))?;
    u32::try_from(pid.as_raw()).map_err(|_| LaunchError::Lacks("first process"))
}

/// A program that reopens /dev/stdout as another user than root would be refused.
fn chown_stdio(stdio: &ContainerStdio, process: &Process, userns: Option<&UserNsLaunch>) -> io::Result<()> {
    let (uid, gid) = (process.user().uid(), process.user().gid());
    let (uid, gid) = match userns {
        None => (Some(uid), Some(gid)),
        Some(userns) => (userns.ids.uid(uid), userns.ids.gid(gid)),
    };
    for end in [&stdio.stdin, &stdio.stdout, &stdio.stderr] {
        if rustix::fs::fstat(end).is_ok_and(|s| s.st_rdev == 0) {
            rustix::fs::fchown(end, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?;
        }
    }
    Ok(())
}

/// With `ids`, the files of the layers are shown under these. What is written has the ids that the container's are on the
/// host. `spare` is an empty directory, which is mounted over meanwhile.
fn mount_overlay(
    overlay: &Overlay,
    label: Option<&str>,
    onto: &Path,
    ids: Option<BorrowedFd<'_>>,
    spare: &Path,
) -> Result<(), LaunchError> {
    let entered = lowerdirs::enter(&overlay.layers, ids, spare).map_err(step("entering the layers"))?;
    let lower = overlay.lower.join(":");
    let (upper, work, label) = (overlay.upper.display(), overlay.work.display(), lsm_label::mount_data(label));
    let data = format!("lowerdir={lower},upperdir={upper},workdir={work}{label}");
    let data = std::ffi::CString::new(data).map_err(|e| step("mounting the layers")(io::Error::other(e)))?;
    mount("overlay", onto, "overlay", MountFlags::empty(), Some(data.as_c_str()))
        .map_err(step("mounting the layers"))?;
    entered.leave().map_err(step("leaving the layers"))
}

/// libcontainer mounts and makes nodes at these places from outside of the root: a link of the image's there would lead
/// it to the host's own.
fn refuse_links(rootfs: &Path) -> Result<(), LaunchError> {
    let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(rootfs, root, Mode::empty()).map_err(step("opening the root"))?;
    for place in ["proc", "sys", "dev"] {
        match rustix::fs::statat(&root, place, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                return Err(LaunchError::NotADirectory(place));
            }
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(step("looking into the root")(errno)),
        }
    }
    Ok(())
}

pub fn read<T: serde::de::DeserializeOwned>(dir: &Path, file: &'static str) -> Result<T, LaunchError> {
    let failed = |source| LaunchError::Read { file, source };
    let bytes = std::fs::read(dir.join(file)).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|e| failed(e.into()))
}
