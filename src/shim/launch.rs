//! Making a container: a short-lived child of the shim that calls libcontainer.
//!
//! The child has a mount namespace of its own, so the container's root file system is never mounted on the host and
//! goes away with the container. All that libcontainer does to the process that calls it (working directory, dumpable
//! flag, memory) goes away with the child. The container's first process becomes a child of the shim.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use link::{CreateAsk, Launch, Overlay};
use nix::sched::CloneFlags;
use nix::unistd::Pid;
use oci_spec::runtime::Spec;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use sys::fork::OneThread;

use crate::become_program::clamped_limits;
use crate::capability;
use crate::image_mount;
use crate::report::{Report, short, tell, trace};
use crate::split::{for_libcontainer, own_mounts};
use crate::stage::prepare;
use crate::stages::Stages;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("reading {file}: {source}")]
    Read { file: &'static str, source: io::Error },
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
    #[error(transparent)]
    Stage(#[from] crate::stage::StageError),
    #[error("{0}")]
    Split(#[from] crate::split::SplitError),
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
pub(crate) struct Ends {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// [`Report`]s go there.
    pub(crate) report: OwnedFd,
    /// Closes when the program runs; before that, tells why it does not.
    pub(crate) started: OwnedFd,
}

/// Starts the launch. What comes of it is told through [`Ends::report`].
pub(crate) fn launch(ask: &CreateAsk, ends: Ends) -> io::Result<Pid> {
    sys::fork::fork(OneThread::check()?, move || {
        let keep = [&ends.stdin, &ends.stdout, &ends.stderr, &ends.report, &ends.started].map(|fd| fd.as_fd());
        let report = match sys::fork::close_all_but(&keep).and_then(|()| ends.report.try_clone()) {
            Ok(report) => report,
            Err(_) => return 1,
        };
        match run(ask, ends) {
            Ok((pid, warnings)) => {
                tell(&report, &Report::Created { pid, warnings }, &[]);
                0
            }
            Err(error) => {
                tell(&report, &Report::Failed(short(error.to_string())), &[]);
                1
            }
        }
    })
}

fn run(ask: &CreateAsk, ends: Ends) -> Result<(u32, Vec<String>), LaunchError> {
    let dir = &ask.dir;
    let spec: Spec = read(dir, "config.json")?;
    let launch: Launch = read(dir, Launch::FILE)?;
    let process = spec.process().clone().ok_or(LaunchError::Lacks("process"))?;
    let mut warnings = clamped_limits(&process);
    let filter = launch.seccomp.as_ref().map(std::fs::read).transpose();
    let filter = filter.map_err(|source| LaunchError::Read { file: "the seccomp filter", source })?;
    let (uid, gid) = (process.user().uid(), process.user().gid());
    for end in [&ends.stdin, &ends.stdout, &ends.stderr] {
        // A program that reopens /dev/stdout as another user than root would be refused.
        if rustix::fs::fstat(end).is_ok_and(|s| s.st_rdev == 0) {
            rustix::fs::fchown(end, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(step("handing the standard streams to the user"))?;
        }
    }
    let mounts = own_mounts(&spec);
    let mut staged = prepare(&mounts, &launch.cgroup)?;
    let tracer = trace::ToShim(ends.report.try_clone().map_err(step("copying a descriptor"))?);
    drop(tracing::subscriber::set_global_default(tracer));

    let rootfs = dir.join("rootfs");
    std::fs::create_dir_all(&rootfs).map_err(step("making the root directory"))?;
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).map_err(step("unsharing the mount namespace"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(step("making mounts private"))?;
    staged.extend(image_mount::prepare(&mounts, &launch, &rootfs)?);
    mount_overlay(&launch.rootfs, &rootfs)?;
    no_links(&rootfs)?;

    let bundle = dir.join("libcontainer");
    std::fs::create_dir_all(&bundle).map_err(step("making the bundle"))?;
    let slim = for_libcontainer(&spec, rootfs, capability::names(capability::held()))?;
    slim.save(bundle.join("config.json")).map_err(|e| LaunchError::Libcontainer(e.to_string()))?;
    let readonly = spec.root().as_ref().is_some_and(|r| r.readonly() == Some(true));
    let stages = Stages::new(staged, process, readonly, filter, launch.tty, ends.report, ends.started);
    let pid = build(ask, &bundle, [ends.stdin, ends.stdout, ends.stderr], stages)?;
    // libcontainer joins the controllers of version 1, but neither named trees nor the version 2 tree beside them.
    for file in &launch.cgroup.join {
        std::fs::write(file, pid.to_string()).map_err(step("joining the cgroups"))?;
    }
    let asked = launch.oom_score_adj;
    let file = File::options().read(true).write(true).open(format!("/proc/{pid}/oom_score_adj"));
    if let Err(error) = file.and_then(|file| set_oom_score(file, asked.unwrap_or(0)))
        && let Some(score) = asked
    {
        warnings.push(format!("oom_score_adj {score} could not be set: {error}"));
    }
    Ok((pid, warnings))
}

/// Sets a score through an open `oom_score_adj`: the shim's own, which is among the last to be killed, is not for
/// containers.
pub(crate) fn set_oom_score(mut file: File, score: i32) -> io::Result<()> {
    let now = io::read_to_string(&file)?;
    if now.trim() == score.to_string() { Ok(()) } else { file.write_all(score.to_string().as_bytes()) }
}

fn build(ask: &CreateAsk, bundle: &Path, stdio: [OwnedFd; 3], stages: Rc<Stages>) -> Result<u32, LaunchError> {
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
    let container = ContainerBuilder::new(ask.container.to_string(), SyscallType::default())
        .with_executor(crate::stages::Runs(stages))
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

fn mount_overlay(overlay: &Overlay, onto: &Path) -> Result<(), LaunchError> {
    rustix::process::chdir(&overlay.layers).map_err(step("entering the layers"))?;
    let lower = overlay.lower.join(":");
    let data = format!("lowerdir={lower},upperdir={},workdir={}", overlay.upper.display(), overlay.work.display());
    let data = std::ffi::CString::new(data).map_err(|e| step("mounting the layers")(io::Error::other(e)))?;
    mount("overlay", onto, "overlay", MountFlags::empty(), Some(data.as_c_str()))
        .map_err(step("mounting the layers"))?;
    rustix::process::chdir("/").map_err(step("leaving the layers"))
}

/// libcontainer mounts and makes nodes at these places from outside of the root: a link of the image's there would lead
/// it to the host's own.
fn no_links(rootfs: &Path) -> Result<(), LaunchError> {
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

pub(crate) fn read<T: serde::de::DeserializeOwned>(dir: &Path, file: &'static str) -> Result<T, LaunchError> {
    let failed = |source| LaunchError::Read { file, source };
    let bytes = std::fs::read(dir.join(file)).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|e| failed(e.into()))
}
