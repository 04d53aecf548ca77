//! The first process of a container that shares a PID namespace: created outside of the namespace,
//! forked into it last.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use nix::sched::{CloneFlags, setns};
use nix::unistd::Pid;
use sys::fork::SingleThread;
use sys::sibling::{ConfinedCall, PreparedPid, SiblingPid};

use crate::io::console;
use crate::launch::libcontainer_executor::{LaunchStages, NOT_RUN, write_error};
use crate::process::execve::{drop_rights, load_filter};

/// The input of the outer process for forking the inner one.
#[derive(Debug)]
pub(crate) struct SharedStage {
    namespace: OwnedFd,
    /// Memory shared with the launcher, for the pid.
    forked: SiblingPid,
    /// A byte is written here when the container is started; it closes when the shim exits.
    go: OwnedFd,
    alone: SingleThread,
}

impl SharedStage {
    pub(crate) fn new(namespace: &OwnedFd, go: OwnedFd) -> io::Result<Self> {
        let (namespace, forked) = (namespace.try_clone()?, SiblingPid::new()?);
        Ok(Self { namespace, forked, go, alone: SingleThread::check()? })
    }

    /// Returns the system calls that are made after the filter is loaded.
    pub(crate) fn calls(tty: bool) -> &'static [ConfinedCall] {
        const ALL: [ConfinedCall; 4] =
            [ConfinedCall::Fork, ConfinedCall::NewSession, ConfinedCall::Read, ConfinedCall::TakeTerminal];
        if tty { &ALL } else { &ALL[..3] }
    }

    pub(crate) fn forked(&self) -> Option<Pid> {
        self.forked.get()
    }

    /// In the outer process: forks the container's first process, which waits for its start.
    /// Returns the error as text.
    pub(crate) fn fork(&self, stages: &LaunchStages, slave: Option<OwnedFd>) -> Result<(), String> {
        let step = |step: &'static str| move |error: io::Error| format!("{step}: {error}");
        if let Some(slave) = &slave {
            console::connect(slave).map_err(step("connecting the terminal"))?;
        }
        let started = stages.started();
        let mut keep = vec![self.namespace.as_fd(), self.go.as_fd(), started.as_fd(), stages.report().as_fd()];
        keep.extend(stages.proc().host().map(|proc| proc.as_fd()));
        drop(slave);
        sys::fork::close_all_but(&keep).map_err(step("closing descriptors"))?;
        let pid = PreparedPid::new(&self.forked).map_err(step("keeping the page for the pid"))?;
        setns(&self.namespace, CloneFlags::CLONE_NEWPID)
            .map_err(io::Error::from)
            .map_err(step("entering the shared PID namespace"))?;
        let rights = drop_rights(stages.process(), stages.proc()).map_err(|error| error.to_string())?;
        // From here on the socket to the shim is closed, since the inner process must not have it.
        sys::fork::close_all_but(&[self.go.as_fd(), started.as_fd()]).map_err(step("closing descriptors"))?;
        let forked =
            load_filter(stages.process(), rights, stages.filter()).map_err(|error| error.to_string()).and_then(|()| {
                let child = || self.wait(stages);
                let token = stages.filter().token;
                sys::sibling::fork_sibling(self.alone, token, &pid, child).map_err(step("forking in the container"))
            });
        if let Err(message) = forked {
            write_error(started, &message);
            sys::fork::exit_now(NOT_RUN)
        }
        Ok(())
    }

    /// In the inner process: starts a session, before the container counts as created, and waits.
    fn wait(&self, stages: &LaunchStages) -> i32 {
        let token = stages.filter().token;
        let session = sys::sibling::new_session(token);
        let settled =
            session.and_then(|()| if stages.has_terminal() { sys::sibling::take_terminal(token) } else { Ok(()) });
        let go = match settled {
            Ok(()) => sys::sibling::wait_for_byte(self.go.as_fd(), token),
            Err(error) => Err(error),
        };
        let message = match go {
            Ok(true) => stages.run_program(),
            // The shim has exited.
            Ok(false) => return NOT_RUN,
            Err(error) => format!("waiting for the start: {error}"),
        };
        write_error(stages.started(), &message);
        NOT_RUN
    }
}
