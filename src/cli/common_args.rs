//! Options that every verb has.

use std::path::PathBuf;

use config::{ConfigError, Overrides, RawConfig};

/// Where the settings are, and those that differ from them.
#[derive(Debug, clap::Args)]
pub struct CommonArgs {
    /// The configuration file [default: /etc/crisp/crisp.toml, if it exists].
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// The daemon's socket.
    #[arg(long, global = true)]
    listen: Option<PathBuf>,
    /// The directory of images and layers.
    #[arg(long, global = true)]
    root: Option<PathBuf>,
    /// The directory of what runs.
    #[arg(long, global = true)]
    state: Option<PathBuf>,
    /// The least level that is logged: error, warn, info, debug, trace, also by part.
    #[arg(long, global = true)]
    log_level: Option<String>,
    /// How the log is written: text or json.
    #[arg(long, global = true)]
    log_format: Option<String>,
}

impl CommonArgs {
    /// The settings that result.
    pub fn load(self) -> Result<RawConfig, ConfigError> {
        let Self { config, listen, root, state, log_level, log_format } = self;
        let overrides = Overrides { listen, root, state, log_level, log_format };
        RawConfig::load(config.as_deref(), overrides)
    }
}
