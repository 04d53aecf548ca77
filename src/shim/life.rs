//! What happens to containers by itself: they come to be, print, and end.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use link::{Answer, Event, FailureKind};
use model::{ContainerId, Exit, Phase, Trouble};
use rustix::process::WaitOptions;

use crate::container::{Launching, State};
use crate::log::{Lost, Stream};
use crate::poll::Source;
use crate::report::{Report, hear};
use crate::shim::{Shim, failure};
use crate::stdio::Flow;
use crate::verbs::to_pid;

/// The exit code of a container whose program could not be executed, as the peers report it.
const START_FAILED: i32 = 128;

impl Shim {
    /// Reads what a launch has to say so far.
    pub(crate) fn hear_launch(&mut self, id: &ContainerId) {
        loop {
            let Some(container) = self.containers.get_mut(id) else { return };
            let State::Launching(launching) = &mut container.state else { return };
            match hear(&launching.report, &mut self.buffer) {
                Ok(Some((Report::Trace(words), _))) => launching.trace.push(words),
                Ok(Some((Report::Console, mut fds))) => {
                    let max = usize::try_from(container.launch.log_line_max).unwrap_or(usize::MAX);
                    if let Some(master) = fds.pop()
                        && let Err(error) = container.streams.set_console(master, max)
                    {
                        launching.failure = Some(format!("taking the terminal: {error}"));
                    }
                }
                Ok(Some((Report::Failed(words), _))) => {
                    launching.failure.get_or_insert(words);
                }
                Ok(Some((Report::Created { pid, warnings }, _))) => return self.launched(id, pid, warnings),
                Err(nothing) if nothing.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => return self.launch_failed(id),
            }
        }
    }

    fn launched(&mut self, id: &ContainerId, pid: u32, warnings: Vec<String>) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some(pid) = NonZeroU32::new(pid) else { return };
        let placeholder = State::Settled(Phase::Created { pid });
        let State::Launching(Launching { caller, report, started, .. }) =
            std::mem::replace(&mut container.state, placeholder)
        else {
            return;
        };
        self.poller.forget(&report, &Source::Report(id.clone()));
        container.state = State::Created { pid, started };
        self.watch_output(id);
        self.answer(caller, Ok(Answer::Created { pid: pid.get(), warnings }));
        if let Some(code) = to_pid(pid).and_then(|pid| self.unclaimed.remove(&pid.as_raw())) {
            self.ended(id, code);
        }
        self.drop_unclaimed();
    }

    fn launch_failed(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.remove(id) else { return };
        container.kill_rest();
        if let State::Launching(Launching { caller, report, trace, failure: told, .. }) = container.state {
            self.poller.forget(&report, &Source::Report(id.clone()));
            let mut message = told.unwrap_or_else(|| "the launch ended without a word".to_owned());
            // libcontainer logs each error once on every level it passes.
            let new = trace.into_iter().filter(|words| !message.contains(words.as_str())).collect::<Vec<_>>();
            if !new.is_empty() {
                message = format!("{message} ({})", new.join("; "));
            }
            self.answer(caller, Err(failure(FailureKind::Refused, message)));
        }
        self.drop_unclaimed();
    }

    fn drop_unclaimed(&mut self) {
        if !self.containers.values().any(|c| matches!(c.state, State::Launching(_))) {
            self.unclaimed = std::collections::HashMap::new();
        }
    }

    /// The program runs, or will not.
    pub(crate) fn hear_start(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let State::Starting { pid, .. } = container.state else { return };
        let placeholder = State::Settled(Phase::Created { pid });
        let State::Starting { started, caller, .. } = std::mem::replace(&mut container.state, placeholder) else {
            return;
        };
        self.poller.forget(&started, &Source::Started(id.clone()));
        let words = read_all(started);
        if words.is_empty() {
            container.state = State::Settled(Phase::Running { pid, started: SystemTime::now() });
            self.answer(caller, Ok(Answer::Done));
        } else {
            // It ends by itself now; whatever its own exit code, the reason is this.
            let trouble = Some(Trouble::Start(words.clone()));
            let exit = Exit { code: START_FAILED, at: SystemTime::now(), oom: false, trouble };
            self.settle(id, exit);
            self.answer(caller, Err(failure(FailureKind::Program, words)));
        }
    }

    pub(crate) fn hear_exec(&mut self, number: u64) {
        let Some(exec) = self.execs.get_mut(&number) else { return };
        let Some((started, caller)) = exec.starting.take() else { return };
        self.poller.forget(&started, &Source::ExecStarted(number));
        let words = read_all(started);
        let ended = exec.ended;
        if words.is_empty() {
            let pid = u32::try_from(exec.pid.as_raw()).unwrap_or(0);
            self.answer(caller, Ok(Answer::ExecStarted { pid }));
            if let Some(code) = ended {
                self.exec_ended(number, code);
            }
        } else {
            if ended.is_some() {
                self.execs.remove(&number);
            }
            self.answer(caller, Err(failure(FailureKind::Program, words)));
        }
    }

    /// Moves some output to the log.
    pub(crate) fn pump(&mut self, id: &ContainerId, stream: Stream) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let watched = container.streams.fd(stream).and_then(|fd| fd.try_clone_to_owned().ok());
        let (flow, lost) = container.streams.pump(stream, &mut self.buffer);
        if let (Flow::Ended, Some(fd)) = (flow, watched) {
            self.poller.forget(fd, &Source::Output(id.clone(), stream));
        }
        self.tell_lost(id, lost);
    }

    fn tell_lost(&mut self, id: &ContainerId, lost: impl IntoIterator<Item = Lost>) {
        for Lost { bytes, error } in lost {
            self.tell(Event::LogLost { container: id.clone(), bytes, error: error.to_string() });
        }
    }

    /// Collects ended children, after the launches have said what they had to say.
    pub(crate) fn reap(&mut self) {
        let launching: Vec<ContainerId> =
            self.containers.iter().filter(|(_, c)| matches!(c.state, State::Launching(_))).map(|(i, _)| i.clone()).collect();
        for id in &launching {
            self.hear_launch(id);
        }
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let code = status
                .exit_status()
                .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
                .unwrap_or(255);
            self.child_ended(pid.as_raw_nonzero().get(), code);
        }
    }

    fn child_ended(&mut self, pid: i32, code: i32) {
        let is_init = |c: &crate::container::Container| c.pid().and_then(to_pid).is_some_and(|p| p.as_raw() == pid);
        if let Some(id) = self.containers.iter().find(|(_, c)| is_init(c)).map(|(id, _)| id.clone()) {
            return self.ended(&id, code);
        }
        if let Some(number) = self.execs.iter().find(|(_, e)| e.pid.as_raw() == pid).map(|(n, _)| *n) {
            return self.exec_ended(number, code);
        }
        let launching = |c: &crate::container::Container| matches!(&c.state, State::Launching(l) if l.launcher.as_raw() == pid);
        if let Some(id) = self.containers.iter().find(|(_, c)| launching(c)).map(|(id, _)| id.clone()) {
            // It told nothing more, or hear_launch would have settled it.
            return self.launch_failed(&id);
        }
        if self.containers.values().any(|c| matches!(c.state, State::Launching(_))) {
            self.unclaimed.insert(pid, code);
        }
    }

    /// A container's first process ended.
    fn ended(&mut self, id: &ContainerId, code: i32) {
        if self.containers.get(id).is_some_and(|c| matches!(c.state, State::Starting { .. })) {
            // Both may be true at once: it ran its program, and ended. The first comes first.
            self.hear_start(id);
        }
        let Some(container) = self.containers.get(id) else { return };
        if matches!(container.state, State::Settled(Phase::Exited { .. })) {
            return;
        }
        let oom = container.oom_kills() > 0;
        self.settle(id, Exit { code, at: SystemTime::now(), oom, trouble: None });
    }

    /// Brings a container to its end: nothing of it runs, all it printed is in the log, and the daemon knows.
    fn settle(&mut self, id: &ContainerId, exit: Exit) {
        let Some(container) = self.containers.get_mut(id) else { return };
        container.kill_rest();
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(fd) = container.streams.fd(stream) {
                self.poller.forget(fd, &Source::Output(id.clone(), stream));
            }
        }
        let lost = container.streams.finish(&mut self.buffer);
        let phase = container.phase().unwrap_or(Phase::Unknown { left: Vec::new() });
        container.state = State::Settled(phase.exit(exit.clone()));
        if let Err(error) = container.write_exit(&exit) {
            eprintln!("writing the exit of {id}: {error}");
        }
        self.tell_lost(id, lost);
        self.tell(Event::Exited { container: id.clone(), exit });
    }

    fn exec_ended(&mut self, number: u64, code: i32) {
        let Some(exec) = self.execs.get_mut(&number) else { return };
        if exec.starting.is_some() {
            exec.ended = Some(code);
            return self.hear_exec(number);
        }
        self.execs.remove(&number);
        self.tell(Event::ExecExited { exec: number, code });
    }
}

/// What is in a pipe whose other end says little, and then closes.
fn read_all(pipe: OwnedFd) -> String {
    std::io::read_to_string(std::fs::File::from(pipe)).unwrap_or_else(|e| e.to_string())
}
