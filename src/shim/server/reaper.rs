//! What happens to containers by itself: they come to be, print, and end.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use model::{AbnormalExit, ContainerId, ContainerState, Exit};
use rustix::process::{WaitOptions, WaitStatus};
use shim_protocol::{Event, Response, ShimErrorKind};

use crate::server::container::{Caller, Launching, State};
use crate::server::poller::Source;
use crate::server::requests::to_pid;
use crate::server::{ExecKey, Shim, shim_error};
pub(crate) use launcher::io::cri_log::{DroppedBytes, Stream};
pub(crate) use launcher::io::stdio::Flow;
pub(crate) use launcher::launch::report::{Report, WORDS_MAX, receive, truncate};

/// The exit code of a container whose program could not be executed, as the peers report it.
const START_FAILED: i32 = 128;
/// How long killed processes may take to be collected before the shim goes on without them.
const REAP_WITHIN: Duration = Duration::from_secs(5);
/// How often at most a container's lost output is told.
const TELL_LOST_EVERY: Duration = Duration::from_secs(10);

impl Shim {
    /// Reads what a launch has to say so far.
    pub(crate) fn on_launch_report(&mut self, id: &ContainerId) {
        loop {
            let Some(container) = self.containers.get_mut(id) else { return };
            let State::Launching(launching) = &mut container.state else { return };
            match receive(&launching.report, &mut self.buffer) {
                Ok(Some((Report::Trace(words), _))) => launching.trace.push(words),
                Ok(Some((Report::Console, mut fds))) => {
                    let max = usize::try_from(container.launch.log_line_max).unwrap_or(usize::MAX);
                    if let (Some(slave), Some(master)) = (fds.pop(), fds.pop())
                        && let Err(error) = container.streams.set_console(master, slave, max)
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
        let placeholder = State::Settled(ContainerState::Created { pid });
        let State::Launching(Launching { caller, report, started, .. }) =
            std::mem::replace(&mut container.state, placeholder)
        else {
            return;
        };
        self.poller.forget(&report, &Source::Report(id.clone()));
        container.state = State::Created { pid, started };
        self.watch_output(id);
        self.reply(caller, Ok(Response::Created { pid: pid.get(), warnings }));
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
            self.reply(caller, Err(shim_error(ShimErrorKind::Refused, truncate(message))));
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
        let ended = exec.ended;
        if words.is_empty() {
            let pid = u32::try_from(exec.pid.as_raw()).unwrap_or(0);
            self.reply(caller, Ok(Response::ExecStarted { pid }));
            if let Some(code) = ended {
                self.exec_ended(key, code);
            }
        } else {
            self.execs.remove(&key);
            self.reply(caller, Err(shim_error(ShimErrorKind::Program, words)));
        }
    }

    /// Moves some output to the log.
    pub(crate) fn copy_output(&mut self, id: &ContainerId, stream: Stream) {
        let Self { poller, containers, buffer, .. } = self;
        let Some(container) = containers.get_mut(id) else { return };
        let (flow, lost) = container.streams.copy_output(stream, buffer);
        if flow == Flow::Ended
            && let Some(fd) = container.streams.fd(stream)
        {
            poller.forget(fd, &Source::Output(id.clone(), stream));
            container.streams.close(stream);
        }
        self.detach_slow(id);
        self.record_dropped(id, lost);
    }

    /// Sums up what is lost, and tells of it now and then: a full disk is not told of with every line.
    fn record_dropped(&mut self, id: &ContainerId, lost: impl IntoIterator<Item = DroppedBytes>) {
        let Some(container) = self.containers.get_mut(id) else { return };
        for DroppedBytes { bytes, error } in lost {
            container.lost.bytes += bytes;
            container.lost.error = truncate(error.to_string());
        }
        let quiet = container.lost.told.is_none_or(|told| told.elapsed() >= TELL_LOST_EVERY);
        if container.lost.bytes > 0 && quiet {
            self.report_dropped(id);
        }
    }

    fn report_dropped(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if container.lost.bytes > 0 {
            let bytes = std::mem::take(&mut container.lost.bytes);
            let error = container.lost.error.clone();
            container.lost.told = Some(Instant::now());
            self.broadcast(Event::LogLost { container: id.clone(), bytes, error });
        }
    }

    /// Collects ended children.
    pub(crate) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.child_ended(pid.as_raw_nonzero().get(), code(status));
        }
    }

    /// Collects whoever ends until `pids` are gone, or too much time is. Any child, not those alone: the first process of
    /// a namespace ends only when all others in it are collected, and execs are ours to collect.
    pub(crate) fn reap_until(&mut self, mut pids: Vec<i32>) {
        let deadline = Instant::now() + REAP_WITHIN;
        while !pids.is_empty() && Instant::now() < deadline {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let pid = pid.as_raw_nonzero().get();
                    pids.retain(|p| *p != pid);
                    self.child_ended(pid, code(status));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return,
            }
        }
    }

    fn child_ended(&mut self, pid: i32, code: i32) {
        let is_init =
            |c: &crate::server::container::Container| c.pid().and_then(to_pid).is_some_and(|p| p.as_raw() == pid);
        if let Some(id) = self.containers.iter().find(|(_, c)| is_init(c)).map(|(id, _)| id.clone()) {
            return self.ended(&id, code);
        }
        if let Some(key) = self.execs.iter().find(|(_, e)| e.pid.as_raw() == pid).map(|(key, _)| *key) {
            return self.exec_ended(key, code);
        }
        let launching = |c: &crate::server::container::Container| matches!(&c.state, State::Launching(l) if l.launcher.as_raw() == pid);
        if let Some(id) = self.containers.iter().find(|(_, c)| launching(c)).map(|(id, _)| id.clone()) {
            // All that it said is in the socket by now.
            self.on_launch_report(&id);
            if self.containers.get(&id).is_some_and(|c| matches!(c.state, State::Launching(_))) {
                self.launch_failed(&id);
            }
            return;
        }
        if let Some(pod) = &mut self.pod
            && pod.init.is_some_and(|init| init.as_raw() == pid)
        {
            pod.init = None;
        }
        if self.containers.values().any(|c| matches!(c.state, State::Launching(_))) {
            self.unclaimed.insert(pid, code);
        }
    }

    /// A container's first process ended.
    fn ended(&mut self, id: &ContainerId, code: i32) {
        if self.containers.get(id).is_some_and(|c| matches!(c.state, State::Starting { .. })) {
            // Both may be true at once: it ran its program, and ended. The first comes first.
            self.on_start_pipe(id);
        }
        let Some(container) = self.containers.get(id) else { return };
        if matches!(container.state, State::Settled(ContainerState::Exited { .. })) {
            return;
        }
        let oom = container.oom_kills() > 0;
        self.finish_exit(id, Exit { code, at: SystemTime::now(), oom, abnormal: None });
    }

    /// Brings a container to its end: nothing of it runs, all it printed is in the log, and the daemon knows.
    fn finish_exit(&mut self, id: &ContainerId, exit: Exit) {
        if let Some(container) = self.containers.get(id) {
            container.kill_rest();
        }
        self.unwatch_output(id);
        let Some(container) = self.containers.get_mut(id) else { return };
        let lost = container.streams.finish(&mut self.buffer);
        let phase = container.state_report().unwrap_or(ContainerState::Unknown { left: Vec::new() });
        container.state = State::Settled(phase.exit(exit.clone()));
        if let Err(error) = container.write_exit(&exit) {
            launcher::log(format_args!("writing the exit of {id}: {error}"));
        }
        self.detach_all(id);
        self.record_dropped(id, lost);
        self.report_dropped(id);
        self.broadcast(Event::Exited { container: id.clone(), exit });
    }

    fn exec_ended(&mut self, key: ExecKey, code: i32) {
        let Some(exec) = self.execs.get_mut(&key) else { return };
        if exec.starting.is_some() {
            exec.ended = Some(code);
            return self.on_exec_pipe(key);
        }
        self.execs.remove(&key);
        self.send_event(key.0, Event::ExecExited { exec: key.1, code });
    }
}

/// The exit status, or 128 and the signal.
fn code(status: WaitStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(255)
}

/// Why a program does not run; nothing when it does. Never waits: the words come in one write, before the pipe closes.
fn why_not(started: &OwnedFd) -> String {
    let mut words = [0; WORDS_MAX];
    let n = rustix::io::read(started, &mut words).unwrap_or(0);
    String::from_utf8_lossy(&words[..n]).into_owned()
}
