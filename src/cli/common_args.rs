//! Options that every command has.

use std::path::PathBuf;

use config::{ConfigError, Overrides, RawConfig};

/// The configuration file, and options that override it.
#[derive(Debug, clap::Args)]
pub struct CommonArgs {
    /// Configuration file [default: /etc/crisp/crisp.toml, if it exists].
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// Path of the daemon's socket.
    #[arg(long, global = true)]
    listen: Option<PathBuf>,
    /// Directory for images and layers.
    #[arg(long, global = true)]
    root: Option<PathBuf>,
    /// Runtime state directory (pods, containers); use a tmpfs.
    #[arg(long, global = true)]
    state: Option<PathBuf>,
    /// Minimum log level (error, warn, info, debug, trace), optionally per module: `info,h2=debug`.
    #[arg(long, global = true)]
    log_level: Option<String>,
    /// Log format: text or json.
    #[arg(long, global = true)]
    log_format: Option<String>,
}

impl CommonArgs {
    /// Reads the configuration file and applies the options.
    pub fn load(self) -> Result<RawConfig, ConfigError> {
        let Self { config, listen, root, state, log_level, log_format } = self;
        let overrides = Overrides { listen, root, state, log_level, log_format };
        RawConfig::load(config.as_deref(), overrides)
    }
}
