//! `crisp`: the daemon and what an operator does beside it.
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use cli::{
    CheckArgs, CheckError, CommonArgs, CompletionsArgs, DemoArgs, DemoError, ExplainArgs, ImageArgs, ImageError,
    ManArgs, ResizeArgs, ResizeError, SelftestCleanupArgs, WorkloadArgs,
};
use daemon::{logging, serve};

/// A Kubernetes container runtime that resizes pods in place.
#[derive(Debug, Parser)]
#[command(version, after_help = "`crisp check` is the first thing to run on a new machine, `crisp demo` the second.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon.
    Serve(CommonArgs),
    /// Tell what this host can and cannot do; with --live, prove it by a pod.
    Check(CheckArgs),
    /// Show a pod that is resized while it runs, through the daemon.
    Demo(DemoArgs),
    /// Show what a pod or container was asked to have, what was written, and what the kernel says.
    Explain(ExplainArgs),
    /// Change the resources of a container, or of several in a pod, in place, all of it or nothing.
    Resize(Box<ResizeArgs>),
    /// Look after images, whether a daemon runs or not.
    Image(ImageArgs),
    /// Print the settings that `serve` would use with the same options.
    Config(CommonArgs),
    /// Measure this or any other CRI runtime.
    Bench(bench::BenchArgs),
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Write manual pages.
    Man(ManArgs),
    /// What runs in the pods of `demo` and `check --live`.
    #[command(hide = true)]
    DemoWorkload(WorkloadArgs),
    /// Clears away after a `demo` or `check --live` that was killed.
    #[command(hide = true)]
    SelftestCleanup(SelftestCleanupArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not be set up yet, and an operator looks here first.
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
        .or_else(|| error.downcast_ref().map(ResizeError::exit_code));
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.verb {
        Verb::Serve(settings) => {
            let config = settings.load()?.resolve()?;
            let (level, spans) = logging::init(&config.log, config.tracing.clone())?;
            Ok(serve::serve(config, level, spans)?)
        }
        Verb::Check(args) => Ok(cli::check(args)?),
        Verb::Demo(args) => Ok(cli::demo(args)?),
        Verb::Explain(args) => Ok(cli::explain(args)?),
        Verb::Resize(args) => Ok(cli::resize(*args)?),
        Verb::Image(args) => Ok(cli::image(args)?),
        Verb::Config(settings) => {
            let raw = settings.load()?;
            write!(io::stdout(), "{}", toml::to_string(&raw)?)?;
            // What cannot be used is printed all the same, and then refused as `serve` would.
            raw.resolve()?;
            Ok(())
        }
        Verb::Bench(plan) => Ok(bench::bench(plan)?),
        Verb::Completions(args) => Ok(cli::completions(&args, Cli::command())?),
        Verb::Man(args) => Ok(cli::man(&args, Cli::command())?),
        Verb::DemoWorkload(args) => Ok(cli::run_workload(args)?),
        Verb::SelftestCleanup(args) => Ok(cli::selftest_cleanup(args)?),
    }
}
