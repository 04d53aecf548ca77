//! The progress of launches, starts and execs: reports of the launcher, and pipes that close when a
//! program runs.

use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use model::{AbnormalExit, ContainerId, ContainerState, Exit};
use shim_protocol::{LaunchWarning, Response, ShimError, ShimErrorKind};

use crate::server::container::{Caller, Container, Launching, Stage, State, Unstarted};
use crate::server::poller::Source;
use crate::server::requests::{ended_meanwhile, to_pid};
use crate::server::{ExecKey, Shim, shim_error};
use launcher::launch::report::{MESSAGE_MAX, Report, receive, truncate};

use super::reaper::START_FAILED;

impl Shim {
    /// Reads all reports of a launch that have arrived.
    pub(crate) fn on_launch_report(&mut self, id: &ContainerId) {
        loop {
            let Some(container) = self.containers.get_mut(id) else { return };
            let State::Unstarted(Unstarted { stage: Stage::Launching(launching), .. }) = &mut container.state else {
                return;
            };
            match receive(&launching.report, &mut self.buffer) {
                Ok(Some((Report::Trace(message), _))) => launching.trace.push(message),
                Ok(Some((Report::Warning(message), _))) => launching.warnings.push(message),
                Ok(Some((Report::Console, mut fds))) => {
                    let max = usize::try_from(container.launch.log_line_max).unwrap_or(usize::MAX);
                    if let (Some(slave), Some(master)) = (fds.pop(), fds.pop())
                        && let Err(error) = container.streams.set_console(master, slave, max)
                    {
                        launching.failure = Some((ShimErrorKind::Refused, format!("taking the terminal: {error}")));
                    }
                }
                Ok(Some((Report::Failed(message), _))) => {
                    launching.failure.get_or_insert((ShimErrorKind::Refused, message));
                }
                Ok(Some((Report::HookGateFailed(reason), _))) => {
                    launching.failure.get_or_insert((ShimErrorKind::Refused, reason));
                    launching.hook_gate_failed = true;
                }
                Ok(Some((Report::Refused { kind, message }, _))) => {
                    launching.failure.get_or_insert((kind, message));
                }
                Ok(Some((Report::Log, mut files))) => {
                    if let Some(file) = files.pop() {
                        container.streams.reopen(File::from(file));
                    }
                }
                Ok(Some((Report::Created { pid, warnings, waits }, _))) => {
                    return self.launched(id, pid, warnings, waits);
                }
                Err(nothing) if nothing.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => return self.launch_failed(id),
            }
        }
    }

    fn launched(&mut self, id: &ContainerId, pid: u32, warnings: Vec<LaunchWarning>, waits: bool) {
        let Some(pid) = NonZeroU32::new(pid) else { return };
        let Self { poller, containers, .. } = self;
        let Some(Container { state: State::Unstarted(Unstarted { go, stage, .. }), .. }) = containers.get_mut(id)
        else {
            return;
        };
        let Stage::Launching(Launching { caller, report, warnings: reported, .. }) = stage else { return };
        poller.forget(&*report, &Source::Report(id.clone()));
        let caller = *caller;
        let warnings = std::mem::take(reported).into_iter().chain(warnings).collect();
        *stage = Stage::Created { pid };
        if !waits {
            *go = None;
        }
        self.watch_output(id);
        self.reply(caller, Ok(Response::created(pid.get(), warnings)));
        if let Some(code) = to_pid(pid).and_then(|pid| self.unclaimed.remove(&pid.as_raw())) {
            self.ended(id, code);
        }
        self.drop_unclaimed();
    }

    pub(super) fn launch_failed(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.remove(id) else { return };
        container.kill_rest();
        if let State::Unstarted(Unstarted { started, stage: Stage::Launching(launching), .. }) = container.state {
            let Launching { caller, report, mut trace, failure, hook_gate_failed, .. } = launching;
            if hook_gate_failed {
                trace.clear();
            }
            // A first process that has loaded its filter can report through this pipe only.
            let failure = start_failure(&started).map(|reason| (ShimErrorKind::Refused, reason)).or(failure);
            self.poller.forget(&report, &Source::Report(id.clone()));
            let (kind, reason) = failure.unzip();
            let message = truncate(launch_failure(reason, trace));
            self.reply(caller, Err(shim_error(kind.unwrap_or(ShimErrorKind::Refused), message)));
        }
        self.drop_unclaimed();
    }

    fn drop_unclaimed(&mut self) {
        if !self.containers.values().any(|c| c.launching().is_some()) {
            self.unclaimed = std::collections::HashMap::new();
        }
    }

    /// Handles the end of the start pipe: the program runs, or failed to.
    pub(crate) fn on_start_pipe(&mut self, id: &ContainerId) {
        let Self { poller, containers, .. } = self;
        let Some(container) = containers.get_mut(id) else { return };
        let State::Unstarted(Unstarted { started, stage, .. }) = &container.state else { return };
        let Stage::Starting { pid, caller } = *stage else { return };
        poller.forget(started, &Source::Started(id.clone()));
        match start_failure(started) {
            None => {
                container.state = State::Settled(ContainerState::Running { pid, started: SystemTime::now() });
                self.after_start(id, pid, caller);
            }
            // The process exits now; this is the reason, whatever its exit code.
            Some(reason) => self.start_failed(id, caller, reason),
        }
    }

    /// Makes a container exited whose program could not be started.
    pub(crate) fn start_failed(&mut self, id: &ContainerId, caller: Caller, message: String) {
        let trouble = Some(AbnormalExit::Start(message.clone()));
        self.finish_exit(id, Exit { code: START_FAILED, at: SystemTime::now(), oom: false, abnormal: trouble });
        self.reply(caller, Err(shim_error(ShimErrorKind::Program, message)));
    }

    pub(crate) fn on_exec_pipe(&mut self, key: ExecKey) {
        let Some(exec) = self.execs.get_mut(&key) else { return };
        let Some((started, caller)) = exec.starting.take() else { return };
        self.poller.forget(&started, &Source::ExecStarted(key));
        let reason = match (start_failure(&started), exec.program.get()) {
            (None, Some(pid)) => {
                let (pid, ended) = (u32::try_from(pid.as_raw()).unwrap_or(0), exec.ended);
                self.reply(caller, Ok(Response::ExecStarted { pid }));
                if let Some(code) = ended {
                    self.exec_ended(key, code);
                }
                return;
            }
            (None, None) => "the process was killed before its program ran".to_owned(),
            (Some(reason), _) => reason,
        };
        let container = exec.container.clone();
        self.execs.remove(&key);
        let failure = self.exec_refused(&container, reason);
        self.reply(caller, Err(failure));
    }

    /// Returns the error of a failed exec: the container has exited, or `words`.
    fn exec_refused(&self, id: &ContainerId, message: String) -> ShimError {
        let init = self.containers.get(id).and_then(Container::pid).and_then(to_pid);
        let ended = match init {
            Some(init) => ended_meanwhile(id, init),
            None => Some(shim_error(ShimErrorKind::State, format!("container {id} is not running"))),
        };
        ended.unwrap_or_else(|| shim_error(ShimErrorKind::Program, message))
    }
}

/// Returns the reason of a failed launch: the message of crisp's stage, and those events of
/// libcontainer that add to it. libcontainer logs each error once per level, with the message of
/// the stage inside its own.
fn launch_failure(reason: Option<String>, trace: Vec<String>) -> String {
    let reason = reason.unwrap_or_else(|| "the launcher exited without a message".to_owned());
    let mut new: Vec<String> = Vec::new();
    for event in trace {
        let repeats = |known: &String| event.contains(known.as_str()) || known.contains(event.as_str());
        if !repeats(&reason) && !new.iter().any(repeats) {
            new.push(event);
        }
    }
    if new.is_empty() { reason } else { format!("{reason} ({})", new.join("; ")) }
}

/// Returns the reason why a program does not run; `None` if it does. Does not block: the reason is
/// written at once, before the pipe closes.
fn start_failure(started: &OwnedFd) -> Option<String> {
    let mut reason = [0; MESSAGE_MAX];
    let n = rustix::io::read(started, &mut reason).unwrap_or(0);
    (n > 0).then(|| String::from_utf8_lossy(&reason[..n]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_launch_gives_each_reason_once() {
        let failure = |reason: Option<&str>, trace: &[&str]| {
            launch_failure(reason.map(str::to_owned), trace.iter().map(|event| (*event).to_owned()).collect())
        };
        let reason = "mount at /dev: invalid argument";
        let repeated = ["failed to validate err=mount at /dev: invalid argument", "mount at /dev: invalid argument"];
        assert_eq!(failure(Some(reason), &repeated), reason);
        assert_eq!(
            failure(Some(reason), &["invalid argument", "no memory", "failed: no memory"]),
            format!("{reason} (no memory)")
        );
        assert_eq!(failure(None, &["no memory"]), "the launcher exited without a message (no memory)");
    }
}
