//! `crisp`: the daemon and what an operator does beside it.
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use crisp::config::{Overrides, RawConfig};
use crisp::{bench, logging, offline, serve};

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
    /// Measure the life of pods, with this or any other CRI runtime.
    Bench(bench::Plan),
    /// Look after images while no daemon runs.
    #[command(subcommand)]
    Image(ImageVerb),
}

#[derive(Debug, Subcommand)]
enum ImageVerb {
    /// Put the images of an OCI layout or docker archive into the store.
    Import {
        file: PathBuf,
        /// The name of the only image in the file, instead of what the file says.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        settings: Settings,
    },
    /// List the images of the store.
    Ls(Settings),
}

#[derive(Debug, Args)]
struct Settings {
    /// The configuration file [default: /etc/crisp/crisp.toml, if it exists].
    #[arg(long)]
    config: Option<PathBuf>,
    /// The socket to listen on.
    #[arg(long)]
    listen: Option<PathBuf>,
    /// The directory of images and layers.
    #[arg(long)]
    root: Option<PathBuf>,
    /// The directory of what runs.
    #[arg(long)]
    state: Option<PathBuf>,
    /// The least level that is logged: error, warn, info, debug, trace, also by part.
    #[arg(long)]
    log_level: Option<String>,
    /// How the log is written: text or json.
    #[arg(long)]
    log_format: Option<String>,
}

impl Settings {
    fn load(self) -> anyhow::Result<RawConfig> {
        let Self { config, listen, root, state, log_level, log_format } = self;
        let overrides = Overrides { listen, root, state, log_level, log_format };
        Ok(RawConfig::load(config.as_deref(), overrides)?)
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not be set up yet, and an operator looks here first.
            writeln!(io::stderr(), "crisp: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.verb {
        Verb::Serve(settings) => {
            let config = settings.load()?.resolve()?;
            logging::init(&config.log)?;
            Ok(serve::serve(config)?)
        }
        Verb::Config(settings) => {
            let raw = settings.load()?;
            write!(io::stdout(), "{}", toml::to_string(&raw)?)?;
            // What cannot be used is printed all the same, and then refused as `serve` would.
            raw.resolve()?;
            Ok(())
        }
        Verb::Bench(plan) => Ok(bench::bench(plan)?),
        Verb::Image(ImageVerb::Import { file, name, settings }) => {
            let root = settings.load()?.root;
            show(&offline::import(&root, &file, name.as_deref())?)
        }
        Verb::Image(ImageVerb::Ls(settings)) => show(&offline::list(&settings.load()?.root)?),
    }
}

/// One line for each image: its id, size and names.
fn show(images: &[std::sync::Arc<image::Image>]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for image in images {
        let names = image.repo_tags.iter().chain(&image.repo_digests).map(String::as_str);
        writeln!(out, "{} {} {}", image.id, image.size, names.collect::<Vec<_>>().join(" "))?;
    }
    Ok(())
}
