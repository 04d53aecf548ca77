//! The daemon's settings: read from a file, overridden by the command line, checked.
//!
//! [`RawConfig`] is the file, key by key; [`Config`] is what the daemon works with. A key nobody knows, or a value that
//! cannot be, is refused by name before anything is done. While the daemon runs `ConfigReloader` looks at
//! the file again, and `RegistryReloader` at all files that say how registries are reached.
#![forbid(unsafe_code)]

mod file;
mod handlers;
mod network;
mod pinned_images;
mod registries;
mod registry_reload;
mod reload;
mod resolve;
mod stream_server;
mod tracing;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgroup::CgroupPath;
use model::pod_resources::QualifiedName;

pub use file::RawConfig;
pub use handlers::{Handler, Handlers, NoSuchHandler, Rlimit};
pub use network::{CniConfig, NetworkConfig, NetworkMode};
pub use pinned_images::PinnedImages;
pub use registry_reload::RegistryReloader;
pub use reload::{ConfigChange, ConfigReloader};
pub use resolve::DOWNLOADS_MAX;
pub use resolve::InvalidSetting;
pub use stream_server::{InvalidIdentity, StreamConfig, StreamIdentity};
pub use tracing::SAMPLE_ALL;
pub use tracing::TracingConfig;

/// Used where no file is named, if it exists.
pub const DEFAULT_FILE: &str = "/etc/crisp/crisp.toml";
/// The file with every setting, its default and an explanation.
pub const EXPLAINED: &str = include_str!("../../runtime-config/crisp.toml");

/// Settings that were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub listen: PathBuf,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// The numeric group of the socket; none: the daemon's own.
    pub socket_group: Option<u32>,
    pub root: PathBuf,
    pub state: PathBuf,
    pub log: LogConfig,
    pub cgroup: CgroupConfig,
    pub shim: PathBuf,
    pub handlers: Handlers,
    /// In bytes, for stdout and stderr together.
    pub exec_output_max: usize,
    /// In bytes, for all commands together.
    pub exec_output_total: usize,
    pub resources: ResourcesConfig,
    pub cdi: CdiConfig,
    pub stop: StopConfig,
    pub network: NetworkConfig,
    pub pinned: PinnedImages,
    pub pull: image::Limits,
    /// As they were at the start.
    pub registries: image::Registries,
    pub stream: StreamConfig,
    /// None: nobody is told.
    pub metrics: Option<MetricsListen>,
    /// None: no spans are recorded.
    pub tracing: Option<TracingConfig>,
    pub origin: Origin,
}

/// Where metrics are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsListen {
    /// An address of this machine alone.
    Loopback(SocketAddr),
    /// A socket for root alone.
    Socket(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// A level, or a list of them by part; known to parse.
    pub level: String,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupConfig {
    pub driver: CgroupDriver,
    /// Above the cgroups of pods that come without one.
    pub parent: CgroupPath,
    /// Whether the kernel is told to move processes between cgroups fast.
    pub favordynmods: bool,
}

/// Who makes cgroups, and how they are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// crisp itself, in the file system.
    Cgroupfs,
    /// systemd, asked over D-Bus.
    Systemd,
}

/// What happens to a wish for an OOM score that the daemon may not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomPolicy {
    /// Take the lowest score that is allowed, and warn.
    Restrict,
    /// Fail the request.
    Require,
}

/// What is made of the resources that are announced of a pod before its containers come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourcesConfig {
    pub mismatch: MismatchPolicy,
    /// The pod annotation that may announce them too; none: no annotation does.
    pub annotation: Option<QualifiedName>,
}

/// What happens to a container that is not as announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MismatchPolicy {
    /// Take it, and warn.
    Warn,
    /// Fail the request.
    Refuse,
}

/// Where CDI devices come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdiConfig {
    /// A later one outranks those before it.
    pub spec_dirs: Vec<PathBuf>,
    /// Whether annotations may ask for devices too.
    pub annotations: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopConfig {
    /// A longer grace period is cut to this.
    pub grace_max: Duration,
    /// How long a killed container may take to be gone.
    pub kill_wait: Duration,
}

/// What the command line says on top of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    pub listen: Option<PathBuf>,
    pub root: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub log_level: Option<String>,
    pub log_format: Option<String>,
}

/// Where settings came from, to look there again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file that was named; none: the default one, if it exists.
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

impl Origin {
    fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE))
    }
}

/// The settings could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading the configuration {}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("the configuration {} is refused in line {line}", file.display())]
    Parse { file: PathBuf, line: usize, source: toml::de::Error },
    #[error("the configuration cannot be used")]
    Invalid(#[from] InvalidSetting),
}

impl RawConfig {
    /// Reads `file`, or the default one where none is named and it exists, and lays `overrides` over it.
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<Self, ConfigError> {
        let mut raw = match file {
            Some(file) => Self::read(file)?,
            None => match Self::read(Path::new(DEFAULT_FILE)) {
                Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Self::default(),
                other => other?,
            },
        };
        raw.origin = Origin { file: file.map(Path::to_owned), overrides: overrides.clone() };
        let Overrides { listen, root, state, log_level, log_format } = overrides;
        raw.listen = listen.unwrap_or(raw.listen);
        raw.root = root.unwrap_or(raw.root);
        raw.state = state.unwrap_or(raw.state);
        raw.log.level = log_level.unwrap_or(raw.log.level);
        raw.log.format = log_format.unwrap_or(raw.log.format);
        Ok(raw)
    }

    fn read(file: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(file).map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        toml::from_str(&text).map_err(|mut source: toml::de::Error| {
            let before = source.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            // It would show the line itself, which may hold what no log should.
            source.set_input(None);
            ConfigError::Parse { file: file.to_owned(), line, source }
        })
    }

    /// Checks every value.
    pub fn resolve(self) -> Result<Config, ConfigError> {
        Ok(resolve::resolve(self)?)
    }
}

#[cfg(test)]
mod tests;
