//! `crisp`: the daemon and what an operator does beside it.
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use crisp::cli::{self, ImageArgs, ImageError, Settings};
use crisp::{bench, logging, serve};

/// A Kubernetes container runtime that resizes pods in place.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon.
    Serve(Settings),
    /// Print the settings that `serve` would use with the same options.
    Config(Settings),
    Bench(bench::Plan),
    /// Look after images, whether a daemon runs or not.
    Image(ImageArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not be set up yet, and an operator looks here first.
            writeln!(io::stderr(), "crisp: {error:#}").ok();
            error.downcast_ref().map_or(ExitCode::FAILURE, |error: &ImageError| ExitCode::from(error.exit_code()))
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.verb {
        Verb::Serve(settings) => {
            let config = settings.load()?.resolve()?;
            let level = logging::init(&config.log)?;
            Ok(serve::serve(config, level)?)
        }
        Verb::Config(settings) => {
            let raw = settings.load()?;
            write!(io::stdout(), "{}", toml::to_string(&raw)?)?;
            // What cannot be used is printed all the same, and then refused as `serve` would.
            raw.resolve()?;
            Ok(())
        }
        Verb::Bench(plan) => Ok(bench::bench(plan)?),
        Verb::Image(args) => Ok(cli::image(args)?),
    }
}
