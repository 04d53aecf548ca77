//! Hooks that run once a container's program does: its start is answered when they have ended.

use std::io::{self, Write as _};
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use launcher::launch::report::{WORDS_MAX, truncate};
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

/// Hooks under way.
#[derive(Debug)]
pub(crate) struct PoststartHooks {
    caller: Caller,
    runner: Pid,
    /// One byte, and words where that says that they are the reason why not.
    outcome: OwnedFd,
}

const WELL: u8 = b'+';
const BADLY: u8 = b'-';

impl Shim {
    /// Answers a start, at once or when the hooks have run.
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

    /// The hooks have ended.
    pub(crate) fn on_poststart(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some(PoststartHooks { caller, runner: _, outcome }) = container.poststart.take() else { return };
        self.poller.forget(&outcome, &Source::Poststart(id.clone()));
        let ended = matches!(container.state, Stand::Settled(ContainerState::Exited { .. }));
        let mut words = [0; WORDS_MAX + 1];
        let n = rustix::io::read(&outcome, &mut words).unwrap_or(0);
        let words = match words[..n].split_first() {
            Some((&WELL, _)) => return self.reply(caller, Ok(Response::Done)),
            Some((_, words)) => String::from_utf8_lossy(words).into_owned(),
            None => "poststart hooks: ended without a word".to_owned(),
        };
        if ended {
            // As it ended by itself, it did so for its own reason.
            self.reply(caller, Err(shim_error(ShimErrorKind::Program, words)));
        } else {
            self.start_failed(id, caller, words);
        }
    }

    /// Ends hooks that still run: nobody waits for them any more.
    pub(crate) fn remove_poststart(&mut self, id: &ContainerId) {
        let under_way = self.containers.get_mut(id).and_then(|container| container.poststart.take());
        if let Some(PoststartHooks { caller, runner, outcome }) = under_way {
            self.poller.forget(&outcome, &Source::Poststart(id.clone()));
            // The hook it waits for ends with it.
            sys::signal::send(runner.as_raw(), 9).ok();
            self.reply(caller, Err(removed_meanwhile()));
        }
    }
}

/// Starts a child that runs the hooks one after the other.
fn begin(id: &ContainerId, dir: &Path, pid: NonZeroU32, caller: Caller) -> io::Result<PoststartHooks> {
    let alone = SingleThread::check()?;
    let (outcome, theirs) = io::pipe()?;
    rustix::io::ioctl_fionbio(&outcome, true)?;
    let runner = sys::fork::fork(alone, || {
        let ran = sys::fork::close_all_but(&[theirs.as_fd()]).map_err(|e| e.to_string());
        let ran = ran.and_then(|()| run(alone, id, dir, pid));
        let said = match ran {
            Ok(()) => vec![WELL],
            Err(words) => [&[BADLY], short_bytes(words).as_slice()].concat(),
        };
        (&theirs).write_all(&said).map_or(1, |()| 0)
    })?;
    Ok(PoststartHooks { caller, runner, outcome: outcome.into() })
}

/// One write that fits into an empty pipe, and into the buffer of who reads it.
fn short_bytes(words: String) -> Vec<u8> {
    let mut bytes = truncate(words).into_bytes();
    bytes.truncate(WORDS_MAX);
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
