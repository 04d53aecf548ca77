//! Connections and launched programs.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Inner;
use crate::api::{UpdateContainersRequest, UpdateContainersResponse};
use crate::host::Observation;
use crate::launch::{BackOff, LaunchError, Program, Started, config, discover, start};
use crate::listen::Socket;
use crate::plugin::{HandshakeError, Registered, Registration, register};
use crate::wire::{ANSWER_WITH_UPDATES, Arrived, Code, Connection, decode};

/// Connections that are not registered yet. A further one closes the oldest, so that connections
/// which send nothing cannot keep plugins out.
const UNREGISTERED_MAX: usize = 64;
/// The pause after the kernel refused a connection, as without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Accepts connections, each with a task of its own.
pub(super) async fn accept(inner: Arc<Inner>, socket: Socket) {
    let mut unregistered: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let (stream, peer) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of an NRI plugin");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        unregistered.retain(|task| !task.is_finished());
        if unregistered.len() >= UNREGISTERED_MAX
            && let Some(oldest) = unregistered.pop_front()
        {
            tracing::warn!("more than {UNREGISTERED_MAX} connections without a registration: the oldest is closed");
            oldest.abort();
        }
        let inner = inner.clone();
        unregistered.push_back(tokio::spawn(async move {
            match handshake(&inner, stream, None).await {
                Ok((plugin, requests)) => {
                    let Registered { identity, events, .. } = &*plugin;
                    tracing::info!(plugin = %identity, pid = peer.pid, uid = peer.uid, ?events, "a plugin is registered");
                    tokio::spawn(async move { run(inner, plugin, requests, || {}).await });
                }
                Err(error) => tracing::warn!(pid = peer.pid, uid = peer.uid, %error, "an NRI plugin is not registered"),
            }
        }));
    }
}

/// Registers a plugin within the time limit.
async fn handshake(
    inner: &Inner,
    stream: UnixStream,
    launched: Option<(&Program, String)>,
) -> Result<(Arc<Registered>, mpsc::Receiver<Arrived>), HandshakeError> {
    let settings = inner.settings();
    let (connection, mut requests) = Connection::start(stream);
    let launched = launched.map(|(program, config)| (&program.identity, config));
    let registration = Registration { settings: &settings, launched, number: inner.next_connection() };
    let time = settings.registration_timeout;
    let registered = tokio::time::timeout(time, register(connection, &mut requests, registration)).await;
    let plugin = registered.map_err(|_| HandshakeError::TimedOut(time))??;
    Ok((Arc::new(plugin), requests))
}

/// Serves a plugin until its connection is closed.
async fn run(
    inner: Arc<Inner>,
    plugin: Arc<Registered>,
    mut requests: mpsc::Receiver<Arrived>,
    on_active: impl FnOnce() + Send,
) {
    let serving = inner.clone();
    let requested = plugin.clone();
    let requests = tokio::spawn(async move {
        while let Some(arrived) = requests.recv().await {
            // The connection limits how many are served at the same time.
            tokio::spawn(request(serving.clone(), requested.clone(), arrived));
        }
    });
    inner.serve(plugin, on_active).await;
    requests.abort();
}

/// Serves one request of a plugin.
async fn request(inner: Arc<Inner>, plugin: Arc<Registered>, arrived: Arrived) {
    let Arrived { request, reply } = arrived;
    match request.method.as_str() {
        "UpdateContainers" => match decode::<UpdateContainersRequest>(&request.payload, &ANSWER_WITH_UPDATES) {
            Ok(UpdateContainersRequest { update, evict }) => {
                let failed = inner.change(&plugin.identity, update, evict).await;
                reply.ok(&UpdateContainersResponse { failed });
            }
            Err(error) => reply.error(Code::InvalidArgument, &error.to_string()),
        },
        "RegisterPlugin" => reply.error(Code::FailedPrecondition, "the plugin is already registered"),
        _ => reply.error(Code::Unimplemented, "unknown method"),
    }
}

/// Starts all programs of a directory; returns after the first attempt of each.
pub(super) async fn launch(inner: &Arc<Inner>, plugins: &Path, configs: &Path) {
    let (programs, refused) = discover(plugins);
    for error in refused {
        tracing::warn!(%error, "an NRI plugin is not started");
    }
    let mut attempts = Vec::new();
    for program in programs {
        let (tried, attempt) = oneshot::channel();
        let task = tokio::spawn(supervise(inner.clone(), program, configs.to_owned(), tried));
        inner.tasks.lock().push(task);
        attempts.push(attempt);
    }
    for attempt in attempts {
        // The sender is dropped when the attempt has failed.
        drop(attempt.await);
    }
}

/// Starts a program again and again, with pauses.
async fn supervise(inner: Arc<Inner>, program: Program, configs: PathBuf, tried: oneshot::Sender<()>) {
    let mut back_off = BackOff::default();
    let mut tried = Some(tried);
    loop {
        let begun = Instant::now();
        if let Err(error) = run_program(&inner, &program, &configs, tried.take()).await {
            tracing::warn!(plugin = %program.identity, %error, "the NRI plugin failed");
        }
        let pause = back_off.pause(begun.elapsed());
        inner.host.observe(&program.identity, Observation::Restarting { pause });
        tracing::info!(plugin = %program.identity, ?pause, "the NRI plugin is started again after a pause");
        tokio::time::sleep(pause).await;
    }
}

#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// Runs a program until its connection is closed, and kills it then.
async fn run_program(
    inner: &Arc<Inner>,
    program: &Program,
    configs: &Path,
    tried: Option<oneshot::Sender<()>>,
) -> Result<(), ProgramError> {
    let config = config(configs, &program.identity)?;
    let Started { mut child, socket } = start(program)?;
    let outcome = match handshake(inner, socket, Some((program, config))).await {
        Ok((plugin, requests)) => {
            let (identity, pid) = (&plugin.identity, child.id());
            tracing::info!(plugin = %identity, pid, events = ?plugin.events, "a launched plugin is registered");
            // The receiver may be gone when the daemon ends.
            let on_active = || {
                if let Some(tried) = tried {
                    tried.send(()).ok();
                }
            };
            run(inner.clone(), plugin, requests, on_active).await;
            Ok(())
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = child.kill().await {
        tracing::warn!(plugin = %program.identity, %error, "cannot kill the plugin");
    }
    outcome
}
