//! Sets up the daemon's log on stderr, as text or JSON.

use std::io::{self, IsTerminal as _};

use config::{LogConfig, LogFormat, TracingConfig};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt as lines, reload};

use crate::otel::{RecordingLayer, Spans};

/// A log that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("invalid setting log.level")]
    Level(#[from] tracing_subscriber::filter::ParseError),
    #[error("initializing the daemon's log")]
    Init(#[from] tracing_subscriber::util::TryInitError),
    #[error("changing the level of the daemon's log")]
    Reload(#[from] reload::Error),
}

/// Changes the level of the running log.
#[derive(Debug)]
pub struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    pub(crate) fn set(&self, level: &str) -> Result<(), LoggingError> {
        Ok(self.0.reload(EnvFilter::try_new(filter(level))?)?)
    }
}

/// Sets up the log of this process, once, and the spans of requests if tracing is configured. Spans
/// do not depend on the log level.
pub fn init(config: &LogConfig, tracing: Option<TracingConfig>) -> Result<(LogLevel, Option<Spans>), LoggingError> {
    let (filter, level) = reload::Layer::new(EnvFilter::try_new(filter(&config.level))?);
    let log = lines::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let log = match config.format {
        LogFormat::Text => log.boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    let (recorder, spans) = tracing.map(Spans::new).unzip();
    let recorder = recorder.map(|recorder| recorder.with_filter(RecordingLayer::filter(&CRATES)));
    tracing_subscriber::registry().with(log.with_filter(filter)).with(recorder).try_init()?;
    Ok((LogLevel(level), spans))
}

/// The crates of crisp that log in the daemon.
const CRATES: [&str; 7] = ["cgroup", "config", "daemon", "image", "net", "oci", "security"];

/// Returns the filter for a level: debug and trace apply to crisp's crates only, because libraries
/// log every frame and handshake.
fn filter(level: &str) -> String {
    match level.to_ascii_lowercase().as_str() {
        verbose @ ("debug" | "trace") => {
            CRATES.iter().fold("info".to_owned(), |filter, name| format!("{filter},{name}={verbose}"))
        }
        _ => level.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_applies_to_crisp_only_and_a_list_is_used_unchanged() {
        assert_eq!(
            filter("Debug"),
            "info,cgroup=debug,config=debug,daemon=debug,image=debug,net=debug,oci=debug,security=debug"
        );
        assert_eq!(filter("warn"), "warn");
        assert_eq!(filter("debug,h2=trace"), "debug,h2=trace");
    }
}
