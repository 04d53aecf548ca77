//! crisp's two stages, as libcontainer calls them: from inside the container's first process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use oci_spec::runtime::{Hook, Linux, LinuxNamespaceType, Process};
use sys::fork::SingleThread;

use crate::io::console;
use crate::io::console::Console;
use crate::launch::report::{Report, WORDS_MAX, send, truncate};
use crate::process::execve::{exec_as, exec_program, join_keyring};
use crate::process::hook::{HookExec, State};
use crate::process::{hook, lsm_label};
use crate::rootfs::masked_paths::{NullDevice, apply};
use crate::rootfs::mount_propagation::PropagationGuard;
use crate::rootfs::mount_target::find_or_create;
use crate::rootfs::mounts::{PreparedMount, attach_in_root, seal_root};

/// All that the stages need, carried into the container by fork.
#[derive(Debug)]
pub(crate) struct LaunchStages {
    staged: Vec<PreparedMount>,
    process: Process,
    linux: Linux,
    readonly_root: bool,
    /// Whether a volume tells the host of what is mounted in it.
    shares: bool,
    filter: Option<Vec<u8>>,
    tty: bool,
    report: OwnedFd,
    started: OwnedFd,
    /// The slave side of the terminal, between the two stages.
    slave: RefCell<Option<OwnedFd>>,
    hooks: HookPlan,
}

/// What hooks change about the stages.
#[derive(Debug)]
pub(crate) struct HookPlan {
    /// The mounts are made by the keeper of the gate, before the root is entered.
    pub(crate) gated: bool,
    pub(crate) start: Option<StartHooks>,
}

/// Hooks that run in the container between the start signal and its program.
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
        process: Process,
        spec: &Spec,
        filter: Option<Vec<u8>>,
        tty: bool,
        [report, started]: [OwnedFd; 2],
        hooks: HookPlan,
    ) -> Rc<Self> {
        let slave = RefCell::new(None);
        let linux = spec.linux().clone().unwrap_or_default();
        let readonly_root = spec.root().as_ref().is_some_and(|root| root.readonly() == Some(true));
        let shares = spec.mounts().iter().flatten().any(PropagationGuard::has);
        Rc::new(Self { staged, process, linux, readonly_root, shares, filter, tty, report, started, slave, hooks })
    }

    /// Makes the mounts in the root of this process, for a container whose first process is not there yet.
    pub(crate) fn apply_mounts_early(&self) -> Result<(), String> {
        let mut propagation = PropagationGuard::new(self.shares);
        attach_in_root(&self.staged, &mut propagation).map_err(|e| e.to_string())?;
        rejoin(propagation)
    }

    /// Tells the shim why there will be no container.
    pub(crate) fn report_failure(&self, words: &str) {
        send(&self.report, &Report::Failed(truncate(words.to_owned())), &[]);
    }

    /// After libcontainer has entered the root, before the container counts as created.
    fn pre_create(&self) -> Result<(), String> {
        if let Some(warning) = join_keyring(&self.process).map_err(|e| e.to_string())? {
            send(&self.report, &Report::Warning(warning.to_owned()), &[]);
        }
        let mut propagation = PropagationGuard::new(self.shares);
        if self.tty {
            // Before the volumes: one of them could lie over the places where terminals are.
            let uid = self.process.user().uid();
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
        if !self.hooks.gated {
            attach_in_root(&self.staged, &mut propagation).map_err(|e| e.to_string())?;
        }
        let cwd = self.process.cwd();
        drop(find_or_create(cwd, true).map_err(|e| format!("working directory {}: {e}", cwd.display()))?);
        let paths = |paths: &'_ Option<Vec<String>>| paths.clone().unwrap_or_default();
        let (masked, readonly) = (paths(self.linux.masked_paths()), paths(self.linux.readonly_paths()));
        apply(&masked, &readonly, &null, label, &mut propagation).map_err(|e| e.to_string())?;
        rejoin(propagation)?;
        if self.readonly_root { seal_root().map_err(|e| e.to_string()) } else { Ok(()) }
    }

    /// Whether its message queues are the pod's, and not the host's.
    fn has_queues(&self) -> bool {
        self.linux.namespaces().iter().flatten().any(|namespace| namespace.typ() == LinuxNamespaceType::Ipc)
    }

    /// After the start signal. Returns the reason why the program does not run.
    fn post_start(&self) -> String {
        if let Some(start) = &self.hooks.start
            && let Err(error) = self.run_hooks(start)
        {
            return error.to_string();
        }
        if let Some(slave) = &*self.slave.borrow()
            && let Err(error) = console::take(slave)
        {
            return format!("taking the terminal: {error}");
        }
        let args = self.process.args().as_deref().unwrap_or_default();
        match exec_program(&self.process, args, self.filter.as_deref(), Some(&self.started)) {
            Ok(never) => match never {},
            Err(error) => error.to_string(),
        }
    }
}

fn rejoin(propagation: PropagationGuard) -> Result<(), String> {
    propagation.rejoin_peer_group().map_err(|e| format!("telling the host of mounts in volumes again: {e}"))
}

impl LaunchStages {
    fn run_hooks(&self, start: &StartHooks) -> Result<(), hook::HookError> {
        let StartHooks { alone, hooks, id, bundle, version, annotations } = start;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let state = State { oci_version: version, id, status: "created", pid, bundle, annotations };
        hook::run_all(*alone, "startContainer", Some(hooks), &state, self)
    }
}

/// A hook in the container is a program of the container's, with what its own program may do and no more: the path is
/// looked up among files that an image brought.
impl HookExec for LaunchStages {
    fn execute(&self, hook: &Hook) -> String {
        let mut process = self.process.clone();
        if let Some(env) = hook.env() {
            process.set_env(Some(env.clone()));
        }
        let program = hook.path().display().to_string();
        match exec_as(&process, &program, &hook::arguments(hook), self.filter.as_deref()) {
            Ok(never) => match never {},
            Err(error) => error.to_string(),
        }
    }
}

/// The exit status of a process that did not become a program.
pub(crate) const NOT_RUN: i32 = 127;

/// Tells the shim why no program runs. One write that fits into an empty pipe: it neither blocks nor comes in parts.
pub(crate) fn write_error(started: &OwnedFd, words: &str) {
    rustix::io::write(started, &words.as_bytes()[..words.len().min(WORDS_MAX)]).ok();
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

    /// The environment is given to the program directly.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        write_error(&self.0.started, &self.0.post_start());
        // Back in libcontainer nothing good can follow: the filter may be loaded and the rights are gone.
        sys::fork::exit_now(NOT_RUN)
    }
}
