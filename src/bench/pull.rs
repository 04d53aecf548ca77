//! Measures pulls of an image, absent and present, and ImageStatus.

use std::time::{Duration, Instant};

use cri_api::v1;
use tokio::task::JoinSet;
use tonic::Status;

use super::args::BenchArgs;
use super::report::results::Unit;
use super::runtime::{Runtime, in_turns};
use super::specs::image_spec;

pub(super) const ABSENT: &str = "pull absent";
pub(super) const PRESENT: &str = "pull present";
pub(super) const REMOVE: &str = "RemoveImage";
pub(super) const PEAK: &str = "pull absent: peak memory of the daemon";
/// ImageStatus calls per round, one after another.
const CALLS: u32 = 500;
/// Concurrent ImageStatus calls, to measure the rate.
const AT_ONCE: u32 = 32;

pub(super) async fn measure(plan: &BenchArgs, runtimes: &mut [Runtime]) {
    let Some(image) = &plan.pull else { return };
    in_turns(runtimes, plan.rounds.div_ceil(4), async |runtime, _| {
        remove_quietly(runtime, image).await;
        pull_absent(runtime, image).await;
        pull_present(runtime, image).await;
        look(runtime, image).await;
        remove(runtime, image).await;
    })
    .await;
}

fn spec(image: &str) -> Option<v1::ImageSpec> {
    Some(image_spec(image))
}

async fn remove(runtime: &mut Runtime, image: &str) {
    let Runtime { images, figures, .. } = runtime;
    figures.time(REMOVE, images.remove_image(v1::RemoveImageRequest { image: spec(image) })).await;
    // Dirty pages of one runtime must not slow down the next.
    rustix::fs::sync();
}

/// Removes an image that may be absent, which is faster and therefore not measured.
async fn remove_quietly(runtime: &mut Runtime, image: &str) {
    if let Err(status) = runtime.images.remove_image(v1::RemoveImageRequest { image: spec(image) }).await {
        runtime.figures.fail(REMOVE, Unit::Ms, &status.message());
    }
    rustix::fs::sync();
}

async fn pull(runtime: &mut Runtime, image: &str) -> Result<Duration, Status> {
    let begin = Instant::now();
    let request = v1::PullImageRequest { image: spec(image), ..Default::default() };
    runtime.images.pull_image(request).await?;
    Ok(begin.elapsed())
}

async fn pull_absent(runtime: &mut Runtime, image: &str) {
    let (forgot, before) = (runtime.family.reset_peak(), runtime.cpu());
    match pull(runtime, image).await {
        Ok(took) => runtime.figures.add_time(ABSENT, took),
        Err(status) => return runtime.figures.fail(ABSENT, Unit::Ms, &status.message()),
    }
    runtime.note_cpu("pull absent: processor time", before, 1);
    let peak = forgot.and_then(|()| runtime.family.peak());
    runtime.figures.note(PEAK, Unit::MB, peak);
}

async fn pull_present(runtime: &mut Runtime, image: &str) {
    for _ in 0..10 {
        match pull(runtime, image).await {
            Ok(took) => runtime.figures.add_time(PRESENT, took),
            Err(status) => runtime.figures.fail(PRESENT, Unit::Ms, &status.message()),
        }
    }
}

/// Measures ImageStatus, one call at a time and many in parallel.
async fn look(runtime: &mut Runtime, image: &str) {
    let request = v1::ImageStatusRequest { image: spec(image), verbose: false };
    let before = runtime.cpu();
    for _ in 0..CALLS {
        let Runtime { images, figures, .. } = runtime;
        figures.time("ImageStatus", images.image_status(request.clone())).await;
    }
    runtime.note_cpu("ImageStatus: processor time", before, CALLS);
    let mut callers = JoinSet::new();
    let begin = Instant::now();
    for _ in 0..AT_ONCE {
        let (mut images, request) = (runtime.images.clone(), request.clone());
        callers.spawn(async move {
            for _ in 0..CALLS / AT_ONCE {
                images.image_status(request.clone()).await?;
            }
            Ok::<_, Status>(())
        });
    }
    let failed = callers.join_all().await.into_iter().find_map(Result::err);
    let calls = f64::from(CALLS / AT_ONCE * AT_ONCE) / begin.elapsed().as_secs_f64();
    let calls = failed.map_or(Ok(calls), |status| Err(status.message().to_owned()));
    runtime.figures.note("ImageStatus, many at once", Unit::PerSecond, calls);
}
