//! `crisp bench`: measures speed and memory of any CRI runtime, through its socket and `/proc`.
//!
//! ```text
//! args             command-line arguments        runtime              a runtime and its pods, the order of turns
//! lifecycle        pods from creation to removal processes            memory and CPU time of a runtime
//! background_pods  running pods; memory          specs                configuration of pods and containers
//! directories      their file systems
//! reads            calls to running containers   report/results       values by name, counted failures
//! contention       reads during updates          report/statistics    percentiles, ratios with intervals
//! scaling          a growing number of pods      report               JSON; report/table, report/html: text, HTML
//! stream           exec, forwarded port, log     report/budgets       crisp's budgets and whether they are met
//! pull             images                        raw_cgroup_writes, baseline   the kernel's time without a runtime
//! ```
//!
//! With several sockets the runtimes take turns in every round, so that all run under the same
//! conditions. The ratios are printed beside the figures: on a shared machine only the ratios are
//! meaningful.
#![forbid(unsafe_code)]

mod args;
mod background_pods;
mod baseline;
mod contention;
mod directories;
mod lifecycle;
mod output_file;
mod parent_cgroup;
mod processes;
mod pull;
mod raw_cgroup_writes;
mod reads;
mod report;
mod runtime;
mod scaling;
mod specs;
mod stream;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

pub use args::{BenchArgs, Part};

use baseline::Baseline;
use output_file::OutputFile;
use parent_cgroup::ParentCgroup;
use raw_cgroup_writes::RawWrites;
use report::Report;
use runtime::Runtime;
use specs::Specs;
use tokio::signal::unix::{SignalKind, signal};

/// Why a benchmark failed. Failed steps are counted instead.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("starting the benchmark's async runtime")]
    Start(#[source] io::Error),
    #[error("connecting the benchmark to the CRI socket {}", socket.display())]
    Socket { socket: PathBuf, source: io::Error },
    #[error("opening a gRPC connection of the benchmark to {}", socket.display())]
    Connect { socket: PathBuf, source: tonic::transport::Error },
    #[error("reading the version of the runtime at {}", socket.display())]
    Version { socket: PathBuf, source: Box<tonic::Status> },
    #[error("finding the processes of the runtime's daemon at {}", socket.display())]
    Daemon { socket: PathBuf, source: io::Error },
    #[error("creating the benchmark's parent cgroup (--cgroup)")]
    Cgroup(#[source] io::Error),
    #[error(transparent)]
    Arguments(#[from] model::InvalidSocket),
    #[error("part {0} of `crisp bench` requires the option --pull IMAGE")]
    NoImage(&'static str),
    #[error("the benchmark was interrupted by a signal")]
    Interrupted,
    #[error("writing the benchmark's results to {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("printing the benchmark's results")]
    Print(#[source] io::Error),
    #[error("a runtime could not create all pods of the benchmark, which ended early; its results have the errors")]
    Incomplete,
    #[error("{runtime}: {figure} failed every time; the first of {errors} errors: {first}")]
    Failed { runtime: String, figure: String, errors: u32, first: String },
}

impl BenchError {
    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            // 128 + SIGINT, as for every command.
            Self::Interrupted => 130,
            _ => 1,
        }
    }
}

/// Runs the benchmark, prints a table to `out`, and writes the requested files.
pub fn bench(plan: BenchArgs, out: &mut impl Write) -> Result<(), BenchError> {
    if plan.parts.contains(&Part::Pull) && plan.pull.is_none() {
        return Err(BenchError::NoImage("pull"));
    }
    let began = SystemTime::now();
    let files = ResultFiles { json: open(plan.json.as_ref())?, html: open(plan.html.as_ref())? };
    let place = plan.cgroup.as_deref().filter(|_| plan.slice().is_none());
    let parent = ParentCgroup::make(place).map_err(BenchError::Cgroup)?;
    // Before the first thread is started: the baseline forks.
    let mut floor = plan.wants(Part::Floor).then(|| Baseline::start(&parent)).transpose().map_err(BenchError::Start)?;
    let tokio = current_thread_runtime()?;
    let mut runtimes = Vec::new();
    let mut bare = RawWrites::new(Some(parent.child("bare").map_err(BenchError::Cgroup)?));
    let measured = tokio.block_on(async {
        connect(&plan, &parent, &mut runtimes).await?;
        tokio::select! {
            complete = Box::pin(measure(&plan, &mut runtimes, &mut bare, floor.as_mut())) => Ok(complete),
            () = interrupted() => Err(BenchError::Interrupted),
        }
    });
    tokio.block_on(async {
        for runtime in &mut runtimes {
            runtime.clear().await;
        }
    });
    let complete = measured?;
    let mut kernel = bare.figures;
    kernel.merge(floor.map(Baseline::finish).unwrap_or_default());
    show(files, &Report::new(&plan, began, &runtimes, &kernel), complete, out)
}

/// Waits for SIGINT or SIGTERM; if they cannot be received, they end the process.
async fn interrupted() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

fn current_thread_runtime() -> Result<tokio::runtime::Runtime, BenchError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Start)
}

async fn connect(plan: &BenchArgs, parent: &ParentCgroup, runtimes: &mut Vec<Runtime>) -> Result<(), BenchError> {
    for (number, named) in plan.runtimes()?.iter().enumerate().filter(|_| plan.wants_runtimes()) {
        let cgroup_parent = match plan.slice() {
            Some(given) => given.to_owned(),
            // One per runtime, to measure the CPU time of each.
            None => parent.child(&number.to_string()).map_err(BenchError::Cgroup)?.path().as_str().to_owned(),
        };
        let shape = Specs { number, image: plan.image.clone(), cgroup_parent, host_network: plan.host_network };
        runtimes.push(Runtime::connect(named, shape).await?);
    }
    Ok(())
}

/// Runs the requested parts, one after another. Ends early and returns false if a runtime cannot create the pods of a
/// part: the others would measure lists, statistics and memory of nothing.
async fn measure(
    plan: &BenchArgs,
    runtimes: &mut [Runtime],
    bare: &mut RawWrites,
    mut floor: Option<&mut Baseline>,
) -> bool {
    if let Some(floor) = floor.as_mut() {
        log_step("floor");
        floor.rounds(plan.rounds);
    }
    if plan.wants(Part::Life) {
        log_step("life");
        if !Box::pin(lifecycle::measure(plan, runtimes)).await {
            return false;
        }
    }
    if plan.wants_background_pods() {
        log_step("exec, update, status, list, stats");
        if !Box::pin(background_pods::create_all(plan, runtimes)).await {
            return false;
        }
        Box::pin(reads::measure(plan, runtimes, bare)).await;
    }
    if plan.wants(Part::Storm) {
        log_step("storm");
        Box::pin(contention::measure(plan, runtimes)).await;
    }
    for runtime in runtimes.iter_mut() {
        runtime.clear().await;
    }
    if plan.wants(Part::Stream) {
        log_step("stream");
        Box::pin(stream::measure(plan, runtimes)).await;
    }
    if plan.wants(Part::Scale) {
        log_step("scale");
        if !Box::pin(scaling::measure(plan, runtimes)).await {
            return false;
        }
    }
    // Last: removing an image also removes its other tags.
    if plan.wants(Part::Pull) {
        log_step("pull");
        Box::pin(pull::measure(plan, runtimes)).await;
    }
    true
}

/// Prints the current part to stderr.
fn log_step(part: &str) {
    writeln!(io::stderr(), "bench: {part}").ok();
}

/// The files to write besides the table.
struct ResultFiles {
    json: Option<OutputFile>,
    html: Option<OutputFile>,
}

fn open(path: Option<&PathBuf>) -> Result<Option<OutputFile>, BenchError> {
    path.map(OutputFile::open).transpose()
}

fn show(files: ResultFiles, report: &Report, complete: bool, out: &mut impl Write) -> Result<(), BenchError> {
    report::table::print(out, report).map_err(BenchError::Print)?;
    if let Some(file) = files.json {
        let text = serde_json::to_string_pretty(report).map_err(|e| BenchError::Print(e.into()))?;
        file.write(&(text + "\n"))?;
    }
    if let Some(file) = files.html {
        file.write(&report::html::page(report))?;
    }
    let Some((runtime, figure)) = report.failed_figure() else {
        return if complete { Ok(()) } else { Err(BenchError::Incomplete) };
    };
    let (runtime, first) = (runtime.to_owned(), figure.first_error.clone().unwrap_or_default());
    Err(BenchError::Failed { runtime, figure: figure.name.clone(), errors: figure.errors, first })
}
