//! `crisp demo`: resizes a running pod, and shows the kernel's values before and after.

mod script;
mod workload;

use std::io::{self, Write as _};

use config::RawConfig;
use model::error_chain::chain;

use super::client::{Cri, call};
use super::command::{self, CommandError};
use super::common_args::CommonArgs;
use super::selftest::{Failed, Selftest, SelftestError, Steps};
use super::signals::Interrupt;
use super::verbose_info::DaemonInfo;
use super::{signals, verbose_info};

pub use workload::{WorkloadArgs, run_workload};

/// Arguments of `crisp demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    #[command(flatten)]
    settings: CommonArgs,
}

#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{0}; run `crisp check` to see what this host is missing")]
    Failed(String),
    #[error("cleaning up after `crisp demo`: {0}")]
    Left(String),
    #[error("crisp demo was interrupted; its test pod and image were removed")]
    Interrupted,
}

impl DemoError {
    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => signals::EXIT_CODE,
            _ => 1,
        }
    }
}

/// Runs `crisp demo`.
pub fn demo(args: DemoArgs) -> Result<(), DemoError> {
    command::run(async {
        let (config, cri, info) = connect(args.settings).await?;
        let interrupt = Interrupt::note().map_err(CommandError::Start)?;
        writeln!(io::stdout(), "crisp {} on {}", info.release, config.listen.display()).ok();
        let begun = Selftest::begin(cri, &config.listen, &info.state, "demo").await;
        let selftest = begun.map_err(|error: SelftestError| DemoError::Failed(chain(&error)))?;
        let mut steps = Steps::new(interrupt, true);
        let shown = script::run_script(&selftest, &mut steps).await;
        let ended = selftest.end().await;
        match shown {
            Ok(()) => {}
            Err(Failed::Interrupted) => {
                return ended.map_err(|left| DemoError::Left(chain(&left))).and(Err(DemoError::Interrupted));
            }
            Err(failed) => return Err(DemoError::Failed(chain(&failed))),
        }
        ended.map_err(|left| DemoError::Left(chain(&left)))?;
        let next =
            "Next: `crisp check` for this host, `crisp resize --help` and `crisp explain --help` for your own pods.";
        writeln!(io::stdout(), "\nThe pod, its image and its logs were removed.\n{next}").ok();
        Ok(())
    })
    .map_err(CommandError::Start)?
}

async fn connect(settings: CommonArgs) -> Result<(RawConfig, Cri, DaemonInfo), CommandError> {
    let config = settings.load()?;
    let cri = Cri::connect(&config.listen).await?;
    let request = cri_api::v1::StatusRequest { verbose: true };
    let status = cri.runtime().status(request).await.map_err(call("querying the daemon"))?.into_inner();
    let info = verbose_info::read(&status.info)?;
    Ok((config, cri, info))
}
