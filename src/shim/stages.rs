//! crisp's two stages, as libcontainer calls them: from inside the container's first process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use oci_spec::runtime::Process;

use crate::become_program::become_program;
use crate::console::{self, Console};
use crate::report::{Report, WORDS_MAX, tell};
use crate::stage::{Staged, find_or_make, seal_root, settle};

/// All that the stages need, carried into the container by fork.
#[derive(Debug)]
pub(crate) struct Stages {
    staged: Vec<Staged>,
    process: Process,
    readonly_root: bool,
    filter: Option<Vec<u8>>,
    tty: bool,
    report: OwnedFd,
    started: OwnedFd,
    /// The slave side of the terminal, between the two stages.
    slave: RefCell<Option<OwnedFd>>,
}

impl Stages {
    pub(crate) fn new(
        staged: Vec<Staged>,
        process: Process,
        readonly_root: bool,
        filter: Option<Vec<u8>>,
        tty: bool,
        report: OwnedFd,
        started: OwnedFd,
    ) -> Rc<Self> {
        let slave = RefCell::new(None);
        Rc::new(Self { staged, process, readonly_root, filter, tty, report, started, slave })
    }

    /// After libcontainer has entered the root, before the container counts as created.
    fn before(&self) -> Result<(), String> {
        if self.tty {
            // Before the volumes: one of them could lie over the places where terminals are.
            let uid = self.process.user().uid();
            let Console { master, slave } = console::open(uid).map_err(|e| format!("opening a terminal: {e}"))?;
            tell(&self.report, &Report::Console, &[master.as_fd(), slave.as_fd()]);
            self.slave.replace(Some(slave));
        }
        settle(&self.staged).map_err(|e| e.to_string())?;
        let cwd = self.process.cwd();
        drop(find_or_make(cwd, true).map_err(|e| format!("working directory {}: {e}", cwd.display()))?);
        if self.readonly_root { seal_root().map_err(|e| e.to_string()) } else { Ok(()) }
    }

    /// After the start signal. Returns the reason why the program does not run.
    fn after(&self) -> String {
        if let Some(slave) = &*self.slave.borrow()
            && let Err(error) = console::take(slave)
        {
            return format!("taking the terminal: {error}");
        }
        let args = self.process.args().as_deref().unwrap_or_default();
        match become_program(&self.process, args, self.filter.as_deref()) {
            Ok(never) => match never {},
            Err(error) => error.to_string(),
        }
    }
}

/// The exit status of a process that did not become a program.
pub(crate) const NOT_RUN: i32 = 127;

/// Tells the shim why no program runs. One write that fits into an empty pipe: it neither blocks nor comes in parts.
pub(crate) fn say_why(started: &OwnedFd, words: &str) {
    rustix::io::write(started, &words.as_bytes()[..words.len().min(WORDS_MAX)]).ok();
}

/// The handle that libcontainer clones.
#[derive(Debug, Clone)]
pub(crate) struct Runs(pub(crate) Rc<Stages>);

impl Executor for Runs {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        self.0.before().map_err(|message| {
            tell(&self.0.report, &Report::Failed(message.clone()), &[]);
            ExecutorValidationError::ArgValidationError(message)
        })
    }

    /// The environment is given to the program directly.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        say_why(&self.0.started, &self.0.after());
        // Back in libcontainer nothing good can follow: the filter may be loaded and the rights are gone.
        sys::fork::exit_now(NOT_RUN)
    }
}
