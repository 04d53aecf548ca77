//! Reaps processes and handles the exit of containers, execs and launchers.

use std::time::{Duration, Instant, SystemTime};

use model::{ContainerId, ContainerState, Exit};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};
use shim_protocol::Event;

use crate::server::container::{Container, State};
use crate::server::requests::to_pid;
use crate::server::{ExecKey, Shim};

/// The exit code of a container whose program could not be executed, as containerd and CRI-O report
/// it.
pub(super) const START_FAILED: i32 = 128;
/// How long the shim waits for killed processes.
const REAP_WITHIN: Duration = Duration::from_secs(5);

impl Shim {
    /// Reaps all exited children.
    pub(crate) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.child_ended(pid.as_raw_nonzero().get(), code(status));
        }
    }

    /// Reaps until `pids` have exited, or the time is over. Reaps any child: the first process of a
    /// PID namespace exits only when all others in it are reaped, and execs are children of the
    /// shim.
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
        let is_init = |c: &Container| c.pid().and_then(to_pid).is_some_and(|p| p.as_raw() == pid);
        if let Some(id) = self.containers.iter().find(|(_, c)| is_init(c)).map(|(id, _)| id.clone()) {
            return self.ended(&id, code);
        }
        let is = |candidate: Option<Pid>| candidate.is_some_and(|p| p.as_raw() == pid);
        if let Some(key) = self.execs.iter().find(|(_, e)| is(e.program.get())).map(|(key, _)| *key) {
            return self.exec_ended(key, code);
        }
        if let Some(key) = self.execs.iter().find(|(_, e)| is(e.between)).map(|(key, _)| *key) {
            return self.exec_entered(key);
        }
        let is_launcher = |c: &Container| c.launching().is_some_and(|launching| launching.launcher.as_raw() == pid);
        if let Some(id) = self.containers.iter().find(|(_, c)| is_launcher(c)).map(|(id, _)| id.clone()) {
            // The socket has all its reports by now.
            self.on_launch_report(&id);
            if self.containers.get(&id).is_some_and(|c| c.launching().is_some()) {
                self.launch_failed(&id);
            }
            return;
        }
        if self.pod.as_mut().is_some_and(|pod| pod.init.take_if(|init| init.as_raw() == pid).is_some()) {
            // All in its PID namespace have ended with it, and the kernel lets none be created
            // there any more. Without its shim the pod is not ready, so the client replaces it.
            launcher::log(format_args!("crisp-init of the pod ended with {code}: the pod ends"));
            return self.shutdown();
        }
        if self.containers.values().any(|c| c.launching().is_some()) {
            self.unclaimed.insert(pid, code);
        }
    }

    /// Handles the exit of a container's first process.
    pub(super) fn ended(&mut self, id: &ContainerId, code: i32) {
        if self.containers.get(id).is_some_and(|c| c.is_starting()) {
            // It may have executed its program and exited since: the start is reported before the
            // exit.
            self.on_start_pipe(id);
        }
        let Some(container) = self.containers.get(id) else { return };
        if matches!(container.state, State::Settled(ContainerState::Exited { .. })) {
            return;
        }
        let oom = container.was_oom_killed();
        self.finish_exit(id, Exit { code, at: SystemTime::now(), oom, abnormal: None });
    }

    /// Makes a container exited: kills its other processes, writes its last output to the log and
    /// reports the exit to the daemon. Does nothing while it is launched, since a launch that fails
    /// leaves no container.
    pub(super) fn finish_exit(&mut self, id: &ContainerId, exit: Exit) {
        let Some(container) = self.containers.get(id) else { return };
        let Some(state) = container.state_report() else { return };
        container.kill_rest();
        self.unwatch_output(id);
        self.end_reopen(id);
        let Some(container) = self.containers.get_mut(id) else { return };
        let lost = container.streams.finish(&mut self.buffer);
        container.state = State::Settled(state.exit(exit.clone()));
        if let Err(error) = container.write_exit(&exit) {
            launcher::log(format_args!("writing the exit of {id}: {error}"));
        }
        self.detach_all(id);
        self.record_dropped(id, lost);
        self.report_dropped(id);
        self.broadcast(Event::Exited { container: id.clone(), exit });
    }

    /// Handles the exit of the intermediate process of an exec: if it started no program, the exec
    /// has failed.
    fn exec_entered(&mut self, key: ExecKey) {
        let Some(exec) = self.execs.get_mut(&key) else { return };
        exec.between = None;
        if exec.program.get().is_none() {
            self.on_exec_pipe(key);
            // The failure was reported, or its connection has closed.
            self.execs.remove(&key);
        }
    }

    pub(super) fn exec_ended(&mut self, key: ExecKey, code: i32) {
        let Some(exec) = self.execs.get_mut(&key) else { return };
        if exec.starting.is_some() {
            exec.ended = Some(code);
            return self.on_exec_pipe(key);
        }
        self.execs.remove(&key);
        self.send_event(key.0, Event::ExecExited { exec: key.1, code });
    }
}

/// Returns the exit status, or 128 and the number of the signal.
fn code(status: WaitStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(255)
}
