//! Runs poststart hooks after a container's program has started: StartContainer is answered when
//! they have exited.

use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use launcher::launch::report::{MESSAGE_MAX, truncate};
use launcher::process::hook;
use launcher::process::hook::{InHost, State};
use model::{ContainerId, ContainerState};
use nix::unistd::Pid;
use oci_spec::runtime::Spec;
use rustix::process::Signal;
use shim_protocol::{Response, ShimErrorKind};
use sys::fork::SingleThread;

use crate::server::container::{Caller, State as Stand};
use crate::server::poller::Source;
use crate::server::requests::removed_meanwhile;
use crate::server::{Shim, shim_error};

/// Hooks in progress.
#[derive(Debug)]
pub(crate) struct PoststartHooks {
    caller: Caller,
    runner: Pid,
    /// One byte, followed by the error message if a hook failed.
    outcome: OwnedFd,
}

const WELL: u8 = b'+';
const BADLY: u8 = b'-';

impl Shim {
    /// Answers a start, at once or after the hooks.
    pub(crate) fn after_start(&mut self, id: &ContainerId, pid: NonZeroU32, caller: Caller) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if !container.launch.poststart {
            return self.reply(caller, Ok(Response::Done));
        }
        match begin(id, &container.dir, pid, caller) {
            Ok(begun) => {
                self.poller.watch(&begun.outcome, Source::Poststart(id.clone()));
                container.poststart = Some(begun);
            }
            Err(error) => self.start_failed(id, caller, format!("poststart hooks: {error}")),
        }
    }

    /// Handles the end of the hooks.
    pub(crate) fn on_poststart(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some(PoststartHooks { caller, runner: _, outcome }) = container.poststart.take() else { return };
        self.poller.forget(&outcome, &Source::Poststart(id.clone()));
        let ended = matches!(container.state, Stand::Settled(ContainerState::Exited { .. }));
        let mut message = [0; MESSAGE_MAX + 1];
        let n = rustix::io::read(&outcome, &mut message).unwrap_or(0);
        let message = match message[..n].split_first() {
            Some((&WELL, _)) => return self.reply(caller, Ok(Response::Done)),
            Some((_, message)) => String::from_utf8_lossy(message).into_owned(),
            None => "poststart hooks: the process that runs them exited without a message".to_owned(),
        };
        if ended {
            // The program exited by itself, so its exit code is kept.
            self.reply(caller, Err(shim_error(ShimErrorKind::Program, message)));
        } else {
            self.start_failed(id, caller, message);
        }
    }

    /// Kills hooks in progress: the container is removed.
    pub(crate) fn remove_poststart(&mut self, id: &ContainerId) {
        let under_way = self.containers.get_mut(id).and_then(|container| container.poststart.take());
        if let Some(PoststartHooks { caller, runner, outcome }) = under_way {
            self.poller.forget(&outcome, &Source::Poststart(id.clone()));
            // The hook that it waits for is killed with it.
            sys::signal::send(runner.as_raw(), 9).ok();
            self.reply(caller, Err(removed_meanwhile()));
        }
    }
}

/// Starts a child that runs the hooks in order.
fn begin(id: &ContainerId, dir: &Path, pid: NonZeroU32, caller: Caller) -> io::Result<PoststartHooks> {
    let alone = SingleThread::check()?;
    let (outcome, theirs) = io::pipe()?;
    rustix::io::ioctl_fionbio(&outcome, true)?;
    let runner = sys::fork::fork(alone, || {
        let ran = sys::fork::close_all_but(&[theirs.as_fd()]).map_err(|e| e.to_string());
        let ran = ran.and_then(|()| run(alone, id, dir, pid));
        let said = match ran {
            Ok(()) => vec![WELL],
            Err(message) => [&[BADLY], short_bytes(message).as_slice()].concat(),
        };
        (&theirs).write_all(&said).map_or(1, |()| 0)
    })?;
    Ok(PoststartHooks { caller, runner, outcome: outcome.into() })
}

/// Shortens the message to one write that fits into an empty pipe and into the reader's buffer.
fn short_bytes(message: String) -> Vec<u8> {
    let mut bytes = truncate(message).into_bytes();
    bytes.truncate(MESSAGE_MAX);
    bytes
}

fn run(alone: SingleThread, id: &ContainerId, dir: &Path, pid: NonZeroU32) -> Result<(), String> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| e.to_string())?;
    hook::reset_process();
    let spec: Spec = launcher::launch::read(dir, "config.json").map_err(|e| e.to_string())?;
    let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.poststart().as_ref());
    let none = std::collections::HashMap::new();
    let state = State {
        oci_version: spec.version(),
        id: id.as_str(),
        status: "running",
        pid: i32::try_from(pid.get()).map_err(|e| e.to_string())?,
        bundle: dir,
        annotations: spec.annotations().as_ref().unwrap_or(&none),
    };
    hook::run_all(alone, "poststart", hooks, &state, &InHost).map_err(|e| e.to_string())
}
