//! Runs another program in a running container. libcontainer's way loses seccomp and groups.
//!
//! A child of the shim enters all namespaces of the container except its PID namespace: no process
//! of the container can see it. It joins the cgroups, connects the streams, drops its rights,
//! closes its descriptors and loads the filter. Then it forks: the new process begins in the PID
//! namespace with nothing that the container does not have, so a container that may trace others
//! gains nothing. The new process is a child of the shim, too.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use model::UserNs;
use nix::sched::{CloneFlags, setns};
use nix::unistd::Pid;
use oci_spec::runtime::{LinuxIdMapping, LinuxNamespace, Process};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid as RPid, PidfdFlags, pidfd_open};
use serde::Deserialize;
use shim_protocol::{ExecRequest, LaunchConfig};
use sys::fork::SingleThread;
use sys::sibling::{ConfinedCall, PreparedPid, SiblingPid};

use crate::io::console;
use crate::io::console::Console;
use crate::io::stdio::{self, NullDevice};
use crate::launch::cgroup_join::CgroupFds;
use crate::launch::libcontainer_executor::{NOT_RUN, write_error};
use crate::launch::{LaunchError, read, set_oom_score};
use crate::namespaces::create_user_ns;
use crate::namespaces::saved_namespaces::SavedNamespaces;
use crate::process::execve::{ExecProgramError, drop_rights, execute_first, join_keyring, load_filter, raise_limits};
use crate::process::lsm_label::{LabelError, ProcFs};
use crate::process::seccomp_filter::SeccompFilter;
use crate::rootfs::idmap;
use crate::rootfs::masked_paths::is_null;
use crate::rootfs::mount_target::open_in_root;
use crate::{StepError, step};

/// How a client waits for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecMode {
    /// ExecSync: the client waits for the exit; on timeout the program and all its descendants are
    /// killed.
    Sync,
    /// Exec: a streaming client, which may disconnect.
    Stream,
    /// Exec with a terminal.
    Terminal,
}

/// The streams of an exec; `None` is `/dev/null`.
#[derive(Debug, Default)]
pub struct ExecStdio {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    /// The socket to which the master of its terminal is sent.
    terminal: Option<OwnedFd>,
    /// Closes when the program runs; before that, it carries the reason why it does not.
    started: Option<OwnedFd>,
}

impl ExecStdio {
    /// Takes the descriptors of the request.
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
    #[error(transparent)]
    Rights(#[from] ExecProgramError),
    #[error("the container's config.json, which crisp wrote, has no process; please report this bug")]
    NoProcess,
    #[error(transparent)]
    Step(#[from] StepError),
}

/// The request of an exec, and the page that gets the pid of its program.
#[derive(Clone, Copy)]
struct ExecCall<'a> {
    request: &'a ExecRequest,
    mode: ExecMode,
    program: &'a SiblingPid,
}

/// Everything that is opened outside of the container.
struct Prepared {
    process: Process,
    filter: SeccompFilter,
    cgroups: CgroupFds,
    /// The container's first process.
    init: RPid,
    /// The host's proc file system, where a process finds its own files.
    proc: ProcFs,
    oom_score_adj: i32,
    /// For a container that no longer has one.
    null: OwnedFd,
    /// The ids of the container, if it has a user namespace.
    ids: Option<UserNs>,
    container: OwnedFd,
    alone: SingleThread,
}

/// An exec in progress.
#[derive(Debug)]
pub struct ExecProcess {
    /// The process that enters the container and forks.
    pub between: Pid,
    /// Its child, which executes the program.
    pub program: SiblingPid,
}

/// The container of an exec.
#[derive(Debug)]
pub struct ExecContainer<'a> {
    /// The directory with its `config.json`.
    pub dir: &'a Path,
    pub launch: &'a LaunchConfig,
    /// Its first process.
    pub init: Pid,
    pub null: Option<&'a NullDevice>,
}

/// Starts `request` in `container`. Both new processes are children of this one.
pub fn exec(
    request: &ExecRequest,
    mode: ExecMode,
    container: &ExecContainer<'_>,
    stdio: ExecStdio,
) -> Result<ExecProcess, ExecError> {
    let prepared = prepare(request, mode, container)?;
    let program = SiblingPid::new().map_err(step("allocating a page for the pid"))?;
    let call = ExecCall { request, mode, program: &program };
    let between = sys::fork::fork(prepared.alone, || enter_or_report(call, prepared, stdio));
    Ok(ExecProcess { between: between.map_err(step("forking"))?, program })
}

/// The part of the OCI configuration that an exec needs; other fields are skipped. Every exec reads
/// the file again, since a shim keeps no OCI configuration: most containers never run an exec.
#[derive(Debug, Deserialize)]
struct ExecSpec {
    process: Option<Process>,
    linux: Option<ExecNamespaces>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecNamespaces {
    namespaces: Option<Vec<LinuxNamespace>>,
    uid_mappings: Option<Vec<LinuxIdMapping>>,
    gid_mappings: Option<Vec<LinuxIdMapping>>,
}

impl ExecNamespaces {
    /// Returns the ids of the container's user namespace, if it has one.
    fn ids(self) -> Option<UserNs> {
        let Self { namespaces, uid_mappings, gid_mappings } = self;
        idmap::of_namespaces(namespaces.as_deref(), uid_mappings.as_deref(), gid_mappings.as_deref())
    }
}

fn prepare(
    request: &ExecRequest,
    mode: ExecMode,
    &ExecContainer { dir, launch, init, null }: &ExecContainer<'_>,
) -> Result<Prepared, ExecError> {
    let ExecSpec { process, linux } = read(dir, "config.json")?;
    let mut process = process.ok_or(ExecError::NoProcess)?;
    if mode == ExecMode::Terminal {
        console::name_terminal(&mut process);
    }
    let filter = launch.seccomp.as_ref().map(std::fs::read).transpose().map_err(step("reading the seccomp filter"))?;
    let filter = SeccompFilter::prepare(filter.as_deref(), calls(mode)).map_err(step("reading the seccomp filter"))?;
    let init =
        RPid::from_raw(init.as_raw()).ok_or(io::ErrorKind::InvalidInput).map_err(step("finding the container"))?;
    Ok(Prepared {
        process,
        filter,
        cgroups: CgroupFds::open(&launch.cgroup).map_err(step("opening the container's cgroups"))?,
        init,
        proc: ProcFs::of_host().map_err(step("opening /proc"))?,
        oom_score_adj: request.oom_score_adj.or(launch.oom_score_adj).unwrap_or(0),
        null: null.map_or_else(stdio::null, NullDevice::reopen).map_err(step("opening /dev/null"))?,
        ids: linux.and_then(ExecNamespaces::ids),
        container: pidfd_open(init, PidfdFlags::empty()).map_err(step("finding the container"))?,
        alone: SingleThread::check().map_err(step("forking"))?,
    })
}

/// Returns the system calls that are made after the filter is loaded.
fn calls(mode: ExecMode) -> &'static [ConfinedCall] {
    match mode {
        ExecMode::Sync => &[ConfinedCall::Fork, ConfinedCall::NewSession, ConfinedCall::BecomeSubreaper],
        ExecMode::Stream => &[ConfinedCall::Fork, ConfinedCall::NewSession],
        ExecMode::Terminal => &[ConfinedCall::Fork, ConfinedCall::NewSession, ConfinedCall::TakeTerminal],
    }
}

/// In the intermediate process: starts the new one, or reports why not.
fn enter_or_report(call: ExecCall<'_>, prepared: Prepared, mut stdio: ExecStdio) -> i32 {
    let Some(started) = stdio.started.take() else { return NOT_RUN };
    match enter(call, prepared, stdio, &started) {
        Ok(()) => 0,
        Err(error) => {
            write_error(&started, &error.to_string());
            NOT_RUN
        }
    }
}

fn enter(call: ExecCall<'_>, prepared: Prepared, stdio: ExecStdio, started: &OwnedFd) -> Result<(), ExecError> {
    let Prepared { process, filter, cgroups, init, proc, oom_score_adj, null, ids, container, alone } = prepared;
    let mut keep = vec![null.as_fd(), container.as_fd(), started.as_fd()];
    keep.extend(cgroups.files().map(|file| file.as_fd()));
    keep.extend(stdio.all().chain(proc.host()).map(|fd| fd.as_fd()));
    sys::fork::close_all_but(&keep).map_err(step("closing descriptors"))?;
    let pid = PreparedPid::new(call.program).map_err(step("keeping the page for the pid"))?;
    // The new process is in this session until it has its own: not in that of the shim, which it
    // could signal.
    rustix::process::setsid().map_err(step("starting a session"))?;
    // Root of a user namespace cannot do these.
    chown_stdio(&process, ids.as_ref(), &stdio);
    set_score(&proc, oom_score_adj);
    cgroups.join(init).map_err(step("joining the container's cgroups"))?;
    drop(cgroups);
    enter_namespaces(&container, ids.is_some().then_some(&process))?;
    // The standard error is still that of the shim.
    if let Some(warning) = join_keyring(&process, &proc)? {
        crate::log(format_args!("exec in {}: {warning}", call.request.container));
    }
    match &stdio.terminal {
        Some(socket) => at_terminal(&process, socket)?,
        None => connect(own_null(&proc).as_ref().unwrap_or(&null), &stdio)?,
    }
    let rights = drop_rights(&process, &proc)?;
    drop((stdio, null, proc, container));
    sys::fork::close_all_but(&[started.as_fd()]).map_err(step("closing descriptors"))?;
    load_filter(&process, rights, &filter)?;
    let child = || run(call, &process, &filter, started);
    Ok(sys::sibling::fork_sibling(alone, filter.token, &pid, child).map_err(step("forking in the container"))?)
}

/// Enters all namespaces except the PID namespace, which only children enter. With `inside`, the
/// container has a user namespace, whose root may do less than this process still can.
fn enter_namespaces(container: &OwnedFd, inside: Option<&Process>) -> Result<(), ExecError> {
    let entering = "entering the container's namespaces";
    let Some(process) = inside else {
        return Ok(setns(container, SavedNamespaces::kinds()).map_err(step(entering))?);
    };
    raise_limits(process);
    setns(container, SavedNamespaces::kinds() | CloneFlags::CLONE_NEWUSER).map_err(step(entering))?;
    Ok(create_user_ns::become_root().map_err(step(entering))?)
}

/// Gives the streams to the container's user, with its ids on the host.
fn chown_stdio(process: &Process, ids: Option<&UserNs>, stdio: &ExecStdio) {
    let (uid, gid) = (process.user().uid(), process.user().gid());
    let host = match ids {
        None => Some((uid, gid)),
        Some(ids) => ids.uid(uid).zip(ids.gid(gid)),
    };
    let Some((uid, gid)) = host else { return };
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    for fd in [&stdio.stdin, &stdio.stdout, &stdio.stderr].into_iter().flatten() {
        // Fails for files that the client opened on a read-only file system: the program then
        // cannot reopen them.
        rustix::fs::fchown(fd, Some(uid), Some(gid)).ok();
    }
}

/// Sets the OOM score. A failure was reported as a warning when the container was created.
fn set_score(proc: &ProcFs, score: i32) {
    let Some(proc) = proc.host() else { return };
    let file = rustix::fs::openat(proc, "self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    file.map(|fd| set_oom_score(File::from(fd), score)).ok();
}

/// Opens the container's `/dev/null`, unless the container replaced it: its first process has it,
/// too.
fn own_null(proc: &ProcFs) -> Option<OwnedFd> {
    let found = open_in_root(Path::new("/dev/null")).ok()?;
    if !is_null(&found).ok()? {
        return None;
    }
    let again = format!("self/fd/{}", found.as_raw_fd());
    rustix::fs::openat(proc.host()?, again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn connect(null: &OwnedFd, stdio: &ExecStdio) -> Result<(), ExecError> {
    rustix::stdio::dup2_stdin(stdio.stdin.as_ref().unwrap_or(null))
        .and_then(|()| rustix::stdio::dup2_stdout(stdio.stdout.as_ref().unwrap_or(null)))
        .and_then(|()| rustix::stdio::dup2_stderr(stdio.stderr.as_ref().unwrap_or(null)))
        .map_err(step("connecting the standard streams"))?;
    Ok(())
}

/// Opens a terminal in the container, sends its master, and connects the standard streams to its
/// slave.
fn at_terminal(process: &Process, socket: &OwnedFd) -> Result<(), ExecError> {
    let Console { master, slave } = console::pair(process.user().uid()).map_err(step("opening a terminal"))?;
    sys::seqpacket::send(socket, &[0], &[master.as_fd()]).map_err(step("sending the terminal"))?;
    Ok(console::connect(&slave).map_err(step("connecting the terminal"))?)
}

/// In the new process: executes the program, or reports why not.
fn run(call: ExecCall<'_>, process: &Process, filter: &SeccompFilter, started: &OwnedFd) -> i32 {
    let message = match settle(call.mode, filter) {
        Ok(()) => execute_first(process, &call.request.args).to_string(),
        Err(error) => error.to_string(),
    };
    write_error(started, &message);
    NOT_RUN
}

fn settle(mode: ExecMode, filter: &SeccompFilter) -> Result<(), StepError> {
    sys::sibling::new_session(filter.token).map_err(step("starting a session"))?;
    match mode {
        // Orphans are reparented to this process, not to the container's first: so all that a
        // command started can be found, and killed, for as long as the command itself runs.
        ExecMode::Sync => sys::sibling::become_subreaper(filter.token).map_err(step("becoming the parent of orphans")),
        ExecMode::Terminal => sys::sibling::take_terminal(filter.token).map_err(step("taking the terminal")),
        ExecMode::Stream => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{LinuxBuilder, LinuxIdMappingBuilder, LinuxNamespaceBuilder, LinuxNamespaceType, Spec};

    use super::*;

    #[test]
    fn an_exec_reads_the_process_and_the_ids_of_a_complete_configuration() {
        let mapping =
            LinuxIdMappingBuilder::default().host_id(65536u32).container_id(0u32).size(65536u32).build().unwrap();
        let namespace = LinuxNamespaceBuilder::default().typ(LinuxNamespaceType::User).build();
        let linux = LinuxBuilder::default()
            .namespaces(vec![namespace.unwrap()])
            .uid_mappings(vec![mapping])
            .gid_mappings(vec![mapping])
            .build();
        let mut spec = Spec::default();
        for linux in [linux.unwrap(), LinuxBuilder::default().namespaces(vec![]).build().unwrap()] {
            spec.set_linux(Some(linux));
            let read: ExecSpec = serde_json::from_slice(&serde_json::to_vec(&spec).unwrap()).unwrap();
            assert_eq!(&read.process, spec.process());
            assert_eq!(read.linux.and_then(ExecNamespaces::ids), idmap::of_container(&spec));
        }
        assert_eq!(idmap::of_container(&spec), None);
    }
}
