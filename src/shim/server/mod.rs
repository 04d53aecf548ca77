//! The event loop of the shim: one thread handles each ready descriptor completely, then the next.

mod attach;
mod connection;
mod container;
mod container_output;
mod launch_events;
mod log_reopen;
mod poller;
mod poststart_hooks;
mod reaper;
mod requests;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use model::ContainerId;
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use shim_protocol::{
    Event, ExecStreamRequest, PROTOCOL, Request, Response, ShimError, ShimErrorKind, ShimMessage, ShimRequest,
};
use sys::sibling::SiblingPid;

use crate::pod::Pod;
use crate::server::connection::Connection;
use crate::server::container::{Caller, Container};
use crate::server::poller::{Poller, Source};
use launcher::io::stdio::NullDevice;
pub(crate) use launcher::process::setns_exec::ExecMode;

/// The size of the buffer that all connections and streams share, since there is one thread.
const BUFFER: usize = sys::seqpacket::MAX;

#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) poller: Poller,
    listener: OwnedFd,
    signals: SignalFd,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    pub(crate) next_attached: u64,
    pub(crate) pod: Option<Pod>,
    pub(crate) containers: BTreeMap<ContainerId, Container>,
    pub(crate) execs: HashMap<ExecKey, Exec>,
    /// Exit codes of children that exited during a launch: one may be the new container's first
    /// process.
    pub(crate) unclaimed: HashMap<i32, i32>,
    pub(crate) buffer: Vec<u8>,
    /// Opened at the start: later, containers may have used up what it takes.
    pub(crate) null: Option<NullDevice>,
    leaving: bool,
}

/// The connection that requested an exec, and its number there: each daemon counts its own.
pub(crate) type ExecKey = (u64, u64);

/// A program started by exec.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) container: ContainerId,
    /// The process that enters the container and forks; `None` after it is reaped.
    pub(crate) between: Option<Pid>,
    /// The process that runs the program, once it exists.
    pub(crate) program: SiblingPid,
    /// The start pipe and the waiting request, until the program runs.
    pub(crate) starting: Option<(OwnedFd, Caller)>,
    /// The exit code, if it exited before its start was answered.
    pub(crate) ended: Option<i32>,
    pub(crate) mode: ExecMode,
}

impl Shim {
    pub(crate) fn new(listener: OwnedFd, signals: SignalFd) -> Self {
        let mut poller = Poller::default();
        poller.watch(&listener, Source::Listener);
        poller.watch(&signals, Source::Signals);
        Self {
            poller,
            listener,
            signals,
            connections: HashMap::new(),
            next_connection: 0,
            next_attached: 0,
            pod: None,
            containers: BTreeMap::new(),
            execs: HashMap::new(),
            unclaimed: HashMap::new(),
            buffer: vec![0; BUFFER],
            null: NullDevice::open().ok(),
            leaving: false,
        }
    }

    /// Runs until a daemon requests the shutdown, or disconnects before it created a sandbox.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        while !self.leaving {
            for source in self.poller.wait(self.next_resume())? {
                self.handle(source);
            }
            self.resume_output();
        }
        Ok(())
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => self.signalled(),
            Source::Connection(id) => self.on_message(id),
            Source::Report(container) => self.on_launch_report(&container),
            Source::Started(container) => self.on_start_pipe(&container),
            Source::Poststart(container) => self.on_poststart(&container),
            Source::LogOpened(container) => self.on_log_opened(&container),
            Source::Output(container, stream) => self.copy_output(&container, stream),
            Source::ExecStarted(exec) => self.on_exec_pipe(exec),
            Source::Attached(container, attached) => self.on_attach_message(&container, attached),
        }
    }

    fn accept(&mut self) {
        let Ok(socket) = sys::seqpacket::accept(&self.listener) else {
            // The client is not root, or has disconnected. Without free descriptors, the listener
            // stays ready.
            return std::thread::sleep(Duration::from_millis(1));
        };
        self.next_connection += 1;
        let id = self.next_connection;
        self.poller.watch(&socket, Source::Connection(id));
        self.connections.insert(id, Connection::new(socket));
    }

    fn signalled(&mut self) {
        // Only SIGCHLD has an effect. Other signals are consumed, so that a stray signal does not
        // end the pod.
        while let Ok(Some(_signal)) = self.signals.read_signal() {}
        self.reap();
    }

    fn on_message(&mut self, id: u64) {
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if connection.flush().is_err() {
                return self.close_connection(id);
            }
            self.watch_room(id);
            let Some(connection) = self.connections.get(&id) else { return };
            match sys::seqpacket::receive(&connection.socket, &mut self.buffer) {
                Ok(Some((n, fds))) => match shim_protocol::decode::<ShimRequest>(&self.buffer[..n]) {
                    Ok(ShimRequest { number, request }) => {
                        self.handle_request(Caller { connection: id, number }, request, fds)
                    }
                    Err(error) => self.reply_unsupported(id, n, &error),
                },
                Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => return self.close_connection(id),
            }
        }
    }

    /// Answers a request of a newer daemon that this shim does not know.
    fn reply_unsupported(&mut self, connection: u64, n: usize, error: &shim_protocol::FrameError) {
        #[derive(serde::Deserialize)]
        struct Numbered {
            number: u64,
        }
        if let Ok(Numbered { number }) = shim_protocol::decode(&self.buffer[..n]) {
            let message = format!("this shim ({}) does not support the request: {error}", env!("CARGO_PKG_VERSION"));
            self.reply(Caller { connection, number }, Err(ShimError { kind: ShimErrorKind::Unsupported, message }));
        }
    }

    fn handle_request(&mut self, caller: Caller, request: Request, mut fds: Vec<OwnedFd>) {
        let answer = match request {
            Request::Hello { .. } => Ok(Response::Hello {
                protocol: PROTOCOL,
                release: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                opens_paths: true,
            }),
            Request::CreateSandbox(hold) => self.create_sandbox(&hold),
            Request::State => Ok(self.state()),
            Request::Signal { container, signal } => self.signal(&container, signal),
            Request::RemoveContainer { container } => self.remove(&container),
            Request::KillExec { exec } => self.kill_exec((caller.connection, exec)),
            Request::Attach(attach) => self.attach(&attach, fds.pop()),
            Request::Shutdown => {
                self.shutdown();
                Ok(Response::Done)
            }
            // These are answered when their work is done.
            Request::Create(create) => return self.create(caller, create, fds),
            Request::Reopen { container, log } => return self.reopen(caller, &container, log, fds.pop()),
            Request::Start { container } => return self.start(caller, &container),
            Request::Exec(exec) => return self.exec(caller, &exec, ExecMode::Sync, fds),
            Request::ExecStream(ExecStreamRequest { exec, terminal: false }) => {
                return self.exec(caller, &exec, ExecMode::Stream, fds);
            }
            Request::ExecStream(ExecStreamRequest { exec, terminal: true }) => {
                return self.exec(caller, &exec, ExecMode::Terminal, fds);
            }
        };
        self.reply(caller, answer);
    }

    pub(crate) fn reply(&mut self, caller: Caller, result: Result<Response, ShimError>) {
        self.send(caller.connection, &ShimMessage::Response { number: caller.number, result });
    }

    /// Sends an event to all connected daemons; one that connects later requests the state.
    pub(crate) fn broadcast(&mut self, event: Event) {
        let message = ShimMessage::Event(event);
        let all: Vec<u64> = self.connections.keys().copied().collect();
        for id in all {
            self.send(id, &message);
        }
    }

    /// Sends an event to the daemon that made the request, if it is still connected.
    pub(crate) fn send_event(&mut self, connection: u64, event: Event) {
        self.send(connection, &ShimMessage::Event(event));
    }

    fn send(&mut self, id: u64, message: &ShimMessage) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let bytes = match (shim_protocol::encode(message), message) {
            (Ok(bytes), _) => bytes,
            (Err(error), ShimMessage::Response { number, .. }) => {
                let result = Err(shim_error(ShimErrorKind::Internal, format!("the answer cannot be sent: {error}")));
                shim_protocol::encode(&ShimMessage::Response { number: *number, result }).unwrap_or_default()
            }
            (Err(error), ShimMessage::Event(_)) => {
                return launcher::log(format_args!("an event cannot be sent: {error}"));
            }
        };
        match connection.send(bytes) {
            Ok(()) => self.watch_room(id),
            Err(_) => self.close_connection(id),
        }
    }

    fn watch_room(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        self.poller.watch_room(&Source::Connection(id), connection.is_behind());
    }

    fn close_connection(&mut self, id: u64) {
        if let Some(connection) = self.connections.remove(&id) {
            self.poller.forget(&connection.socket, &Source::Connection(id));
        }
        // No daemon waits for its ExecSync commands, or would kill them on timeout. Commands of
        // streaming clients continue with closed streams.
        let orphan = |(key, exec): &(&ExecKey, &Exec)| key.0 == id && exec.mode == ExecMode::Sync;
        let orphans: Vec<ExecKey> = self.execs.iter().filter(orphan).map(|(key, _)| *key).collect();
        for exec in orphans {
            self.kill_exec(exec).ok();
        }
        // A shim whose daemon exited before it created a sandbox belongs to no pod.
        if self.pod.is_none() && self.connections.is_empty() {
            self.leaving = true;
        }
    }

    /// Ends the pod: its containers, their remaining processes, its init process.
    fn shutdown(&mut self) {
        let all: Vec<ContainerId> = self.containers.keys().cloned().collect();
        for container in all {
            self.remove(&container).ok();
        }
        if let Some(init) = self.pod.as_mut().and_then(|pod| pod.init.take()) {
            sys::signal::send(init.as_raw(), 9).ok();
            self.reap_until(vec![init.as_raw()]);
        }
        self.leaving = true;
    }
}

pub(crate) fn shim_error(kind: ShimErrorKind, message: impl Into<String>) -> ShimError {
    ShimError { kind, message: message.into() }
}

pub(crate) fn not_found(container: &ContainerId) -> ShimError {
    shim_error(ShimErrorKind::NotFound, format!("the shim has no container {container}"))
}
