//! `crisp check`: checks by trial whether this host can run pods, and prints a hint for each problem.
//!
//! The host is not changed: mounts are detached, networks are created in temporary network
//! namespaces, and temporary directories are removed. With `--live`, a test pod is run through the
//! daemon instead.

mod cgroups;
mod daemon;
mod devices;
mod finding;
mod limits;
mod live;
mod network;
mod print;
mod security;
mod storage;

use std::path::Path;

use config::{Config, DEFAULT_FILE, RawConfig};
use finding::Finding;
use model::error_chain::chain;

use super::client::Cri;
use super::command::{self, CommandError};
use super::common_args::CommonArgs;
use super::selftest::{Failed, Selftest, Steps};
use super::signals;
use super::signals::Interrupt;

/// Arguments of `crisp check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    settings: CommonArgs,
    /// Run a test pod through the daemon instead: image, create, start, exec, logs, stats, resize, stop, remove.
    ///
    /// The image is built from crisp itself, no registry is needed. Pod and image are removed afterwards in any case.
    #[arg(long)]
    live: bool,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("pods cannot run on this host: {0}")]
    CannotRun(String),
    #[error("not root: this program runs as user {0}, which cannot check this host; run it as root")]
    NotRoot(u32),
    #[error("{0}")]
    Failed(String),
    #[error("crisp check was interrupted; its test pod and image were removed")]
    Interrupted,
}

impl CheckError {
    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => signals::EXIT_CODE,
            _ => 1,
        }
    }
}

/// Runs `crisp check`.
pub fn check(args: CheckArgs) -> Result<(), CheckError> {
    let CheckArgs { settings, live, json } = args;
    command::run(async { if live { check_live(settings, json).await } else { check_host(settings, json).await } })
        .map_err(CommandError::Start)?
}

async fn check_host(settings: CommonArgs, json: bool) -> Result<(), CheckError> {
    let mut found = Vec::new();
    let loaded = settings.load().and_then(|raw| {
        let file = origin(&raw);
        Ok((file, raw.resolve()?))
    });
    match loaded {
        Ok((file, config)) => {
            found.push(Finding::ok("configuration", "file", file));
            found.extend(all(&config).await);
        }
        Err(error) => {
            let hint =
                "fix the file: runtime-config/crisp.toml lists every setting, `crisp config` prints the current ones";
            found.push(Finding::missing("configuration", "file", chain(&error), hint).essential());
        }
    }
    print::findings(&found, json).map_err(CommandError::Print)?;
    match found.iter().find(|one| one.essential && one.level == finding::Level::Missing) {
        None => Ok(()),
        // A user other than root cannot see everything: it is unknown, not missing.
        Some(_) if !rustix::process::geteuid().is_root() => {
            Err(CheckError::NotRoot(rustix::process::geteuid().as_raw()))
        }
        Some(lacking) => Err(CheckError::CannotRun(format!("{} {}: {}", lacking.topic, lacking.name, lacking.what))),
    }
}

fn origin(raw: &RawConfig) -> String {
    match &raw.origin.file {
        Some(file) => file.display().to_string(),
        None if Path::new(DEFAULT_FILE).exists() => DEFAULT_FILE.to_owned(),
        None => format!("none ({DEFAULT_FILE} not found), using defaults"),
    }
}

async fn all(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let daemon = daemon::check(&config.listen).await;
    let pid = daemon.as_ref().map_or_else(|_| std::process::id(), |answer| answer.pid);
    found.extend(limits::check(pid, daemon.is_ok()));
    found.extend(cgroups::check(&config.cgroup));
    found.extend(storage::check(config).await);
    found.extend(security::check(pid));
    found.extend(network::check(&config.network).await);
    found.push(devices::check(&config.cdi));
    match daemon {
        Ok(answer) => found.extend(daemon::judge_peer(&answer, config)),
        Err(finding) => found.push(finding),
    }
    found
}

async fn check_live(settings: CommonArgs, json: bool) -> Result<(), CheckError> {
    let config = settings.load().map_err(CommandError::from)?;
    let interrupt = Interrupt::note().map_err(CommandError::Start)?;
    let cri = Cri::connect(&config.listen).await.map_err(CommandError::from)?;
    let mut steps = Steps::new(interrupt, !json);
    let proved = check_live_with(&cri, &config, &mut steps).await;
    print::steps(steps.records(), json, &proved.as_ref().err().map(chain_of)).map_err(CommandError::Print)?;
    match proved {
        Ok(()) => Ok(()),
        Err(Failed::Interrupted) => Err(CheckError::Interrupted),
        Err(failed) => Err(CheckError::Failed(chain_of(&failed))),
    }
}

fn chain_of(failed: &Failed) -> String {
    chain(failed)
}

async fn check_live_with(cri: &Cri, config: &RawConfig, steps: &mut Steps) -> Result<(), Failed> {
    let info = live::daemon(cri, steps).await?;
    let begun = Selftest::begin(cri.clone(), &config.listen, &info.state, "check").await;
    let selftest = begun.map_err(|source| Failed::Step { step: "begin", source })?;
    let proved = live::run(&selftest, steps).await;
    let cleared = selftest.end().await.map_err(|source| Failed::Step { step: "clear away", source });
    proved.and(cleared)
}
