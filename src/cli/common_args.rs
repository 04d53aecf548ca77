//! The configuration file and the options that override it, for all commands that read the
//! configuration.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use config::{ConfigError, InvalidSetting, Overrides, RawConfig};
use model::{ENDPOINT_VARIABLE, socket_path};

/// The configuration file, and options that override it.
#[derive(Debug, clap::Args)]
pub struct CommonArgs {
    /// Configuration file [default: /etc/crisp/crisp.toml, if it exists].
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// Socket of the daemon: a path or unix:///PATH [env: CONTAINER_RUNTIME_ENDPOINT].
    #[arg(long, global = true, value_name = "SOCKET", value_parser = OsStringValueParser::new().try_map(socket_path))]
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
        let listen = listen.map_or_else(endpoint_of_environment, |listen| Ok(Some(listen)))?;
        let overrides = Overrides { listen, root, state, log_level, log_format };
        RawConfig::load(config.as_deref(), overrides)
    }
}

/// Returns the socket that the environment names, if any; an empty variable names none.
fn endpoint_of_environment() -> Result<Option<PathBuf>, ConfigError> {
    let text = std::env::var_os(ENDPOINT_VARIABLE).filter(|text| !text.is_empty());
    let invalid =
        |error: model::InvalidSocket| InvalidSetting { key: ENDPOINT_VARIABLE.to_owned(), problem: error.to_string() };
    Ok(text.map(socket_path).transpose().map_err(invalid)?)
}
