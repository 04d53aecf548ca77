//! `crisp bench`: how fast any CRI runtime is, seen from its socket.
//!
//! With several sockets the rounds go in turns, so that all meet the same machine, and what is printed beside the
//! figures is their ratio to those of the first: on a shared machine only that means something.

mod bare;
mod daemon;
mod figures;
mod life;
mod parent;
mod pull;
mod resize;
mod storm;

use std::io;
use std::path::{Path, PathBuf};

use tonic::transport::{Channel, Endpoint};

use figures::Figures;

/// What is measured.
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Measure the life of pods with one container, one pod after another.
    Life(life::Plan),
    /// Measure how an image is pulled and looked at. The image is removed from the runtimes, again and again.
    Pull(pull::Plan),
    /// Measure changes of running containers and looks at them, alone and in a storm of changes.
    Resize(resize::Plan),
}

/// A step could not be measured, since it failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("starting")]
    Start(#[source] io::Error),
    #[error("connecting to {}", socket.display())]
    Connect { socket: PathBuf, source: tonic::transport::Error },
    #[error("{step} at {}", socket.display())]
    Step { step: &'static str, socket: PathBuf, source: Box<tonic::Status> },
    #[error("looking at the daemon behind {}", socket.display())]
    Daemon { socket: PathBuf, source: io::Error },
    #[error("working on cgroups by hand")]
    Bare(#[source] io::Error),
    #[error("the storm of changes at {} ended in a panic", .0.display())]
    Storm(PathBuf),
    #[error("printing")]
    Print(#[source] io::Error),
}

/// Measures, and prints a table.
pub fn bench(bench: Bench) -> Result<(), BenchError> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Start)?;
    let measured = tokio.block_on(async {
        match bench {
            Bench::Life(plan) => Box::pin(life::measure(plan)).await,
            Bench::Pull(plan) => Box::pin(pull::measure(plan)).await,
            Bench::Resize(plan) => Box::pin(resize::measure(plan)).await,
        }
    })?;
    figures::print(&mut io::stdout().lock(), &measured).map_err(BenchError::Print)
}

/// What was measured at each socket, in the order they were given.
type Measured = Vec<(PathBuf, Figures)>;

async fn connect(socket: &Path) -> Result<Channel, BenchError> {
    let failed = |source| BenchError::Connect { socket: socket.to_owned(), source };
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(failed)?;
    endpoint.connect().await.map_err(failed)
}

/// Names the step and the runtime that failed.
fn step(step: &'static str, socket: &Path) -> impl FnOnce(tonic::Status) -> BenchError {
    let socket = socket.to_owned();
    move |source| BenchError::Step { step, socket, source: Box::new(source) }
}
