//! `crisp`: the daemon and the commands for operators.
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use bench::BenchError;
use clap::{CommandFactory as _, Parser, Subcommand};
use cli::{
    CheckArgs, CheckError, CommonArgs, CompletionsArgs, ConfigArgs, DemoArgs, DemoError, ExplainArgs, HistoryArgs,
    ImageArgs, ImageError, ManArgs, ResizeArgs, ResizeError, SelftestCleanupArgs, VersionArgs, WorkloadArgs,
};
use daemon::{logging, serve};

/// The commit that this program was built from, or "unknown"; see build.rs.
const COMMIT: &str = env!("CRISP_BUILD_COMMIT");

/// Kubernetes container runtime (CRI) that resizes pods in place.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Exit codes: 0 success; 1 failure; 2 invalid arguments; 130 interrupted by SIGINT or SIGTERM.

On a new machine, run `crisp check` first, then start the daemon and run `crisp demo`."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon.
    Serve(CommonArgs),
    /// Check whether this host can run pods; `--live` runs a test pod through the daemon.
    Check(CheckArgs),
    /// Run a test pod through the daemon and resize it while it runs.
    Demo(DemoArgs),
    /// Show requested, applied and actual limits of a pod or container.
    Explain(ExplainArgs),
    /// List the resizes of pods and containers: time, caller, old and new limits, outcome.
    History(HistoryArgs),
    /// Resize running containers in place; if any step fails, all changes are rolled back.
    Resize(Box<ResizeArgs>),
    /// Manage images (works with or without a running daemon).
    Image(ImageArgs),
    /// Print the settings that `serve` would use with the same options.
    Config(ConfigArgs),
    /// Print version and commit of this program.
    Version(VersionArgs),
    /// Benchmark crisp or another CRI runtime.
    Bench(bench::BenchArgs),
    /// Print shell completions.
    Completions(CompletionsArgs),
    /// Write manual pages.
    Man(ManArgs),
    /// Internal: the program that runs in the pods of `demo` and `check --live`.
    #[command(hide = true)]
    DemoWorkload(WorkloadArgs),
    /// Remove the pod, image and logs of a killed `demo` or `check --live`.
    #[command(hide = true)]
    SelftestCleanup(SelftestCleanupArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not be set up yet, so errors of the command go to stderr.
            writeln!(io::stderr(), "crisp: {error:#}").ok();
            exit_code(&error)
        }
    }
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    let code = None
        .or_else(|| error.downcast_ref().map(ImageError::exit_code))
        .or_else(|| error.downcast_ref().map(CheckError::exit_code))
        .or_else(|| error.downcast_ref().map(DemoError::exit_code))
        .or_else(|| error.downcast_ref().map(ResizeError::exit_code))
        .or_else(|| error.downcast_ref().map(BenchError::exit_code));
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.verb {
        Verb::Serve(settings) => {
            let config = settings.load()?.resolve()?;
            let (level, spans) = logging::init(&config.log, config.tracing.clone())?;
            Ok(serve::serve(config, level, spans, COMMIT)?)
        }
        Verb::Check(args) => Ok(cli::check(args)?),
        Verb::Demo(args) => Ok(cli::demo(args)?),
        Verb::Explain(args) => Ok(cli::explain(args)?),
        Verb::History(args) => Ok(cli::history(args)?),
        Verb::Resize(args) => Ok(cli::resize(*args)?),
        Verb::Image(args) => Ok(cli::image(args)?),
        Verb::Config(args) => Ok(cli::config(args)?),
        Verb::Version(args) => Ok(cli::version(&args, option_env!("CRISP_BUILD_COMMIT").filter(|it| !it.is_empty()))?),
        Verb::Bench(plan) => Ok(bench::bench(plan, &mut cli::stdout())?),
        Verb::Completions(args) => Ok(cli::completions(&args, Cli::command())?),
        Verb::Man(args) => Ok(cli::man(&args, Cli::command())?),
        Verb::DemoWorkload(args) => Ok(cli::run_workload(args)?),
        Verb::SelftestCleanup(args) => Ok(cli::selftest_cleanup(args)?),
    }
}
