//! Removes the pods, images and directories of selftests, also if their process was killed.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cri_api::v1;
use tonic::Status;

use super::super::client::Cri;
use super::super::command;
use super::run_id::{LABEL, RunId};

/// Message of a selftest to its watcher after a complete cleanup.
const DONE: &[u8] = b"done";
/// After this time without anything to remove, the daemon has finished the requests of the killed process.
const QUIET: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time after which the cleanup stops trying; the next selftest tries again.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments of `crisp selftest-cleanup`.
#[derive(Debug, clap::Args)]
pub struct SelftestCleanupArgs {
    /// Path of the daemon's socket.
    socket: PathBuf,
    /// Runtime state directory of the daemon.
    state: PathBuf,
    /// ID of the `demo` or `check --live` run to clean up: PID-START.
    run: String,
}

/// Something could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("removing {what} of a test pod of `crisp demo` or `crisp check`: {problem}")]
pub(in super::super) struct NotRemoved {
    what: String,
    problem: String,
}

fn not_removed<E: std::fmt::Display>(what: String) -> impl FnOnce(E) -> NotRemoved {
    move |problem| NotRemoved { what, problem: problem.to_string() }
}

fn message(status: Status) -> String {
    status.message().to_owned()
}

/// Waits until the selftest exits. If it exits without sending `done`, as after SIGKILL, removes everything.
pub fn selftest_cleanup(args: SelftestCleanupArgs) -> io::Result<()> {
    let SelftestCleanupArgs { socket, state, run } = args;
    let run: RunId = run.parse().map_err(io::Error::other)?;
    let mut words = Vec::new();
    // EOF comes when the selftest closes the pipe or exits in any way.
    io::stdin().take(16).read_to_end(&mut words)?;
    if words == DONE {
        return Ok(());
    }
    command::run(async {
        let cri = Cri::connect(&socket).await.map_err(io::Error::other)?;
        let (begin, mut last) = (Instant::now(), Instant::now());
        while last.elapsed() < QUIET && begin.elapsed() < PATIENCE {
            // A failure may be temporary, such as a pod that is being removed.
            if remove_all(&cri, &state, &run).await.unwrap_or(1) > 0 {
                last = Instant::now();
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    })?
}

/// The watcher process of a selftest, in a separate process group, so that it does not get the selftest's signals.
pub(super) struct Watcher(Child);

impl Watcher {
    pub(super) fn start(socket: &Path, state: &Path, run: &RunId) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("selftest-cleanup").arg(socket).arg(state).arg(run.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).current_dir("/");
        Ok(Self(command.spawn()?))
    }

    /// Reports a complete cleanup to the watcher, and waits for its exit.
    pub(super) fn stop(mut self) -> io::Result<()> {
        if let Some(mut pipe) = self.0.stdin.take() {
            pipe.write_all(DONE)?;
        }
        self.0.wait().map(drop)
    }
}

/// Removes everything of one run, and returns the number of removed objects.
pub(super) async fn remove_all(cri: &Cri, state: &Path, run: &RunId) -> Result<usize, NotRemoved> {
    let selector = [(LABEL.to_owned(), run.to_string())].into();
    let filter = v1::PodSandboxFilter { label_selector: selector, ..Default::default() };
    let listed = cri.runtime().list_pod_sandbox(v1::ListPodSandboxRequest { filter: Some(filter) }).await;
    let pods = listed.map_err(message).map_err(not_removed("a selftest's objects".to_owned()))?.into_inner().items;
    for v1::PodSandbox { id, .. } in &pods {
        let what = || format!("pod {id}");
        let stop = v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
        cri.runtime().stop_pod_sandbox(stop).await.map_err(message).map_err(not_removed(what()))?;
        let remove = v1::RemovePodSandboxRequest { pod_sandbox_id: id.clone() };
        cri.runtime().remove_pod_sandbox(remove).await.map_err(message).map_err(not_removed(what()))?;
    }
    let image = v1::ImageSpec { image: run.image(), ..Default::default() };
    let ask = v1::ImageStatusRequest { image: Some(image.clone()), verbose: false };
    let known = cri.images().image_status(ask).await.map_err(message).map_err(not_removed("an image".to_owned()))?;
    let has_image = known.into_inner().image.is_some();
    if has_image {
        let ask = v1::RemoveImageRequest { image: Some(image) };
        cri.images().remove_image(ask).await.map_err(message).map_err(not_removed(format!("image {}", run.image())))?;
    }
    let directory = state.join(run.directory());
    let has_directory = match std::fs::remove_dir_all(&directory) {
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => false,
        other => other.map(|()| true).map_err(not_removed(directory.display().to_string()))?,
    };
    Ok(pods.len() + usize::from(has_image) + usize::from(has_directory))
}

/// Removes the objects of all selftests whose process and watcher were killed.
pub(super) async fn remove_dead_runs(cri: &Cri, state: &Path) -> Result<(), NotRemoved> {
    let mut runs: Vec<RunId> = Vec::new();
    let listed = cri.runtime().list_pod_sandbox(v1::ListPodSandboxRequest::default()).await;
    let pods = listed.map_err(message).map_err(not_removed("a selftest's objects".to_owned()))?.into_inner().items;
    runs.extend(pods.iter().filter_map(|pod| pod.labels.get(LABEL)?.parse().ok()));
    let listed = cri.images().list_images(v1::ListImagesRequest::default()).await;
    let images = listed.map_err(message).map_err(not_removed("a selftest's objects".to_owned()))?.into_inner().images;
    runs.extend(images.iter().flat_map(|image| &image.repo_tags).filter_map(|name| RunId::of_image(name)));
    let entries = std::fs::read_dir(state).into_iter().flatten().flatten();
    runs.extend(entries.filter_map(|entry| RunId::of_directory(entry.file_name().to_str()?)));
    runs.dedup();
    for run in runs.iter().filter(|run| !run.is_alive()) {
        remove_all(cri, state, run).await?;
    }
    Ok(())
}
