//! One more program in a running container. libcontainer's own way loses seccomp and groups, so this is ours.
//!
//! The shim itself enters the container's namespaces for the moment of the fork, so the new process never shows the
//! host's files to the container: it is born inside, with all it needs from outside already open.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use model::UserNs;
use nix::sched::{CloneFlags, setns};
use nix::unistd::Pid;
use oci_spec::runtime::{Process, Spec};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid as RPid, PidfdFlags, pidfd_open};
use shim_protocol::{ExecRequest, LaunchConfig};
use sys::fork::SingleThread;

use crate::io::console;
use crate::io::console::Console;
use crate::io::stdio::null;
use crate::launch::libcontainer_executor::{NOT_RUN, write_error};
use crate::launch::{LaunchError, read, set_oom_score};
use crate::namespaces::create_user_ns;
use crate::namespaces::saved_namespaces::SavedNamespaces;
use crate::process::execve::{exec_program, join_keyring, raise_limits};
use crate::process::lsm_label::LabelError;
use crate::rootfs::idmap;
use crate::rootfs::masked_paths::is_null;
use crate::rootfs::mount_target::open_in_root;

/// Who waits for a program, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecMode {
    /// Somebody waits for its end and has it killed, with all it started, when it takes too long.
    Sync,
    /// Somebody looks on, and may hang up.
    Stream,
    /// The same, at a terminal.
    Terminal,
}

/// What an exec is connected to; none is `/dev/null`.
#[derive(Debug, Default)]
pub struct ExecStdio {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    /// Where the master side of its terminal is sent.
    terminal: Option<OwnedFd>,
    /// Closes when the program runs; before that, tells why it does not.
    started: Option<OwnedFd>,
}

impl ExecStdio {
    /// From the descriptors that came with the ask.
    pub fn new(request: &ExecRequest, mode: ExecMode, fds: Vec<OwnedFd>, started: OwnedFd) -> Self {
        let mut fds = fds.into_iter();
        let started = Some(started);
        if mode == ExecMode::Terminal {
            return Self { terminal: fds.next(), started, ..Self::default() };
        }
        let mut next = |wanted: bool| if wanted { fds.next() } else { None };
        let (stdin, stdout, stderr) =
            (next(request.stdio.stdin), next(request.stdio.stdout), next(request.stdio.stderr));
        Self { stdin, stdout, stderr, terminal: None, started }
    }

    fn all(&self) -> impl Iterator<Item = &OwnedFd> {
        [&self.stdin, &self.stdout, &self.stderr, &self.terminal, &self.started].into_iter().flatten()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    Read(#[from] LaunchError),
    #[error(transparent)]
    Keyring(#[from] LabelError),
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
    /// For a container that has none any more.
    null: OwnedFd,
    /// The ids of the container, where it has its own.
    ids: Option<UserNs>,
}

/// Starts `ask` in the container whose first process is `init`. The new process is a child of this one.
pub fn exec(request: &ExecRequest, mode: ExecMode, dir: &Path, init: Pid, stdio: ExecStdio) -> Result<Pid, ExecError> {
    let prepared = prepare(dir, mode)?;
    let alone = SingleThread::check().map_err(step("forking"))?;
    let init =
        RPid::from_raw(init.as_raw()).ok_or(io::ErrorKind::InvalidInput).map_err(step("finding the container"))?;
    let container = pidfd_open(init, PidfdFlags::empty()).map_err(step("finding the container"))?;
    if prepared.ids.is_some() {
        return exec_inside(request, mode, prepared, &container, stdio);
    }
    let saved = SavedNamespaces::save(SavedNamespaces::kinds()).map_err(step("opening the host's namespaces"))?;
    setns(&container, SavedNamespaces::kinds()).map_err(step("entering the container's namespaces"))?;
    let child = sys::fork::fork(alone, move || run_or_report(request, mode, prepared, stdio));
    saved.restore();
    child.map_err(step("forking"))
}

/// The same in a user namespace, which the shim could not leave again. What root in there may not do is done before.
fn exec_inside(
    request: &ExecRequest,
    mode: ExecMode,
    prepared: Prepared,
    container: &OwnedFd,
    stdio: ExecStdio,
) -> Result<Pid, ExecError> {
    chown_stdio(&prepared, &stdio);
    let proc = prepared.proc.try_clone().map_err(step("copying a descriptor"))?;
    let (process, score) = (prepared.process.clone(), prepared.oom_score_adj);
    let enter = move || {
        raise_limits(&process);
        // From in there the old score could be taken again.
        set_score(&proc, score);
        setns(container, SavedNamespaces::kinds() | CloneFlags::CLONE_NEWUSER)?;
        create_user_ns::become_root()
    };
    let child = move || run_or_report(request, mode, prepared, stdio);
    create_user_ns::fork_in_userns(enter, child).map_err(step("entering the container's namespaces"))
}

/// Gives the streams to the container's user, by the ids that it has on the host.
fn chown_stdio(prepared: &Prepared, stdio: &ExecStdio) {
    let (uid, gid) = (prepared.process.user().uid(), prepared.process.user().gid());
    let host = prepared.ids.as_ref().and_then(|ids| ids.uid(uid).zip(ids.gid(gid)));
    let Some((uid, gid)) = host else { return };
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    for fd in [&stdio.stdout, &stdio.stderr].into_iter().flatten() {
        // As below.
        rustix::fs::fchown(fd, Some(uid), Some(gid)).ok();
    }
}

/// The container's own warning told of it already, where it is not possible.
fn set_score(proc: &OwnedFd, score: i32) {
    let file = rustix::fs::openat(proc, "self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    file.map(|fd| set_oom_score(File::from(fd), score)).ok();
}

fn prepare(dir: &Path, mode: ExecMode) -> Result<Prepared, ExecError> {
    let spec: Spec = read(dir, "config.json")?;
    let mut process = spec.process().clone().ok_or(ExecError::NoProcess)?;
    if mode == ExecMode::Terminal {
        console::name_terminal(&mut process);
    }
    let launch: LaunchConfig = read(dir, LaunchConfig::FILE)?;
    let filter = launch.seccomp.as_ref().map(std::fs::read).transpose().map_err(step("reading the seccomp filter"))?;
    let open = |file| File::options().write(true).open(file);
    let cgroups = launch.cgroup.join.iter().map(open).collect::<io::Result<_>>();
    Ok(Prepared {
        process,
        filter,
        cgroups: cgroups.map_err(step("opening the container's cgroups"))?,
        proc: File::open("/proc").map_err(step("opening /proc"))?.into(),
        oom_score_adj: launch.oom_score_adj.unwrap_or(0),
        null: null().map_err(step("opening /dev/null"))?,
        ids: idmap::of_container(&spec),
    })
}

/// In the new process, inside the container: becomes the program, or says why not.
fn run_or_report(request: &ExecRequest, mode: ExecMode, prepared: Prepared, mut stdio: ExecStdio) -> i32 {
    let started = stdio.started.take();
    let words = run(request, mode, prepared, stdio, started.as_ref());
    if let Some(started) = &started {
        write_error(started, &words);
    }
    NOT_RUN
}

/// Returns why the program does not run.
fn run(
    request: &ExecRequest,
    mode: ExecMode,
    prepared: Prepared,
    stdio: ExecStdio,
    started: Option<&OwnedFd>,
) -> String {
    let Prepared { process, filter, cgroups, proc, oom_score_adj, null, ids: _ } = prepared;
    let mut keep = vec![proc.as_fd(), null.as_fd()];
    keep.extend(cgroups.iter().map(|file| file.as_fd()));
    keep.extend(stdio.all().chain(started).map(|fd| fd.as_fd()));
    let settled = sys::fork::close_all_but(&keep).map_err(step("closing descriptors"));
    let settled = settled.and_then(|()| settle(cgroups, &proc, oom_score_adj, mode));
    let settled = settled.and_then(|()| {
        // The standard error is still that of the shim.
        if let Some(warning) = join_keyring(&process)? {
            crate::log(format_args!("exec in {}: {warning}", request.container));
        }
        Ok(())
    });
    let null = own_null(&proc).unwrap_or(null);
    // The host's processes can be found through it: not for longer than it takes.
    drop(proc);
    let settled = settled.and_then(|()| match &stdio.terminal {
        Some(socket) => at_terminal(&process, socket),
        None => connect(&process, &null, &stdio),
    });
    if let Err(error) = settled {
        return error.to_string();
    }
    // Here, since their numbers mean nothing from now on.
    drop((stdio, null));
    match exec_program(&process, &request.args, filter.as_deref(), started) {
        Ok(never) => match never {},
        Err(error) => error.to_string(),
    }
}

fn settle(cgroups: Vec<File>, proc: &OwnedFd, oom_score_adj: i32, mode: ExecMode) -> Result<(), ExecError> {
    for mut file in cgroups {
        file.write_all(b"0").map_err(step("joining the container's cgroups"))?;
    }
    set_score(proc, oom_score_adj);
    rustix::process::setsid().map_err(step("starting a session"))?;
    if mode == ExecMode::Sync {
        // Whoever is left by a parent that ends is taken over by this process, not by the container's first: so all that a
        // command started can be found, and killed, for as long as the command itself runs.
        let own = Some(rustix::process::getpid());
        rustix::process::set_child_subreaper(own).map_err(step("becoming the parent of orphans"))?;
    }
    Ok(())
}

/// The container's `/dev/null`, unless it has made something else of it: so its first process has it, too.
fn own_null(proc: &OwnedFd) -> Option<OwnedFd> {
    let found = open_in_root(Path::new("/dev/null")).ok()?;
    if !is_null(&found).ok()? {
        return None;
    }
    let again = format!("self/fd/{}", found.as_raw_fd());
    rustix::fs::openat(proc, again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn connect(process: &Process, null: &OwnedFd, stdio: &ExecStdio) -> Result<(), ExecError> {
    rustix::stdio::dup2_stdin(stdio.stdin.as_ref().unwrap_or(null))
        .and_then(|()| rustix::stdio::dup2_stdout(stdio.stdout.as_ref().unwrap_or(null)))
        .and_then(|()| rustix::stdio::dup2_stderr(stdio.stderr.as_ref().unwrap_or(null)))
        .map_err(step("connecting the standard streams"))?;
    let (uid, gid) = (process.user().uid(), process.user().gid());
    for fd in [&stdio.stdin, &stdio.stdout, &stdio.stderr].into_iter().flatten() {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        // Fails for files the caller opened on a read-only file system: then reopening is not possible, no more.
        rustix::fs::fchown(fd, Some(uid), Some(gid)).ok();
    }
    Ok(())
}

/// Opens a terminal in the container, hands its master side out, and makes the other this session's.
fn at_terminal(process: &Process, socket: &OwnedFd) -> Result<(), ExecError> {
    let Console { master, slave } = console::pair(process.user().uid()).map_err(step("opening a terminal"))?;
    sys::seqpacket::send(socket, &[0], &[master.as_fd()]).map_err(step("handing out the terminal"))?;
    console::take(&slave).map_err(step("taking the terminal"))
}
