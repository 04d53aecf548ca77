//! The gate before the root: where libcontainer waits while mounts are made and hooks run.
//!
//! Hooks that run before a container enters its root want to find its mounts below the root, and the host's programs
//! beside it. libcontainer knows such hooks, but none of crisp's mounts, which otherwise come after the root was entered
//! (`executor`). So where a configuration has such hooks, libcontainer is given one hook of its own: this program,
//! which knocks at the gate and waits. Behind the gate is the *keeper*, a child of the launcher's that has all the
//! prepared mounts. It settles them below the root, in the container's namespaces, then runs the hooks in their order,
//! and lets libcontainer pass, or not.
//!
//! ```text
//! launcher ──fork──▶ keeper ◀─────────knock────────┐
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

/// The word that this program is started with to knock.
const HOOK_GATE_ARG: &str = "hook-gate";
const PASS: &[u8] = b"pass";

/// Whether a configuration has hooks for which libcontainer must be held up.
pub(crate) fn is_needed(spec: &Spec) -> bool {
    let lists = |hooks: &Hooks| {
        [before_root(hooks), hooks.create_runtime().as_ref(), hooks.create_container().as_ref()]
            .into_iter()
            .flatten()
            .any(|list| !list.is_empty())
    };
    spec.hooks().as_ref().is_some_and(lists)
}

/// Its name is out of use, hooks of that name are not.
fn before_root(hooks: &Hooks) -> Option<&Vec<Hook>> {
    #[allow(deprecated, reason = "a spec may still ask for it")]
    hooks.prestart().as_ref()
}

/// The one hook that libcontainer is given: the first of all that it runs.
pub(crate) fn hooks() -> Result<Hooks, OciSpecError> {
    let args = ["crisp-shim", HOOK_GATE_ARG].map(str::to_owned).to_vec();
    let knock = HookBuilder::default().path("/proc/self/exe").args(args).env(Vec::<String>::new()).build()?;
    #[allow(deprecated, reason = "the first that libcontainer runs")]
    HooksBuilder::default().prestart(vec![knock]).build()
}

/// What the keeper knows.
pub(crate) struct HookGate {
    pub(crate) id: String,
    /// The container's directory.
    pub(crate) bundle: PathBuf,
    pub(crate) rootfs: PathBuf,
    pub(crate) spec: Spec,
    pub(crate) stages: Rc<LaunchStages>,
}

/// Sets up the gate. From now on the standard error of this process, which its hooks inherit, leads there.
pub(crate) fn spawn_gatekeeper(gate: HookGate) -> io::Result<()> {
    let alone = SingleThread::check()?;
    let (ours, theirs) = sys::seqpacket::pair()?;
    // Whoever is at either end has nothing to do but wait.
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
                gate.stages.report_gate_failure(&format!("keeping the gate: {error}"));
                1
            }
        }
    })?;
    Ok(())
}

/// This program as libcontainer's hook: waits at the gate, if that is what it was started for.
pub fn run_as_hook() -> Option<ExitCode> {
    /// Of the state that libcontainer tells.
    #[derive(Deserialize)]
    struct LibcontainerState {
        pid: i32,
    }
    if std::env::args_os().nth(1).is_none_or(|word| word != HOOK_GATE_ARG) {
        return None;
    }
    let knocked = || -> io::Result<bool> {
        let LibcontainerState { pid } = serde_json::from_reader(io::stdin())?;
        let gate = io::stderr();
        sys::seqpacket::send(&gate, &pid.to_le_bytes(), &[])?;
        let mut answer = [0; 16];
        let answered = sys::seqpacket::receive(&gate, &mut answer)?;
        Ok(answered.is_some_and(|(n, _)| &answer[..n] == PASS))
    };
    Some(if knocked().unwrap_or(false) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits for the knock, does what is to be done, and answers.
fn serve_gate(alone: SingleThread, gate: &HookGate, socket: &OwnedFd) -> io::Result<()> {
    // With the launcher, whose end nobody here would notice.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    hook::reset_process();
    let mut told = [0; 4];
    let pid = match sys::seqpacket::receive(socket, &mut told)? {
        Some((4, _)) => i32::from_le_bytes(told),
        // libcontainer did not come so far.
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

/// Makes the mounts from a child that is in the container's namespaces, and in its root, as its first process will be. It
/// tells itself what went wrong.
fn settle(alone: SingleThread, gate: &HookGate, inside: &ContainerNamespaces) -> Result<(), GateError> {
    let told = |done: Result<(), String>| match done {
        Ok(()) => 0,
        Err(words) => {
            gate.stages.report_gate_failure(&words);
            1
        }
    };
    let work = || {
        let entered = rustix::process::chdir(&gate.rootfs).and_then(|()| rustix::process::chroot("."));
        let entered = entered.map_err(|e| format!("entering the root: {e}"));
        told(entered.and_then(|()| gate.stages.apply_mounts_early()))
    };
    let child = sys::fork::fork(alone, || match inside.enter() {
        Err(error) => told(Err(format!("entering the container's namespaces: {error}"))),
        Ok(()) if inside.forks_in_target() => {
            let ended = sys::fork::fork(alone, work).and_then(|born| sys::child_wait::reap(born.as_raw()));
            ended.ok().and_then(|status| status.exit_status()).unwrap_or(1)
        }
        Ok(()) => work(),
    });
    let status = child
        .and_then(|child| sys::child_wait::reap(child.as_raw()))
        .map_err(|e| GateError::Failed(format!("making the mounts: {e}")))?;
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

/// The namespaces of the container's first process, as far as they are not those of this one, but no PID namespace that it
/// shares with others.
struct ContainerNamespaces {
    process: OwnedFd,
    kinds: CloneFlags,
    /// As it is seen from there.
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
        // Who is there already may be able to look into a hook, which still sees all of the host's files.
        kinds.remove(CloneFlags::CLONE_NEWPID);
        Ok(Self { process, kinds, pid })
    }
}

impl HookExec for ContainerNamespaces {
    fn enter(&self) -> io::Result<()> {
        setns(self.process.as_fd(), self.kinds)?;
        if self.kinds.contains(CloneFlags::CLONE_NEWUSER) {
            // Who came from outside is nobody there.
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
