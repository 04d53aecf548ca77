//! The hook gate: libcontainer waits there before it enters the root, while mounts and hooks are
//! done.
//!
//! Hooks that run before a container enters its root expect its mounts below the root, and the
//! programs of the host. libcontainer runs such hooks, but before crisp's mounts, which are
//! attached after the root is entered (`libcontainer_executor`). So if a configuration has such
//! hooks, libcontainer gets one other hook: this program, which sends a message to the gatekeeper
//! and waits for the answer. The gatekeeper is a child of the launcher that has all prepared
//! mounts. It attaches them below the root, in the container's namespaces, runs the hooks in their
//! order, and answers whether libcontainer may continue.
//!
//! ```text
//! launcher ──fork──▶ gatekeeper ◀───────pid────────┐
//!    └─ libcontainer ─▶ first process: root ready ─ hook ─ enters the root ─ …
//! ```
//!
//! A container without such hooks has no gate.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use nix::sched::{CloneFlags, setns};
use oci_spec::OciSpecError;
use oci_spec::runtime::{Hook, HookBuilder, Hooks, HooksBuilder, Spec};
use rustix::process::{Gid, Pid, PidfdFlags, Signal, Uid, pidfd_open};
use serde::Deserialize;
use sys::fork::SingleThread;

use crate::launch::libcontainer_executor::LaunchStages;
use crate::process::hook;
use crate::process::hook::{HookExec, InHost, State};

/// The argument with which this program is libcontainer's hook.
const HOOK_GATE_ARG: &str = "hook-gate";
const PASS: &[u8] = b"pass";

/// Returns whether a configuration has hooks for which libcontainer must wait.
pub(crate) fn is_needed(spec: &Spec) -> bool {
    let lists = |hooks: &Hooks| {
        [before_root(hooks), hooks.create_runtime().as_ref(), hooks.create_container().as_ref()]
            .into_iter()
            .flatten()
            .any(|list| !list.is_empty())
    };
    spec.hooks().as_ref().is_some_and(lists)
}

/// Returns the prestart hooks, which OCI deprecates and configurations still use.
fn before_root(hooks: &Hooks) -> Option<&Vec<Hook>> {
    #[allow(deprecated, reason = "configurations still use it")]
    hooks.prestart().as_ref()
}

/// Returns the one hook that libcontainer gets: the first of all that it runs.
pub(crate) fn hooks() -> Result<Hooks, OciSpecError> {
    let args = ["crisp-shim", HOOK_GATE_ARG].map(str::to_owned).to_vec();
    let hook = HookBuilder::default().path("/proc/self/exe").args(args).env(Vec::<String>::new()).build()?;
    #[allow(deprecated, reason = "the first that libcontainer runs")]
    HooksBuilder::default().prestart(vec![hook]).build()
}

/// The gatekeeper's input for mounts and hooks.
pub(crate) struct HookGate {
    pub(crate) id: String,
    /// The container's directory.
    pub(crate) bundle: PathBuf,
    pub(crate) rootfs: PathBuf,
    pub(crate) spec: Spec,
    pub(crate) stages: Rc<LaunchStages>,
}

/// Starts the gatekeeper. From now on the standard error of this process, which its hooks inherit,
/// is the socket to it.
pub(crate) fn spawn_gatekeeper(gate: HookGate) -> io::Result<()> {
    let alone = SingleThread::check()?;
    let (ours, theirs) = sys::seqpacket::pair()?;
    // Both ends only wait.
    for end in [&ours, &theirs] {
        rustix::io::ioctl_fionbio(end, false)?;
    }
    rustix::stdio::dup2_stderr(&theirs)?;
    drop(theirs);
    sys::fork::fork(alone, move || {
        let null = crate::io::stdio::null().and_then(|null| Ok(rustix::stdio::dup2_stderr(&null)?));
        match null.and_then(|()| serve_gate(alone, &gate, &ours)) {
            Ok(()) => 0,
            Err(error) => {
                gate.stages.report_gate_failure(&format!("serving the hook gate: {error}"));
                1
            }
        }
    })?;
    Ok(())
}

/// Runs as libcontainer's hook if it has that argument: sends the pid to the gatekeeper and waits
/// for its answer.
pub fn run_as_hook() -> Option<ExitCode> {
    /// The part of the container's state, as libcontainer sends it, that the gatekeeper needs.
    #[derive(Deserialize)]
    struct LibcontainerState {
        pid: i32,
    }
    if std::env::args_os().nth(1).is_none_or(|word| word != HOOK_GATE_ARG) {
        return None;
    }
    let may_continue = || -> io::Result<bool> {
        let LibcontainerState { pid } = serde_json::from_reader(io::stdin())?;
        let gate = io::stderr();
        sys::seqpacket::send(&gate, &pid.to_le_bytes(), &[])?;
        let mut answer = [0; 16];
        let answered = sys::seqpacket::receive(&gate, &mut answer)?;
        Ok(answered.is_some_and(|(n, _)| &answer[..n] == PASS))
    };
    Some(if may_continue().unwrap_or(false) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits for the hook, attaches the mounts, runs the hooks, and answers.
fn serve_gate(alone: SingleThread, gate: &HookGate, socket: &OwnedFd) -> io::Result<()> {
    // With the launcher, whose exit nothing here would notice.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    hook::reset_process();
    let mut message = [0; 4];
    let pid = match sys::seqpacket::receive(socket, &mut message)? {
        Some((4, _)) => i32::from_le_bytes(message),
        // libcontainer failed before its hook.
        _ => return Ok(()),
    };
    let passed = ContainerNamespaces::of(pid)
        .map_err(|e| GateError::Failed(format!("finding the container's first process: {e}")))
        .and_then(|inside| {
            settle(alone, gate, &inside)?;
            run_hooks(alone, gate, &inside, pid).map_err(|e| GateError::Failed(e.to_string()))
        });
    let Err(error) = passed else { return sys::seqpacket::send(socket, PASS, &[]) };
    if let GateError::Failed(reason) = error {
        gate.stages.report_gate_failure(&reason);
    }
    // It waits for a message that will not come.
    sys::signal::send(pid, 9).ok();
    sys::seqpacket::send(socket, b"no", &[])
}

/// The reason why the gate stays closed.
enum GateError {
    /// The process that made the mounts has reported it.
    Reported,
    Failed(String),
}

/// Attaches the mounts in a child that is in the container's namespaces and root, as its first
/// process will be. The child reports its failure itself.
fn settle(alone: SingleThread, gate: &HookGate, inside: &ContainerNamespaces) -> Result<(), GateError> {
    let report_result = |done: Result<(), String>| match done {
        Ok(()) => 0,
        Err(reason) => {
            gate.stages.report_gate_failure(&reason);
            1
        }
    };
    let work = || {
        let entered = rustix::process::chdir(&gate.rootfs).and_then(|()| rustix::process::chroot("."));
        let entered = entered.map_err(|e| format!("entering the root: {e}"));
        report_result(entered.and_then(|()| gate.stages.apply_mounts_early()))
    };
    let child = sys::fork::fork(alone, || match inside.enter() {
        Err(error) => report_result(Err(format!("entering the container's namespaces: {error}"))),
        Ok(()) if inside.forks_in_target() => {
            let ended = sys::fork::fork(alone, work).and_then(|born| sys::child_wait::reap(born.as_raw()));
            ended.ok().and_then(|status| status.exit_status()).unwrap_or(1)
        }
        Ok(()) => work(),
    });
    let status = child
        .and_then(|child| sys::child_wait::reap(child.as_raw()))
        .map_err(|e| GateError::Failed(format!("attaching the mounts: {e}")))?;
    if status.exit_status() == Some(0) { Ok(()) } else { Err(GateError::Reported) }
}

fn run_hooks(
    alone: SingleThread,
    gate: &HookGate,
    inside: &ContainerNamespaces,
    pid: i32,
) -> Result<(), hook::HookError> {
    let Some(hooks) = gate.spec.hooks() else { return Ok(()) };
    let none = HashMap::new();
    let state = State {
        oci_version: gate.spec.version(),
        id: &gate.id,
        status: "creating",
        pid,
        bundle: &gate.bundle,
        annotations: gate.spec.annotations().as_ref().unwrap_or(&none),
    };
    hook::run_all(alone, "prestart", before_root(hooks), &state, &InHost)?;
    hook::run_all(alone, "createRuntime", hooks.create_runtime().as_ref(), &state, &InHost)?;
    let state = State { pid: inside.pid, ..state };
    hook::run_all(alone, "createContainer", hooks.create_container().as_ref(), &state, inside)
}

/// The namespaces of the container's first process that differ from those of this process, except a
/// PID namespace that it shares with other processes.
struct ContainerNamespaces {
    process: OwnedFd,
    kinds: CloneFlags,
    /// Its number in its own PID namespace.
    pid: i32,
}

impl ContainerNamespaces {
    fn of(pid: i32) -> io::Result<Self> {
        const KINDS: [(CloneFlags, &str); 7] = [
            (CloneFlags::CLONE_NEWUSER, "user"),
            (CloneFlags::CLONE_NEWNS, "mnt"),
            (CloneFlags::CLONE_NEWPID, "pid"),
            (CloneFlags::CLONE_NEWNET, "net"),
            (CloneFlags::CLONE_NEWIPC, "ipc"),
            (CloneFlags::CLONE_NEWUTS, "uts"),
            (CloneFlags::CLONE_NEWCGROUP, "cgroup"),
        ];
        let raw = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let process = pidfd_open(raw, PidfdFlags::empty())?;
        let mut kinds = CloneFlags::empty();
        for (kind, name) in KINDS {
            let theirs = Path::new("/proc").join(pid.to_string()).join("ns").join(name);
            if std::fs::read_link(theirs)? != std::fs::read_link(format!("/proc/self/ns/{name}"))? {
                kinds |= kind;
            }
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let seen = pids.split_whitespace().next_back().and_then(|pid| pid.parse().ok()).unwrap_or(pid);
        if seen == 1 {
            return Ok(Self { process, kinds, pid: seen });
        }
        // Processes that are in the namespace already may be able to trace a hook, which still has
        // all files of the host.
        kinds.remove(CloneFlags::CLONE_NEWPID);
        Ok(Self { process, kinds, pid })
    }
}

impl HookExec for ContainerNamespaces {
    fn enter(&self) -> io::Result<()> {
        setns(self.process.as_fd(), self.kinds)?;
        if self.kinds.contains(CloneFlags::CLONE_NEWUSER) {
            // A process from outside has no mapped ids there.
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
            rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
        }
        Ok(())
    }

    fn forks_in_target(&self) -> bool {
        self.kinds.contains(CloneFlags::CLONE_NEWPID)
    }

    fn execute(&self, hook: &Hook) -> String {
        hook::execute(hook)
    }
}
