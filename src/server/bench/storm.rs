//! Changes of many containers at once, at a steady rate.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use wire::v1::runtime_service_client::RuntimeServiceClient;

use super::resize::{limits, update};
use super::{BenchError, connect, step};

/// Changes under way at the same time, at the most.
const AT_ONCE: usize = 16;

pub(super) struct Storm {
    pub(super) socket: PathBuf,
    pub(super) containers: Vec<String>,
    /// Changes in a second, if the runtime keeps up.
    pub(super) rate: u32,
    pub(super) span: Duration,
}

impl Storm {
    /// Returns how many changes a second there were.
    pub(super) fn blow(self) -> Result<f64, BenchError> {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Start)?;
        tokio.block_on(self.changes())
    }

    async fn changes(self) -> Result<f64, BenchError> {
        let client = RuntimeServiceClient::new(connect(&self.socket).await?);
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut beat = tokio::time::interval(Duration::from_secs(1) / self.rate);
        // A runtime that cannot keep up is not run over.
        beat.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut changes = JoinSet::new();
        let begin = Instant::now();
        let mut number: u32 = 0;
        while begin.elapsed() < self.span {
            beat.tick().await;
            // Nobody closes the semaphore.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
            let id = &self.containers[number as usize % self.containers.len()];
            let round = i64::from(number) / 50;
            let request = update(id, limits(200 + round % 2 * 100, 64 + round % 2 * 32));
            let mut client = client.clone();
            changes.spawn(async move {
                let answer = client.update_container_resources(request).await;
                drop(place);
                answer.map(drop)
            });
            number += 1;
            while let Some(done) = changes.try_join_next() {
                done.map_err(|_| BenchError::Storm(self.socket.clone()))?
                    .map_err(step("UpdateContainerResources", &self.socket))?;
            }
        }
        for answer in changes.join_all().await {
            answer.map_err(step("UpdateContainerResources", &self.socket))?;
        }
        Ok(f64::from(number) / begin.elapsed().as_secs_f64())
    }
}
