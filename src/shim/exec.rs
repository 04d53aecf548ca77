//! One more program in a running container. libcontainer's own way loses seccomp and groups, so this is ours.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use link::{ExecAsk, Launch};
use nix::sched::CloneFlags;
use nix::unistd::Pid;
use oci_spec::runtime::Spec;
use rustix::process::{Pid as RPid, PidfdFlags, pidfd_open};

use crate::become_program::become_program;
use crate::launch::read;

/// Where an exec goes and what it is connected to.
#[derive(Debug)]
pub(crate) struct ExecEnds {
    /// None is `/dev/null`.
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    /// Closes when the program runs; before that, tells why it does not.
    pub(crate) started: OwnedFd,
}

/// Starts `ask` in the container whose first process is `init`. The new process is a child of this one.
pub(crate) fn exec(ask: &ExecAsk, dir: &Path, init: Pid, ends: ExecEnds) -> io::Result<Pid> {
    let init = RPid::from_raw(init.as_raw()).ok_or(io::ErrorKind::InvalidInput)?;
    let container = pidfd_open(init, PidfdFlags::empty())?;
    let own = std::fs::File::open("/proc/self/ns/pid")?;
    // Only children are moved by this; the way back is always open.
    nix::sched::setns(&container, CloneFlags::CLONE_NEWPID)?;
    let child = sys::fork::fork(|| {
        let error = run(ask, dir, &container, &ends);
        rustix::io::write(&ends.started, error.as_bytes()).ok();
        127
    });
    nix::sched::setns(own, CloneFlags::CLONE_NEWPID)?;
    child
}

/// Returns why the program does not run.
fn run(ask: &ExecAsk, dir: &Path, container: &OwnedFd, ends: &ExecEnds) -> String {
    match enter(dir, container, ends) {
        Ok((spec, filter)) => {
            let Some(process) = spec.process() else { return "the configuration has no process".to_owned() };
            match become_program(process, &ask.args, filter.as_deref()) {
                Ok(never) => match never {},
                Err(error) => error.to_string(),
            }
        }
        Err(message) => message,
    }
}

fn enter(dir: &Path, container: &OwnedFd, ends: &ExecEnds) -> Result<(Spec, Option<Vec<u8>>), String> {
    let failed = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
    let mut keep = vec![container.as_fd(), ends.started.as_fd()];
    keep.extend([&ends.stdin, &ends.stdout, &ends.stderr].into_iter().flatten().map(|fd| fd.as_fd()));
    sys::fork::close_all_but(&keep).map_err(failed("closing descriptors"))?;
    // Read while the host's files are still there.
    let spec: Spec = read(dir, "config.json").map_err(|e| e.to_string())?;
    let launch: Launch = read(dir, Launch::FILE).map_err(|e| e.to_string())?;
    let filter = launch.seccomp.as_ref().map(std::fs::read).transpose().map_err(failed("reading the seccomp filter"))?;
    join(&launch.cgroup.join)?;
    if let Some(score) = launch.oom_score_adj {
        // The container's own warning told of it already.
        drop(std::fs::write("/proc/self/oom_score_adj", score.to_string()));
    }
    let spaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    nix::sched::setns(container, spaces).map_err(|e| failed("entering the namespaces")(e.into()))?;
    rustix::process::setsid().map_err(|e| failed("starting a session")(e.into()))?;
    let nothing = std::fs::File::options().read(true).write(true).open("/dev/null");
    let nothing = OwnedFd::from(nothing.map_err(failed("opening /dev/null"))?);
    let stdio = failed("connecting the standard streams");
    rustix::stdio::dup2_stdin(ends.stdin.as_ref().unwrap_or(&nothing))
        .and_then(|()| rustix::stdio::dup2_stdout(ends.stdout.as_ref().unwrap_or(&nothing)))
        .and_then(|()| rustix::stdio::dup2_stderr(ends.stderr.as_ref().unwrap_or(&nothing)))
        .map_err(|e| stdio(e.into()))?;
    for fd in [&ends.stdout, &ends.stderr].into_iter().flatten() {
        if let Some(process) = spec.process() {
            let user = process.user();
            let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid()), rustix::fs::Gid::from_raw(user.gid()));
            // Fails for files the caller opened on a read-only file system: then reopening is not possible, no more.
            rustix::fs::fchown(fd, Some(uid), Some(gid)).ok();
        }
    }
    Ok((spec, filter))
}

/// Puts this process into every cgroup of the container.
fn join(files: &[PathBuf]) -> Result<(), String> {
    for file in files {
        std::fs::write(file, "0").map_err(|e| format!("joining {}: {e}", file.display()))?;
    }
    Ok(())
}
