//! Aborts CreateContainer when its pod is stopped, at any step.
//!
//! Its threads may be blocked by a device, or copy for long. So a stop does not wait for them: what
//! they create after that is removed when they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use model::{ContainerId, ContainerSpec};
use sync::threads::ORDINARY;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::create::{PreparedContainer, container_image};
use super::create_error::CreateError;
use super::create_plan::ContainerPlan;
use crate::runtime::Runtime;
use crate::store::{ContainerIntent, PodRecord, StopWaiters};

/// How long a thread may take to notice that its create was aborted.
const GIVE_UP_WITHIN: Duration = Duration::from_millis(500);

type Work<T> = oneshot::Receiver<thread::Result<Result<T, CreateError>>>;

impl Runtime {
    /// Plans the container, unless the pod is stopped first.
    pub(super) async fn plan_unless_stopped(
        self: &Arc<Self>,
        id: &ContainerId,
        pod: &Arc<PodRecord>,
        spec: ContainerSpec,
        shim_opens_paths: bool,
        ends: &StopWaiters,
    ) -> Result<ContainerPlan, CreateError> {
        let (runtime, plan_id, plan_pod) = (self.clone(), id.clone(), pod.clone());
        let planning = start(move || runtime.plan_container(plan_id, plan_pod, spec, shim_opens_paths));
        match unless_stopped(planning, ends).await {
            Ok(planned) => planned,
            Err(planning) => {
                let (runtime, id) = (self.clone(), id.clone());
                tokio::spawn(async move {
                    drop(planning.await);
                    runtime.selinux.free(id.as_str());
                });
                Err(CreateError::PodNotReady(pod.id.clone()))
            }
        }
    }

    /// Creates the container's directory and cgroup, unless the pod is stopped first.
    pub(super) async fn prepare_unless_stopped(
        self: &Arc<Self>,
        plan: ContainerPlan,
        ends: &StopWaiters,
    ) -> Result<PreparedContainer, CreateError> {
        let (pod, id, intent) = (plan.identity.pod.id.clone(), plan.identity.id.clone(), plan.intent());
        let given_up = Arc::new(AtomicBool::new(false));
        let (runtime, flag) = (self.clone(), given_up.clone());
        let preparing = start(move || runtime.prepare(plan, &flag));
        let mut preparing = match unless_stopped(preparing, ends).await {
            Ok(prepared) => return prepared,
            Err(preparing) => preparing,
        };
        given_up.store(true, Ordering::Relaxed);
        if tokio::time::timeout(GIVE_UP_WITHIN, &mut preparing).await.is_err() {
            tracing::warn!(container = %id, "CreateContainer was aborted but its thread is blocked; the container's files are removed when the thread ends");
            let (runtime, stopped) = (self.clone(), pod.clone());
            tokio::spawn(async move {
                drop(preparing.await);
                let names = runtime.container_span(&stopped, &id);
                runtime.cleanup_abandoned(&stopped, &id, &intent).instrument(names).await;
            });
            return Err(CreateError::GivenUp(pod));
        }
        Err(CreateError::PodNotReady(pod))
    }
}

impl ContainerPlan {
    /// Returns what a cleanup must know before anything of the container exists.
    pub(super) fn intent(&self) -> ContainerIntent {
        let spec = &self.identity.spec;
        let image = container_image(spec, &self.image);
        ContainerIntent {
            log: self.log.path.as_ref().map(|log| log.directory.join(&log.file)),
            selinux: self.security.selinux.clone(),
            ..ContainerIntent::new(spec, self.cgroup.cgroup.path(), image, self.stop_signal)
        }
    }
}

fn start<T: Send + 'static>(work: impl FnOnce() -> Result<T, CreateError> + Send + 'static) -> Work<T> {
    // Its log lines belong to the request.
    let span = tracing::Span::current();
    ORDINARY.spawn(move || span.in_scope(work))
}

/// Returns the result of the work, or the work itself if the pod is stopped first.
async fn unless_stopped<T>(mut work: Work<T>, ends: &StopWaiters) -> Result<Result<T, CreateError>, Work<T>> {
    let done = tokio::select! {
        done = &mut work => done,
        () = ends.awaited() => return Err(work),
    };
    match done {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(panicked)) => std::panic::resume_unwind(panicked),
        // Every job sends a result.
        Err(_) => std::future::pending().await,
    }
}
