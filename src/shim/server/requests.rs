//! Executes the daemon's requests: create the sandbox, create, start, signal and exec containers.

use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, OwnedFd};

use launcher::io::cri_log::Stream;
use launcher::io::stdio;
use launcher::io::stdio::{LogTarget, StdioSettings};
use launcher::launch;
use launcher::launch::LaunchChannels;
use launcher::process::setns_exec::{self, ExecContainer, ExecMode, ExecProcess, ExecStdio};
use model::{ContainerId, ContainerState};
use nix::unistd::Pid;
use rustix::io::Errno;
use shim_protocol::{
    ContainerReport, CreateRequest, ExecRequest, LaunchConfig, Response, SandboxRequest, ShimError, ShimErrorKind,
};

use crate::pod;
use crate::server::container::{Caller, Container, DroppedOutput, Launching, Stage, State, Unstarted};
use crate::server::poller::Source;
use crate::server::{Exec, ExecKey, Shim, not_found, shim_error};

type RequestResult = Result<Response, ShimError>;

fn internal(error: impl std::fmt::Display) -> ShimError {
    shim_error(ShimErrorKind::Internal, error.to_string())
}

/// Returns the error of a failed fork: of kind `otherwise`, unless the kernel is out of processes
/// or memory.
pub(crate) fn start_error(error: &(dyn std::error::Error + 'static), otherwise: ShimErrorKind) -> ShimError {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let is_exhausted = causes.any(|cause| {
        let errno = cause.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        matches!(errno, Some(Errno::AGAIN | Errno::NOMEM))
    });
    let kind = if is_exhausted { ShimErrorKind::Exhausted } else { otherwise };
    shim_error(kind, error.to_string())
}

impl Shim {
    pub(crate) fn create_sandbox(&mut self, request: &SandboxRequest) -> RequestResult {
        if self.pod.is_some() {
            return Err(shim_error(ShimErrorKind::State, "this shim holds a pod already"));
        }
        // Refused without CAP_SYS_RESOURCE. The shim is small, and `crisp check` reports it.
        drop(std::fs::write("/proc/self/oom_score_adj", request.oom_score_adj.to_string()));
        let pod = pod::create(request).map_err(|e| start_error(&e, e.kind()))?;
        let held = pod.sandbox.clone();
        self.pod = Some(pod);
        Ok(Response::SandboxCreated(held))
    }

    pub(crate) fn state(&self) -> Response {
        let report = |(id, c): (&ContainerId, &Container)| {
            c.state_report().map(|state| ContainerReport { container: id.clone(), state })
        };
        Response::State {
            sandbox: self.pod.as_ref().map(|pod| pod.sandbox.clone()),
            containers: self.containers.iter().filter_map(report).collect(),
        }
    }

    pub(crate) fn create(&mut self, caller: Caller, request: CreateRequest, mut fds: Vec<OwnedFd>) {
        if let Err(failed) = self.try_create(caller, &request, fds.pop()) {
            self.reply(caller, Err(failed));
        }
    }

    fn try_create(&mut self, caller: Caller, request: &CreateRequest, log: Option<OwnedFd>) -> Result<(), ShimError> {
        if self.containers.contains_key(&request.container) {
            return Err(shim_error(ShimErrorKind::State, format!("container {} exists already", request.container)));
        }
        let settings: LaunchConfig = launch::read(&request.dir, LaunchConfig::FILE).map_err(internal)?;
        let (report, launcher_report) = sys::seqpacket::pair().map_err(internal)?;
        let (started, launcher_started) = std::io::pipe().map_err(internal)?;
        rustix::io::ioctl_fionbio(&started, true).map_err(internal)?;
        let (launcher_go, go) = std::io::pipe().map_err(internal)?;
        let channels =
            LaunchChannels { report: launcher_report, started: launcher_started.into(), go: launcher_go.into() };
        let log = LogTarget {
            file: log.map(File::from),
            line_max: usize::try_from(settings.log_line_max).unwrap_or(usize::MAX),
            rate_max: settings.log_rate_max,
        };
        let stdio_settings = StdioSettings { tty: settings.tty, stdin: settings.stdin, log };
        let (streams, stdio) = stdio::connect(stdio_settings, channels).map_err(internal)?;
        let id = &request.container;
        let source = Source::Report(id.clone());
        self.poller.watch(&report, source.clone());
        let pod_proc = self.pod.as_ref().and_then(|pod| pod.proc.as_ref()).map(|proc| proc.as_fd());
        let launcher = launch::launch(request, &settings, stdio, pod_proc)
            .inspect_err(|_| self.poller.forget(&report, &source))
            .map_err(|error| start_error(&error, ShimErrorKind::Internal))?;
        let launching = Launching {
            caller,
            launcher,
            report,
            trace: Vec::new(),
            warnings: Vec::new(),
            failure: None,
            hook_gate_failed: false,
        };
        let stage = Stage::Launching(launching);
        let state = State::Unstarted(Unstarted { started: started.into(), go: Some(go.into()), stage });
        let container = Container {
            dir: request.dir.clone(),
            launch: settings,
            streams,
            state,
            lost: DroppedOutput::default(),
            paused: None,
            poststart: None,
            reopening: None,
        };
        self.containers.insert(id.clone(), container);
        Ok(())
    }

    /// Starts reading the container's output.
    pub(crate) fn watch_output(&mut self, id: &ContainerId) {
        let Self { poller, containers, .. } = self;
        let Some(container) = containers.get(id) else { return };
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(fd) = container.streams.fd(stream) {
                poller.watch(fd, Source::Output(id.clone(), stream));
            }
        }
    }

    /// Stops reading a container's output, before its pipes are closed.
    pub(crate) fn unwatch_output(&mut self, id: &ContainerId) {
        let Self { poller, containers, .. } = self;
        let Some(container) = containers.get(id) else { return };
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(fd) = container.streams.fd(stream) {
                poller.forget(fd, &Source::Output(id.clone(), stream));
            }
        }
    }

    pub(crate) fn start(&mut self, caller: Caller, id: &ContainerId) {
        if let Err(failed) = self.try_start(caller, id) {
            self.reply(caller, Err(failed));
        }
    }

    fn try_start(&mut self, caller: Caller, id: &ContainerId) -> Result<(), ShimError> {
        let Self { poller, containers, .. } = self;
        let container = containers.get_mut(id).ok_or_else(|| not_found(id))?;
        let State::Unstarted(Unstarted { started, go, stage }) = &mut container.state else {
            return Err(wrong_state(id, container, "created"));
        };
        let Stage::Created { pid } = *stage else { return Err(wrong_state(id, container, "created")) };
        match go {
            Some(go) => {
                // Fails only if the process has exited, which SIGCHLD reports.
                rustix::io::write(go, &[1]).ok();
            }
            None => launcher::launch::start::start(&container.dir, id.as_str()).map_err(internal)?,
        }
        poller.watch(started, Source::Started(id.clone()));
        *stage = Stage::Starting { pid, caller };
        Ok(())
    }

    pub(crate) fn signal(&mut self, id: &ContainerId, signal: i32) -> RequestResult {
        let container = self.containers.get(id).ok_or_else(|| not_found(id))?;
        // It is an unreaped child, so no other process has its pid. One that has exited needs no
        // signal.
        if let Some(pid) = container.pid().and_then(to_pid) {
            sys::signal::send(pid.as_raw(), signal)
                .map_err(|e| shim_error(ShimErrorKind::Refused, format!("{signal}: {e}")))?;
        }
        Ok(Response::Done)
    }

    /// Kills the container, if it runs, and reaps it. Its exit is not reported.
    pub(crate) fn remove(&mut self, id: &ContainerId) -> RequestResult {
        self.unwatch_output(id);
        self.detach_all(id);
        self.remove_poststart(id);
        self.end_reopen(id);
        let Some(mut container) = self.containers.remove(id) else { return Ok(Response::Done) };
        let mut dead: Vec<i32> = container.pid().and_then(to_pid).map(Pid::as_raw).into_iter().collect();
        if let State::Unstarted(Unstarted { started, stage, .. }) = &container.state {
            match stage {
                Stage::Launching(Launching { caller, launcher, report, .. }) => {
                    self.poller.forget(report, &Source::Report(id.clone()));
                    dead.push(launcher.as_raw());
                    self.reply(*caller, Err(removed_meanwhile()));
                }
                Stage::Starting { caller, .. } => {
                    self.poller.forget(started, &Source::Started(id.clone()));
                    self.reply(*caller, Err(removed_meanwhile()));
                }
                Stage::Created { .. } => {}
            }
        }
        for pid in &dead {
            sys::signal::send(*pid, 9).ok();
        }
        container.kill_rest();
        self.reap_until(dead);
        drop(container.streams.finish(&mut self.buffer));
        Ok(Response::Done)
    }

    pub(crate) fn exec(&mut self, caller: Caller, request: &ExecRequest, mode: ExecMode, fds: Vec<OwnedFd>) {
        if let Err(failed) = self.try_exec(caller, request, mode, fds) {
            self.reply(caller, Err(failed));
        }
    }

    fn try_exec(
        &mut self,
        caller: Caller,
        request: &ExecRequest,
        mode: ExecMode,
        fds: Vec<OwnedFd>,
    ) -> Result<(), ShimError> {
        let id = &request.container;
        let container = self.containers.get(id).ok_or_else(|| not_found(id))?;
        let State::Settled(ContainerState::Running { pid, .. }) = &container.state else {
            return Err(wrong_state(id, container, "running"));
        };
        if container.is_frozen() {
            return Err(shim_error(ShimErrorKind::State, format!("container {id} is paused: its cgroup is frozen")));
        }
        let init = to_pid(*pid).ok_or_else(|| internal("the container's pid is out of range"))?;
        let (started, theirs) = std::io::pipe().map_err(internal)?;
        let stdio = ExecStdio::new(request, mode, fds, theirs.into());
        let started = OwnedFd::from(started);
        rustix::io::ioctl_fionbio(&started, true).map_err(internal)?;
        let key = (caller.connection, request.exec);
        self.poller.watch(&started, Source::ExecStarted(key));
        let target = ExecContainer { dir: &container.dir, launch: &container.launch, init, null: self.null.as_ref() };
        let started_exec = setns_exec::exec(request, mode, &target, stdio)
            .inspect_err(|_| self.poller.forget(&started, &Source::ExecStarted(key)))
            .map_err(|error| {
                ended_meanwhile(id, init).unwrap_or_else(|| start_error(&error, ShimErrorKind::Internal))
            })?;
        let ExecProcess { between, program } = started_exec;
        let starting = Some((started, caller));
        let exec = Exec { container: id.clone(), between: Some(between), program, starting, ended: None, mode };
        self.execs.insert(key, exec);
        Ok(())
    }

    /// Kills the program of an exec with its session and descendants, and waits up to 50 ms for
    /// their exit. In several rounds, since processes may fork while they are listed.
    pub(crate) fn kill_exec(&mut self, exec: ExecKey) -> RequestResult {
        let Some(exec) = self.execs.get(&exec) else { return Ok(Response::Done) };
        let container = self.containers.get(&exec.container);
        for _ in 0..50 {
            // Unreaped children, whether they have joined the container's cgroup or not. The one
            // that may fork is first.
            let entering = exec.between.filter(|between| is_alive(*between));
            if let Some(between) = entering {
                sys::signal::send(between.as_raw(), 9).ok();
            }
            let family = exec.program.get().map_or_else(Vec::new, |root| {
                // Listed before the first signal: children of a dead process are no longer its
                // descendants.
                let all = container.map(Container::processes).unwrap_or_default();
                let family = launcher::process::process_tree::descendants(root.as_raw(), &all);
                sys::signal::send(root.as_raw(), 9).ok();
                family
            });
            let last = family.is_empty() && entering.is_none();
            for pid in family {
                sys::signal::send(pid, 9).ok();
            }
            // After the signals: a thawed process is killed before it runs.
            let thawed = container.is_some_and(Container::thaw);
            if last && !thawed {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(Response::Done)
    }
}

/// Returns the error of a request that the state of the container does not allow.
pub(crate) fn wrong_state(id: &ContainerId, container: &Container, required: &str) -> ShimError {
    let state = container.state_report().map_or("being created", |state| state.name());
    shim_error(ShimErrorKind::State, format!("container {id} is {state}, not {required}"))
}

/// Returns the error of a request that waited when its container was removed.
pub(crate) fn removed_meanwhile() -> ShimError {
    shim_error(ShimErrorKind::State, "the container was removed during the request")
}

/// Returns the error of an exec that failed because the container has exited. `init` is its first
/// process, not reaped yet.
pub(crate) fn ended_meanwhile(id: &ContainerId, init: Pid) -> Option<ShimError> {
    let ended = !is_alive(init);
    ended.then(|| shim_error(ShimErrorKind::State, format!("container {id} is exited, not running")))
}

/// Returns whether an unreaped child of this process still runs.
fn is_alive(child: Pid) -> bool {
    !launcher::process::process_tree::is_ending(child.as_raw())
}

pub(crate) fn to_pid(pid: NonZeroU32) -> Option<Pid> {
    i32::try_from(pid.get()).ok().map(Pid::from_raw)
}
