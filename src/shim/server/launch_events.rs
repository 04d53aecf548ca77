//! The progress of launches, starts and execs: reports of the launcher, and pipes that close when a program runs.

use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use model::{AbnormalExit, ContainerId, ContainerState, Exit};
use shim_protocol::{LaunchWarning, Response, ShimError, ShimErrorKind};

use crate::server::container::{Caller, Container, Launching, State};
use crate::server::poller::Source;
use crate::server::requests::{ended_meanwhile, to_pid};
use crate::server::{ExecKey, Shim, shim_error};
use launcher::launch::report::{Report, WORDS_MAX, receive, truncate};

use super::reaper::START_FAILED;

impl Shim {
    /// Reads what a launch has to say so far.
    pub(crate) fn on_launch_report(&mut self, id: &ContainerId) {
        loop {
            let Some(container) = self.containers.get_mut(id) else { return };
            let State::Launching(launching) = &mut container.state else { return };
            match receive(&launching.report, &mut self.buffer) {
                Ok(Some((Report::Trace(words), _))) => launching.trace.push(words),
                Ok(Some((Report::Warning(words), _))) => launching.warnings.push(words),
                Ok(Some((Report::Console, mut fds))) => {
                    let max = usize::try_from(container.launch.log_line_max).unwrap_or(usize::MAX);
                    if let (Some(slave), Some(master)) = (fds.pop(), fds.pop())
                        && let Err(error) = container.streams.set_console(master, slave, max)
                    {
                        launching.failure = Some((ShimErrorKind::Refused, format!("taking the terminal: {error}")));
                    }
                }
                Ok(Some((Report::Failed(words), _))) => {
                    launching.failure.get_or_insert((ShimErrorKind::Refused, words));
                }
                Ok(Some((Report::HookGateFailed(reason), _))) => {
                    launching.failure.get_or_insert((ShimErrorKind::Refused, reason));
                    launching.hook_gate_failed = true;
                }
                Ok(Some((Report::Refused { kind, words }, _))) => {
                    launching.failure.get_or_insert((kind, words));
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
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some(pid) = NonZeroU32::new(pid) else { return };
        let placeholder = State::Settled(ContainerState::Created { pid });
        let State::Launching(Launching { caller, report, started, go, warnings: told, .. }) =
            std::mem::replace(&mut container.state, placeholder)
        else {
            return;
        };
        self.poller.forget(&report, &Source::Report(id.clone()));
        container.state = State::Created { pid, started, go: waits.then_some(go) };
        self.watch_output(id);
        let warnings = told.into_iter().chain(warnings).collect();
        self.reply(caller, Ok(Response::created(pid.get(), warnings)));
        if let Some(code) = to_pid(pid).and_then(|pid| self.unclaimed.remove(&pid.as_raw())) {
            self.ended(id, code);
        }
        self.drop_unclaimed();
    }

    pub(super) fn launch_failed(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.remove(id) else { return };
        container.kill_rest();
        if let State::Launching(Launching { caller, report, started, mut trace, failure, hook_gate_failed, .. }) =
            container.state
        {
            if hook_gate_failed {
                trace.clear();
            }
            // A first process that has its filter already has nothing else to tell it by.
            let told = Some(why_not(&started)).filter(|words| !words.is_empty());
            let told = told.map(|words| (ShimErrorKind::Refused, words)).or(failure);
            self.poller.forget(&report, &Source::Report(id.clone()));
            let (kind, told) = match told {
                Some((kind, words)) => (kind, Some(words)),
                None => (ShimErrorKind::Refused, None),
            };
            self.reply(caller, Err(shim_error(kind, truncate(launch_failure(told, trace)))));
        }
        self.drop_unclaimed();
    }

    fn drop_unclaimed(&mut self) {
        if !self.containers.values().any(|c| matches!(c.state, State::Launching(_))) {
            self.unclaimed = std::collections::HashMap::new();
        }
    }

    /// The program runs, or will not.
    pub(crate) fn on_start_pipe(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let State::Starting { pid, .. } = container.state else { return };
        let placeholder = State::Settled(ContainerState::Created { pid });
        let State::Starting { started, caller, .. } = std::mem::replace(&mut container.state, placeholder) else {
            return;
        };
        self.poller.forget(&started, &Source::Started(id.clone()));
        let words = why_not(&started);
        if words.is_empty() {
            container.state = State::Settled(ContainerState::Running { pid, started: SystemTime::now() });
            self.after_start(id, pid, caller);
        } else {
            // It ends by itself now; whatever its own exit code, the reason is this.
            self.start_failed(id, caller, words);
        }
    }

    /// Ends a container that could not start, or whose start came to nothing.
    pub(crate) fn start_failed(&mut self, id: &ContainerId, caller: Caller, words: String) {
        let trouble = Some(AbnormalExit::Start(words.clone()));
        self.finish_exit(id, Exit { code: START_FAILED, at: SystemTime::now(), oom: false, abnormal: trouble });
        self.reply(caller, Err(shim_error(ShimErrorKind::Program, words)));
    }

    pub(crate) fn on_exec_pipe(&mut self, key: ExecKey) {
        let Some(exec) = self.execs.get_mut(&key) else { return };
        let Some((started, caller)) = exec.starting.take() else { return };
        self.poller.forget(&started, &Source::ExecStarted(key));
        let words = why_not(&started);
        let (program, ended) = (exec.program.get(), exec.ended);
        if let Some(pid) = program.filter(|_| words.is_empty()) {
            let pid = u32::try_from(pid.as_raw()).unwrap_or(0);
            self.reply(caller, Ok(Response::ExecStarted { pid }));
            if let Some(code) = ended {
                self.exec_ended(key, code);
            }
        } else {
            let words =
                if words.is_empty() { "the process was killed before its program ran".to_owned() } else { words };
            let container = exec.container.clone();
            self.execs.remove(&key);
            let failure = self.exec_refused(&container, words);
            self.reply(caller, Err(failure));
        }
    }

    /// Why a command does not run: its container has ended, or `words`.
    fn exec_refused(&self, id: &ContainerId, words: String) -> ShimError {
        let init = self.containers.get(id).and_then(Container::pid).and_then(to_pid);
        let ended = match init {
            Some(init) => ended_meanwhile(id, init),
            None => Some(shim_error(ShimErrorKind::State, format!("container {id} is not running"))),
        };
        ended.unwrap_or_else(|| shim_error(ShimErrorKind::Program, words))
    }
}

/// Why a launch failed: what a stage said, and of libcontainer's events those that say something else. libcontainer logs
/// each error once on every level that it passes, in words of its own around those of the stage.
fn launch_failure(told: Option<String>, trace: Vec<String>) -> String {
    let message = told.unwrap_or_else(|| "the launch ended without a word".to_owned());
    let mut new: Vec<String> = Vec::new();
    for words in trace {
        let repeats = |known: &String| words.contains(known.as_str()) || known.contains(words.as_str());
        if !repeats(&message) && !new.iter().any(repeats) {
            new.push(words);
        }
    }
    if new.is_empty() { message } else { format!("{message} ({})", new.join("; ")) }
}

/// Why a program does not run; nothing when it does. Never waits: the words come in one write, before the pipe closes.
fn why_not(started: &OwnedFd) -> String {
    let mut words = [0; WORDS_MAX];
    let n = rustix::io::read(started, &mut words).unwrap_or(0);
    String::from_utf8_lossy(&words[..n]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_launch_gives_each_reason_once() {
        let failure = |told: Option<&str>, trace: &[&str]| {
            launch_failure(told.map(str::to_owned), trace.iter().map(|words| (*words).to_owned()).collect())
        };
        let told = "mount at /dev: invalid argument";
        let repeated = ["failed to validate err=mount at /dev: invalid argument", "mount at /dev: invalid argument"];
        assert_eq!(failure(Some(told), &repeated), told);
        assert_eq!(
            failure(Some(told), &["invalid argument", "no memory", "failed: no memory"]),
            format!("{told} (no memory)")
        );
        assert_eq!(failure(None, &["no memory"]), "the launch ended without a word (no memory)");
    }
}
