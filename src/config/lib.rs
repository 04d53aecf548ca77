//! Reads the daemon's settings from a file, applies the command line over them and checks them.
//!
//! [`RawConfig`] has the keys and values of the file; [`Config`] has the checked values that the
//! daemon uses. An unknown key or an invalid value is rejected with its name before any setting
//! takes effect. While the daemon runs, `ConfigReloader` reloads the file, and `RegistryReloader`
//! reloads the settings of registries with all files that they name.
#![forbid(unsafe_code)]

mod file;
mod handlers;
mod log_level;
mod metrics;
mod network;
mod pinned_images;
mod registries;
mod registry_reload;
mod reload;
mod resize_notice;
mod resolve;
mod stream_server;
mod tracing;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::CgroupPath;
use model::pod_resources::QualifiedName;

pub use file::RawConfig;
pub use handlers::{Handler, Handlers, NoSuchHandler, Rlimit};
pub use metrics::{BearerToken, MetricsAccess, MetricsConfig, MetricsListen};
pub use network::{CniConfig, NetworkConfig, NetworkMode};
pub use pinned_images::PinnedImages;
pub use registry_reload::RegistryReloader;
pub use reload::{ConfigChange, ConfigReloader};
pub use resize_notice::{AllowedNotices, NoticeNotAllowed, SelectedNotices};
pub use resolve::DOWNLOADS_MAX;
pub use resolve::InvalidSetting;
pub use stream_server::{InvalidIdentity, ServerIdentity, StreamConfig};
pub use tracing::SAMPLE_ALL;
pub use tracing::TracingConfig;

/// The file that is read, if it exists, when the command line names none.
pub const DEFAULT_FILE: &str = "/etc/crisp/crisp.toml";
/// The text of the example file: every setting with its default and an explanation.
pub const EXPLAINED: &str = include_str!("../../runtime-config/crisp.toml");

/// The checked settings of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub listen: PathBuf,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// The numeric group of the socket; `None`: the daemon's own.
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
    /// The settings of registries at the start of the daemon.
    pub registries: image::Registries,
    pub stream: StreamConfig,
    /// `None`: metrics are not served.
    pub metrics: Option<MetricsConfig>,
    /// The certificate, key and token of the metrics endpoint.
    pub metrics_files: Vec<PathBuf>,
    /// `None`: no spans are recorded.
    pub tracing: Option<TracingConfig>,
    pub origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// A level, or a list of levels by module; checked to be valid for `EnvFilter`.
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
    /// Parent cgroup of pods created without a `cgroup_parent`.
    pub parent: CgroupPath,
    /// Whether cgroups are mounted with favordynmods.
    pub favordynmods: bool,
}

/// The component that creates cgroups; it also decides the form of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// crisp creates cgroups in the file system.
    Cgroupfs,
    /// systemd creates cgroups, on requests over D-Bus.
    Systemd,
}

/// The reaction to a requested oom_score_adj that the daemon may not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomPolicy {
    /// Use the lowest value that is allowed, and log a warning.
    Restrict,
    /// Fail the request.
    Require,
}

/// Settings for the pod resources that RunPodSandbox declares (KEP-4112).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourcesConfig {
    pub mismatch: MismatchPolicy,
    /// The pod annotation that may declare them too; `None`: no annotation is read.
    pub annotation: Option<QualifiedName>,
}

/// The reaction to a container that differs from its declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MismatchPolicy {
    /// Create it, and log a warning.
    Warn,
    /// Fail the request.
    Refuse,
}

/// The sources of CDI devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdiConfig {
    /// A later directory overrides those before it.
    pub spec_dirs: Vec<PathBuf>,
    /// Whether container annotations may request devices too.
    pub annotations: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopConfig {
    /// A longer grace period is reduced to this.
    pub grace_max: Duration,
    /// The time that a container may take to exit after SIGKILL.
    pub kill_wait: Duration,
}

/// Settings from the command line, which override the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    pub listen: Option<PathBuf>,
    pub root: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub log_level: Option<String>,
    pub log_format: Option<String>,
}

/// The file and command line of the settings, needed to reload them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file that the command line names; `None`: the default one, if it exists.
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
}

impl Origin {
    fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE))
    }
}

/// A failure to read or check the settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading configuration {}", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("reading configuration {}: not a regular file", file.display())]
    NotAFile { file: PathBuf },
    #[error("reading configuration {}: longer than {FILE_MAX} bytes", file.display())]
    TooLong { file: PathBuf },
    #[error("invalid configuration {}:{line}", file.display())]
    Parse { file: PathBuf, line: usize, source: toml::de::Error },
    #[error("invalid configuration")]
    Invalid(#[from] InvalidSetting),
}

/// The maximum size of the configuration file in bytes.
const FILE_MAX: u64 = 4 << 20;

impl RawConfig {
    /// Reads `file`, or the default file if `file` is `None` and it exists, and applies `overrides`.
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
        raw.listen = resolve::socket_path("listen", listen.unwrap_or(raw.listen))?;
        raw.root = root.unwrap_or(raw.root);
        raw.state = state.unwrap_or(raw.state);
        raw.log.level = log_level.unwrap_or(raw.log.level);
        raw.log.format = log_format.unwrap_or(raw.log.format);
        Ok(raw)
    }

    fn read(file: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { file: file.to_owned(), source };
        let mut text = String::new();
        // A device such as /dev/zero has no end.
        File::open(file).and_then(|open| open.take(FILE_MAX + 1).read_to_string(&mut text)).map_err(failed)?;
        if text.len() > usize::try_from(FILE_MAX).unwrap_or(usize::MAX) {
            return Err(ConfigError::TooLong { file: file.to_owned() });
        }
        toml::from_str(&text).map_err(|mut source: toml::de::Error| {
            let before = source.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            // Its message would quote the line, which may contain a secret.
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
