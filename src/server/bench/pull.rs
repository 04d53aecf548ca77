//! `crisp bench pull`: an image pulled while absent, pulled again, and looked at.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tonic::transport::Channel;
use wire::v1;
use wire::v1::image_service_client::ImageServiceClient;
use wire::v1::runtime_service_client::RuntimeServiceClient;

use super::daemon::Daemon;
use super::figures::Figures;
use super::{BenchError, Measured, connect, step};

/// Quick calls, one after another, in each round.
const CALLS: u32 = 500;
/// Quick calls under way at once when it is counted how many a second brings.
const AT_ONCE: u32 = 32;

/// What is measured, and how often.
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// The sockets of the runtimes; others are compared with the first.
    #[arg(required = true)]
    sockets: Vec<PathBuf>,
    /// An image that all of them can pull.
    #[arg(long)]
    image: String,
    /// How often each runtime pulls it.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

struct Runtime {
    socket: PathBuf,
    daemon: Daemon,
    images: ImageServiceClient<Channel>,
    pods: RuntimeServiceClient<Channel>,
    figures: Figures,
}

pub(super) async fn measure(plan: Plan) -> Result<Measured, BenchError> {
    let mut runtimes = Vec::new();
    for socket in plan.sockets {
        let daemon = Daemon::behind(&socket).map_err(|source| BenchError::Daemon { socket: socket.clone(), source })?;
        let channel = connect(&socket).await?;
        let (images, pods) = (ImageServiceClient::new(channel.clone()), RuntimeServiceClient::new(channel));
        runtimes.push(Runtime { socket, daemon, images, pods, figures: Figures::default() });
    }
    for _ in 0..plan.rounds {
        for runtime in &mut runtimes {
            runtime.remove(&plan.image).await?;
            runtime.pull_absent(&plan.image).await?;
            runtime.pull_present(&plan.image).await?;
            runtime.look(&plan.image).await?;
            runtime.remove(&plan.image).await?;
        }
    }
    Ok(runtimes.into_iter().map(|runtime| (runtime.socket, runtime.figures)).collect())
}

fn spec(image: &str) -> Option<v1::ImageSpec> {
    Some(v1::ImageSpec { image: image.to_owned(), ..Default::default() })
}

impl Runtime {
    async fn remove(&mut self, image: &str) -> Result<(), BenchError> {
        let request = v1::RemoveImageRequest { image: spec(image) };
        self.images.remove_image(request).await.map_err(step("RemoveImage", &self.socket))?;
        // What one runtime left to be written must not slow down the next.
        rustix::fs::sync();
        Ok(())
    }

    async fn pull(&mut self, image: &str) -> Result<Duration, BenchError> {
        let begin = Instant::now();
        let request = v1::PullImageRequest { image: spec(image), ..Default::default() };
        self.images.pull_image(request).await.map_err(step("PullImage", &self.socket))?;
        Ok(begin.elapsed())
    }

    async fn pull_absent(&mut self, image: &str) -> Result<(), BenchError> {
        self.daemon.forget_peak().map_err(self.unknown())?;
        let before = self.cpu()?;
        let took = self.pull(image).await?;
        let used = self.cpu()? - before;
        let peak = self.daemon.peak_mib().map_err(self.unknown())?;
        self.figures.add_time("pull absent ms", took);
        self.figures.add_time("pull absent processor ms", used);
        self.figures.add("pull absent peak MiB", peak);
        Ok(())
    }

    fn cpu(&self) -> Result<Duration, BenchError> {
        self.daemon.cpu().map_err(self.unknown())
    }

    fn unknown(&self) -> impl FnOnce(io::Error) -> BenchError {
        let socket = self.socket.clone();
        move |source| BenchError::Daemon { socket, source }
    }

    async fn pull_present(&mut self, image: &str) -> Result<(), BenchError> {
        for _ in 0..10 {
            let took = self.pull(image).await?;
            self.figures.add_time("pull present ms", took);
        }
        Ok(())
    }

    /// Calls that only look, alone and many at once. Version is what a call costs that does nothing.
    async fn look(&mut self, image: &str) -> Result<(), BenchError> {
        let request = v1::ImageStatusRequest { image: spec(image), verbose: false };
        let before = self.cpu()?;
        for _ in 0..CALLS {
            let begin = Instant::now();
            let answer = self.images.image_status(request.clone()).await;
            self.figures.add_time("ImageStatus ms", begin.elapsed());
            answer.map_err(step("ImageStatus", &self.socket))?;
        }
        self.figures.add_time("ImageStatus processor ms", (self.cpu()? - before) / CALLS);
        for _ in 0..CALLS {
            let begin = Instant::now();
            let answer = self.pods.version(v1::VersionRequest::default()).await;
            self.figures.add_time("Version ms", begin.elapsed());
            answer.map_err(step("Version", &self.socket))?;
        }
        self.look_at_once(request).await
    }

    async fn look_at_once(&mut self, request: v1::ImageStatusRequest) -> Result<(), BenchError> {
        let mut callers = JoinSet::new();
        let (begin, before) = (Instant::now(), self.cpu()?);
        for _ in 0..AT_ONCE {
            let (mut images, request) = (self.images.clone(), request.clone());
            callers.spawn(async move {
                for _ in 0..CALLS / AT_ONCE {
                    images.image_status(request.clone()).await?;
                }
                Ok(())
            });
        }
        for answer in callers.join_all().await {
            answer.map_err(step("ImageStatus", &self.socket))?;
        }
        let (took, used) = (begin.elapsed(), self.cpu()? - before);
        let calls = CALLS / AT_ONCE * AT_ONCE;
        self.figures.add("ImageStatus per second", f64::from(calls) / took.as_secs_f64());
        self.figures.add_time("  processor ms of each", used / calls);
        Ok(())
    }
}
