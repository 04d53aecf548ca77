//! The two stages that libcontainer calls in the container's first process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::unistd::Pid;
use oci_spec::runtime::{Hook, Linux, LinuxNamespaceType, Process};
use shim_protocol::LaunchWarningKind;
use sys::fork::SingleThread;

use crate::io::console;
use crate::io::console::Console;
use crate::launch::report::{MESSAGE_MAX, Report, send, truncate};
use crate::launch::shared_stage::SharedStage;
use crate::process::execve::{drop_rights, execute, execute_first, join_keyring, load_filter};
use crate::process::hook::{HookExec, State};
use crate::process::lsm_label::ProcFs;
use crate::process::seccomp_filter::SeccompFilter;
use crate::process::{hook, lsm_label};
use crate::rootfs::masked_paths::{NullDevice, apply};
use crate::rootfs::mount_propagation::PropagationGuard;
use crate::rootfs::mount_target::find_or_create;
use crate::rootfs::mounts::{PreparedMount, attach_in_root, seal_root};

/// All that the stages need; a fork carries it into the container.
#[derive(Debug)]
pub(crate) struct LaunchStages {
    staged: Vec<PreparedMount>,
    settings: StageSettings,
    linux: Linux,
    readonly_root: bool,
    /// Whether a volume propagates mounts to the host.
    shares: bool,
    report: OwnedFd,
    started: OwnedFd,
    /// The slave end of the terminal, between the two stages.
    slave: RefCell<Option<OwnedFd>>,
}

#[derive(Debug)]
pub(crate) struct StageSettings {
    pub(crate) process: Process,
    pub(crate) filter: SeccompFilter,
    pub(crate) tty: bool,
    pub(crate) hooks: HookPlan,
    /// For a container that shares a PID namespace.
    pub(crate) shared: Option<SharedStage>,
    /// The proc file system in which the first process finds its own files.
    pub(crate) proc: ProcFs,
}

/// How hooks change the stages.
#[derive(Debug)]
pub(crate) struct HookPlan {
    /// The gatekeeper attaches the mounts before the root is entered.
    pub(crate) gated: bool,
    pub(crate) start: Option<StartHooks>,
}

/// Hooks that run in the container between StartContainer and its program.
#[derive(Debug)]
pub(crate) struct StartHooks {
    pub(crate) alone: SingleThread,
    pub(crate) hooks: Vec<Hook>,
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) version: String,
    pub(crate) annotations: HashMap<String, String>,
}

impl LaunchStages {
    pub(crate) fn new(
        staged: Vec<PreparedMount>,
        spec: &Spec,
        settings: StageSettings,
        report: OwnedFd,
        started: OwnedFd,
    ) -> Rc<Self> {
        let slave = RefCell::new(None);
        let linux = spec.linux().clone().unwrap_or_default();
        let readonly_root = spec.root().as_ref().is_some_and(|root| root.readonly() == Some(true));
        let shares = spec.mounts().iter().flatten().any(PropagationGuard::has);
        Rc::new(Self { staged, settings, linux, readonly_root, shares, report, started, slave })
    }

    pub(super) fn process(&self) -> &Process {
        &self.settings.process
    }

    pub(super) fn filter(&self) -> &SeccompFilter {
        &self.settings.filter
    }

    pub(super) fn proc(&self) -> &ProcFs {
        &self.settings.proc
    }

    pub(super) fn has_terminal(&self) -> bool {
        self.settings.tty
    }

    pub(super) fn report(&self) -> &OwnedFd {
        &self.report
    }

    pub(super) fn started(&self) -> &OwnedFd {
        &self.started
    }

    /// Returns the first process of a container that shares a PID namespace, once it exists.
    pub(super) fn forked(&self) -> Option<Pid> {
        self.settings.shared.as_ref().and_then(SharedStage::forked)
    }

    fn propagation(&self) -> Result<PropagationGuard, String> {
        PropagationGuard::new(self.shares, self.proc().host()).map_err(|e| format!("copying a descriptor: {e}"))
    }

    /// Attaches the mounts in the root of this process, for a container whose first process does
    /// not exist yet.
    pub(crate) fn apply_mounts_early(&self) -> Result<(), String> {
        let mut propagation = self.propagation()?;
        attach_in_root(&self.staged, &mut propagation).map_err(|e| e.to_string())?;
        rejoin(propagation)
    }

    /// Reports to the shim why the hook gate stays closed.
    pub(crate) fn report_gate_failure(&self, reason: &str) {
        send(&self.report, &Report::HookGateFailed(truncate(reason.to_owned())), &[]);
    }

    /// Reports to the shim why the launch fails.
    pub(crate) fn report_failure(&self, message: &str) {
        send(&self.report, &Report::Failed(truncate(message.to_owned())), &[]);
    }

    /// Runs after libcontainer entered the root, before the container counts as created.
    fn pre_create(&self) -> Result<(), String> {
        if let Some(warning) = join_keyring(self.process(), self.proc()).map_err(|e| e.to_string())? {
            send(&self.report, &Report::Warning(LaunchWarningKind::Keyring.warning(warning)), &[]);
        }
        let mut propagation = self.propagation()?;
        if self.has_terminal() {
            // Before the volumes: one could be mounted over the directory of terminals.
            let uid = self.process().user().uid();
            let opened = console::open(uid, &mut propagation).map_err(|e| format!("opening a terminal: {e}"))?;
            let Console { master, slave } = opened;
            send(&self.report, &Report::Console, &[master.as_fd(), slave.as_fd()]);
            self.slave.replace(Some(slave));
        }
        let null = NullDevice::open().map_err(|e| e.to_string())?;
        let label = self.linux.mount_label().as_deref();
        if let Some(label) = label.filter(|_| self.has_queues()) {
            lsm_label::on_queues(Path::new("/dev/mqueue"), label).map_err(|e| format!("labelling /dev/mqueue: {e}"))?;
        }
        if !self.settings.hooks.gated {
            attach_in_root(&self.staged, &mut propagation).map_err(|e| e.to_string())?;
        }
        let cwd = self.process().cwd();
        drop(find_or_create(cwd, true).map_err(|e| format!("working directory {}: {e}", cwd.display()))?);
        let paths = |paths: &'_ Option<Vec<String>>| paths.clone().unwrap_or_default();
        let (masked, readonly) = (paths(self.linux.masked_paths()), paths(self.linux.readonly_paths()));
        apply(&masked, &readonly, &null, label, &mut propagation).map_err(|e| e.to_string())?;
        rejoin(propagation)?;
        if self.readonly_root { seal_root().map_err(|e| e.to_string()) } else { Ok(()) }
    }

    /// Returns whether its message queues are those of the pod, not of the host.
    fn has_queues(&self) -> bool {
        self.linux.namespaces().iter().flatten().any(|namespace| namespace.typ() == LinuxNamespaceType::Ipc)
    }

    /// Runs after libcontainer's start signal, in a container with a PID namespace of its own.
    /// Returns the reason why the program does not run.
    fn post_start(&self) -> String {
        if let Some(slave) = self.slave.take()
            && let Err(error) = console::connect(&slave).and_then(|()| Ok(rustix::process::ioctl_tiocsctty(&slave)?))
        {
            return format!("taking the terminal: {error}");
        }
        if let Err(error) = sys::fork::close_all_but(&[self.started.as_fd()]) {
            return format!("closing descriptors: {error}");
        }
        let confined = drop_rights(self.process(), self.proc());
        match confined.and_then(|rights| load_filter(self.process(), rights, self.filter())) {
            Ok(()) => self.run_program(),
            Err(error) => error.to_string(),
        }
    }

    /// Runs the hooks and the program in a process that has no more rights than they. Returns the
    /// reason why the program does not run.
    pub(super) fn run_program(&self) -> String {
        if let Some(start) = &self.settings.hooks.start
            && let Err(error) = self.run_hooks(start)
        {
            return error.to_string();
        }
        execute_first(self.process(), self.process().args().as_deref().unwrap_or_default()).to_string()
    }
}

fn rejoin(propagation: PropagationGuard) -> Result<(), String> {
    propagation.rejoin_peer_group().map_err(|e| format!("restoring mount propagation of volumes to the host: {e}"))
}

impl LaunchStages {
    fn run_hooks(&self, start: &StartHooks) -> Result<(), hook::HookError> {
        let StartHooks { alone, hooks, id, bundle, version, annotations } = start;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let state = State { oci_version: version, id, status: "created", pid, bundle, annotations };
        hook::run_all(*alone, "startContainer", Some(hooks), &state, self)
    }
}

/// A hook in the container runs with the rights of the container's program, as the process that
/// runs it: its path is resolved among files of the image.
impl HookExec for LaunchStages {
    fn execute(&self, hook: &Hook) -> String {
        let mut process = self.process().clone();
        if let Some(env) = hook.env() {
            process.set_env(Some(env.clone()));
        }
        let program = hook.path().display().to_string();
        execute(&process, &program, &hook::arguments(hook)).to_string()
    }
}

/// The exit status of a process that could not execute a program.
pub(crate) const NOT_RUN: i32 = 127;

/// Reports to the shim why no program runs. One write that fits into an empty pipe: it does not
/// block and is atomic.
pub(crate) fn write_error(started: &OwnedFd, message: &str) {
    rustix::io::write(started, &message.as_bytes()[..message.len().min(MESSAGE_MAX)]).ok();
}

/// The handle that libcontainer clones.
#[derive(Debug, Clone)]
pub(crate) struct CrispExecutor(pub(crate) Rc<LaunchStages>);

impl Executor for CrispExecutor {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        self.0.pre_create().map_err(|message| {
            send(&self.0.report, &Report::Failed(message.clone()), &[]);
            ExecutorValidationError::ArgValidationError(message)
        })
    }

    /// Does nothing: the program gets its environment by execve.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let stages = &self.0;
        // libcontainer must not continue: the filter may be loaded and the rights are dropped.
        match &stages.settings.shared {
            None => write_error(&stages.started, &stages.post_start()),
            Some(shared) => match shared.fork(stages, stages.slave.take()) {
                Ok(()) => sys::fork::exit_now(0),
                Err(message) => stages.report_failure(&message),
            },
        }
        sys::fork::exit_now(NOT_RUN)
    }
}
