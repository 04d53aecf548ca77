//! One more program in a running container. libcontainer's own way loses seccomp and groups, so this is ours.
//!
//! The shim itself enters the container's namespaces for the moment of the fork, so the new process never shows the
//! host's files to the container: it is born inside, with all it needs from outside already open.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use link::{ExecAsk, Launch};
use nix::sched::setns;
use nix::unistd::Pid;
use oci_spec::runtime::{Process, Spec};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid as RPid, PidfdFlags, pidfd_open};
use sys::fork::OneThread;

use crate::become_program::become_program;
use crate::home::Home;
use crate::launch::{LaunchError, read, set_oom_score};
use crate::stages::{NOT_RUN, say_why};
use crate::stdio::null;

/// What an exec is connected to; none is `/dev/null`.
#[derive(Debug)]
pub(crate) struct ExecEnds {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    /// Closes when the program runs; before that, tells why it does not.
    pub(crate) started: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    #[error(transparent)]
    Read(#[from] LaunchError),
    #[error("the configuration has no process")]
    NoProcess,
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> ExecError {
    move |source| ExecError::Step { step, source: source.into() }
}

/// Everything that has to come from outside of the container.
struct Prepared {
    process: Process,
    filter: Option<Vec<u8>>,
    /// The files that put a process into the container's cgroups.
    cgroups: Vec<File>,
    /// Where its score is set: in the host's view of processes.
    proc: OwnedFd,
    oom_score_adj: i32,
    null: OwnedFd,
}

/// Starts `ask` in the container whose first process is `init`. The new process is a child of this one.
pub(crate) fn exec(ask: &ExecAsk, dir: &Path, init: Pid, ends: ExecEnds) -> Result<Pid, ExecError> {
    let prepared = prepare(dir)?;
    let alone = OneThread::check().map_err(step("forking"))?;
    let init =
        RPid::from_raw(init.as_raw()).ok_or(io::ErrorKind::InvalidInput).map_err(step("finding the container"))?;
    let container = pidfd_open(init, PidfdFlags::empty()).map_err(step("finding the container"))?;
    let home = Home::of(Home::kinds()).map_err(step("opening the host's namespaces"))?;
    setns(&container, Home::kinds()).map_err(step("entering the container's namespaces"))?;
    let child = sys::fork::fork(alone, move || {
        say_why(&ends.started, &run(ask, prepared, &ends));
        NOT_RUN
    });
    home.go_back();
    child.map_err(step("forking"))
}

fn prepare(dir: &Path) -> Result<Prepared, ExecError> {
    let spec: Spec = read(dir, "config.json")?;
    let launch: Launch = read(dir, Launch::FILE)?;
    let filter = launch.seccomp.as_ref().map(std::fs::read).transpose().map_err(step("reading the seccomp filter"))?;
    let open = |file| File::options().write(true).open(file);
    let cgroups = launch.cgroup.join.iter().map(open).collect::<io::Result<_>>();
    Ok(Prepared {
        process: spec.process().clone().ok_or(ExecError::NoProcess)?,
        filter,
        cgroups: cgroups.map_err(step("opening the container's cgroups"))?,
        proc: File::open("/proc").map_err(step("opening /proc"))?.into(),
        oom_score_adj: launch.oom_score_adj.unwrap_or(0),
        null: null().map_err(step("opening /dev/null"))?,
    })
}

/// In the new process, inside the container. Returns why the program does not run.
fn run(ask: &ExecAsk, prepared: Prepared, ends: &ExecEnds) -> String {
    let Prepared { process, filter, cgroups, proc, oom_score_adj, null } = prepared;
    let mut keep = vec![ends.started.as_fd(), proc.as_fd(), null.as_fd()];
    keep.extend(cgroups.iter().map(|file| file.as_fd()));
    keep.extend([&ends.stdin, &ends.stdout, &ends.stderr].into_iter().flatten().map(|fd| fd.as_fd()));
    let settled = sys::fork::close_all_but(&keep).map_err(step("closing descriptors"));
    let settled = settled.and_then(|()| settle(&process, cgroups, &proc, oom_score_adj, &null, ends));
    if let Err(error) = settled {
        return error.to_string();
    }
    match become_program(&process, &ask.args, filter.as_deref()) {
        Ok(never) => match never {},
        Err(error) => error.to_string(),
    }
}

fn settle(
    process: &Process,
    cgroups: Vec<File>,
    proc: &OwnedFd,
    oom_score_adj: i32,
    null: &OwnedFd,
    ends: &ExecEnds,
) -> Result<(), ExecError> {
    for mut file in cgroups {
        file.write_all(b"0").map_err(step("joining the container's cgroups"))?;
    }
    // The container's own warning told of it already, where it is not possible.
    let score = rustix::fs::openat(proc, "self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    score.map(|fd| set_oom_score(File::from(fd), oom_score_adj)).ok();
    rustix::process::setsid().map_err(step("starting a session"))?;
    let stdio = step("connecting the standard streams");
    rustix::stdio::dup2_stdin(ends.stdin.as_ref().unwrap_or(null))
        .and_then(|()| rustix::stdio::dup2_stdout(ends.stdout.as_ref().unwrap_or(null)))
        .and_then(|()| rustix::stdio::dup2_stderr(ends.stderr.as_ref().unwrap_or(null)))
        .map_err(stdio)?;
    let (uid, gid) = (process.user().uid(), process.user().gid());
    for fd in [&ends.stdout, &ends.stderr].into_iter().flatten() {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        // Fails for files the caller opened on a read-only file system: then reopening is not possible, no more.
        rustix::fs::fchown(fd, Some(uid), Some(gid)).ok();
    }
    Ok(())
}
