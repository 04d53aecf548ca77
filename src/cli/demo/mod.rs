//! `crisp demo`: resizes a running pod, and shows the kernel's values before and after.

mod script;
mod workload;

use std::io::{self, Write as _};

use config::ConfigError;
use model::error_chain::chain;

use super::client::{CallError, ConnectError, Cri, call};
use super::common_args::CommonArgs;
use super::selftest::{Failed, Selftest, SelftestError, Steps};
use super::signals::Interrupt;
use super::verbose_info::{DaemonInfo, NotCrisp};
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
    Config(#[from] ConfigError),
    #[error("starting")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    NotCrisp(#[from] NotCrisp),
    #[error("{0}; run `crisp check` to see what this host is missing")]
    Failed(String),
    #[error("cleaning up: {0}")]
    Left(String),
    #[error("interrupted; pod and image were removed")]
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
    let config = args.settings.load()?;
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DemoError::Start)?;
    tokio.block_on(async {
        let cri = Cri::connect(&config.listen).await?;
        let ask = cri_api::v1::StatusRequest { verbose: true };
        let status = cri.runtime().status(ask).await.map_err(call("querying the daemon"))?.into_inner();
        let info: DaemonInfo = verbose_info::read(&status.info)?;
        let interrupt = Interrupt::note().map_err(DemoError::Start)?;
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
}
