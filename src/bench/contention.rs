//! Measures reads before and during updates of many containers at a steady rate.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cri_api::v1;
use cri_api::v1::runtime_service_client::RuntimeServiceClient;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::args::BenchArgs;
use super::report::results::{Figures, Unit};
use super::runtime::{Runtime, connect, in_turns};
use super::specs::{limits, update};
use super::{BenchError, current_thread_runtime};

/// Maximum number of concurrent updates.
const AT_ONCE: usize = 16;
const RATE: &str = "storm: updates";

pub(super) async fn measure(plan: &BenchArgs, runtimes: &mut [Runtime]) {
    in_turns(runtimes, 1, async |runtime, _| Box::pin(measure_under_load(plan, runtime)).await).await;
}

/// Measures the same reads before and during a storm of updates.
async fn measure_under_load(plan: &BenchArgs, runtime: &mut Runtime) {
    let span = Duration::from_secs(plan.storm_seconds);
    let containers = runtime.containers();
    if containers.is_empty() {
        return;
    }
    look_for(runtime, &containers, span, ["calm: ContainerStatus", "calm: ListContainers"]).await;
    let load = UpdateLoad { socket: runtime.socket.clone(), containers: containers.clone(), rate: plan.storm, span };
    // On a separate thread, so that sending updates does not slow down the measured reads.
    let load = thread::spawn(move || load.update_load());
    look_for(runtime, &containers, span, ["storm: ContainerStatus", "storm: ListContainers"]).await;
    match load.join() {
        Ok(Ok(blown)) => runtime.figures.merge(blown),
        Ok(Err(error)) => runtime.figures.fail(RATE, Unit::PerSecond, &error),
        Err(_) => runtime.figures.fail(RATE, Unit::PerSecond, &"the thread of the storm panicked"),
    }
}

async fn look_for(runtime: &mut Runtime, containers: &[String], span: Duration, [status, list]: [&str; 2]) {
    let Runtime { client, figures, .. } = runtime;
    let begin = Instant::now();
    for id in containers.iter().cycle() {
        if begin.elapsed() >= span {
            break;
        }
        let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose: false };
        figures.time(status, client.container_status(request)).await;
        figures.time(list, client.list_containers(v1::ListContainersRequest::default())).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

struct UpdateLoad {
    socket: PathBuf,
    containers: Vec<String>,
    /// Updates per second, if the runtime keeps up.
    rate: u32,
    span: Duration,
}

impl UpdateLoad {
    fn update_load(self) -> Result<Figures, BenchError> {
        current_thread_runtime()?.block_on(self.changes())
    }

    /// Sends the updates, and records the rate that was reached.
    async fn changes(self) -> Result<Figures, BenchError> {
        let client = RuntimeServiceClient::new(connect(&self.socket).await?);
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut beat = tokio::time::interval(Duration::from_secs(1) / self.rate);
        // A slow runtime gets late updates as a burst; the semaphore limits how many are in flight.
        beat.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut changes = JoinSet::new();
        let (mut figures, begin) = (Figures::default(), Instant::now());
        let mut good: u32 = 0;
        let mut count = |done: Result<Result<(), tonic::Status>, _>| match done {
            Ok(Ok(())) => good += 1,
            Ok(Err(status)) => figures.fail(RATE, Unit::PerSecond, &status.message()),
            Err(error) => figures.fail(RATE, Unit::PerSecond, &format_args!("{error:?}")),
        };
        for (number, id) in (0i64..).zip(self.containers.iter().cycle()) {
            if begin.elapsed() >= self.span {
                break;
            }
            beat.tick().await;
            // Fails only if the semaphore is closed, which never happens.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
            let round = number / 50;
            let request = update(id, limits(200 + round % 2 * 100, 64 + round % 2 * 32));
            let mut client = client.clone();
            changes.spawn(async move {
                let answer = client.update_container_resources(request).await;
                drop(place);
                answer.map(drop)
            });
            while let Some(done) = changes.try_join_next() {
                count(done);
            }
        }
        while let Some(done) = changes.join_next().await {
            count(done);
        }
        figures.add(RATE, Unit::PerSecond, f64::from(good) / begin.elapsed().as_secs_f64());
        Ok(figures)
    }
}
