//! Where the daemon's log goes: to stderr, as text or as JSON.

use std::fmt;
use std::io::{self, IsTerminal as _};

use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

use crate::config::{LogConfig, LogFormat};

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("log.level")]
    Level(#[from] tracing_subscriber::filter::ParseError),
    #[error("setting up the log")]
    Init(#[from] tracing_subscriber::util::TryInitError),
    #[error("changing the level of the log")]
    Reload(#[from] reload::Error),
}

/// Sets the level of a log that runs.
pub struct LogLevel(Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>);

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLevel").finish_non_exhaustive()
    }
}

impl LogLevel {
    pub(crate) fn set(&self, level: &str) -> Result<(), LoggingError> {
        Ok((self.0)(EnvFilter::try_new(filter(level))?)?)
    }
}

/// Sets up the log of this process, once.
pub fn init(config: &LogConfig) -> Result<LogLevel, LoggingError> {
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter(&config.level))?)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    Ok(match config.format {
        LogFormat::Text => {
            let log = log.with_filter_reloading();
            let level = log.reload_handle();
            log.finish().try_init()?;
            LogLevel(Box::new(move |filter| level.reload(filter)))
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_filter_reloading();
            let level = log.reload_handle();
            log.finish().try_init()?;
            LogLevel(Box::new(move |filter| level.reload(filter)))
        }
    })
}

/// A level alone is about crisp's own parts: the libraries below it would drown them in frames and handshakes.
fn filter(level: &str) -> String {
    match level.to_ascii_lowercase().as_str() {
        talkative @ ("debug" | "trace") => format!("info,crisp={talkative},image={talkative},cgroup={talkative}"),
        _ => level.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_alone_keeps_the_libraries_quiet_and_a_list_is_taken_as_it_is() {
        assert_eq!(filter("Debug"), "info,crisp=debug,image=debug,cgroup=debug");
        assert_eq!(filter("warn"), "warn");
        assert_eq!(filter("debug,h2=trace"), "debug,h2=trace");
    }
}
