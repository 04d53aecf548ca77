//! Checks the settings of a file and converts them to those that the daemon uses.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::CgroupPath;
use model::pod_resources::InvalidName;

use super::file::{RawCdi, RawCgroup, RawConfig, RawImage, RawLog, RawResources, RawShim, RawStop};
use super::{
    CdiConfig, CgroupConfig, CgroupDriver, Config, LogConfig, LogFormat, MetricsListen, MismatchPolicy, PinnedImages,
    ResourcesConfig, StopConfig, handlers, log_level, metrics, network, registries, stream_server, tracing,
};

/// A setting with an invalid value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct InvalidSetting {
    pub key: String,
    pub problem: String,
}

pub(super) fn invalid(key: &str, problem: impl Display) -> InvalidSetting {
    InvalidSetting { key: key.to_owned(), problem: problem.to_string() }
}

/// The largest value of `image.downloads`; each download has a task, a connection and a thread.
pub const DOWNLOADS_MAX: usize = 64;
/// The kernel's limit for the path of a Unix socket in bytes, without the terminating NUL.
const SOCKET_PATH_MAX: usize = 107;
const SHIM: &str = "crisp-shim";

pub(super) fn resolve(raw: RawConfig) -> Result<Config, InvalidSetting> {
    let RawConfig {
        listen,
        socket_mode,
        socket_group,
        root,
        state,
        log,
        cgroup,
        shim: RawShim { path: shim },
        container,
        resources,
        cdi,
        stop,
        network,
        image,
        stream,
        metrics,
        tracing,
        handlers,
        registries,
        origin,
    } = raw;
    let listen = socket("listen", listen)?;
    let (metrics_files, metrics) = (metrics::files(&metrics), metrics::resolve(&metrics)?);
    if metrics.as_ref().is_some_and(|metrics| metrics.listen == MetricsListen::Socket(listen.clone())) {
        return Err(invalid("metrics.listen", "must differ from listen"));
    }
    let (root, state) = (absolute("root", root)?, absolute("state", state)?);
    if root.starts_with(&state) || state.starts_with(&root) {
        return Err(invalid("state", format_args!("{} and root must not contain each other", state.display())));
    }
    Ok(Config {
        socket_mode: mode(&socket_mode)?,
        socket_group: group(&socket_group)?,
        listen,
        root,
        state,
        log: log_config(log)?,
        cgroup: cgroup_config(cgroup)?,
        shim: shim_path(shim)?,
        exec_output_max: usize::try_from(container.exec_output_max)
            .map_err(|e| invalid("container.exec_output_max", e))?,
        exec_output_total: usize::try_from(container.exec_output_total)
            .map_err(|e| invalid("container.exec_output_total", e))?,
        handlers: handlers::resolve(&container, handlers)?,
        resources: resources_config(&resources)?,
        cdi: cdi_config(cdi)?,
        stop: stop_config(&stop)?,
        network: network::resolve(network)?,
        pull: pull_limits(&image)?,
        registries: registries::resolve(&image, &registries)?,
        pinned: PinnedImages::parse(&image.pinned)?,
        stream: stream_server::resolve(&stream)?,
        metrics,
        metrics_files,
        tracing: tracing::resolve(tracing)?,
        origin,
    })
}

/// Accepts a path or `unix:///PATH`, and returns the path.
pub(super) fn socket_path(key: &str, text: PathBuf) -> Result<PathBuf, InvalidSetting> {
    model::socket_path(text).map_err(|error| invalid(key, error))
}

/// Checks the path of a Unix socket.
pub(super) fn socket(key: &str, path: PathBuf) -> Result<PathBuf, InvalidSetting> {
    let path = socket_path(key, path)?;
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(invalid(key, format_args!("must be at most {SOCKET_PATH_MAX} bytes")));
    }
    absolute(key, path)
}

fn pull_limits(image: &RawImage) -> Result<image::Limits, InvalidSetting> {
    /// In seconds: one day.
    const STALL_MAX: u64 = 86_400;
    let &RawImage { pinned: _, search: _, credentials: _, downloads, pull_memory, stall_timeout } = image;
    let downloads = at_least("image.downloads", downloads, 1)?;
    let stall = at_least("image.stall_timeout", stall_timeout, 1)?;
    if downloads > DOWNLOADS_MAX {
        return Err(invalid("image.downloads", format_args!("must be at most {DOWNLOADS_MAX}, got {downloads}")));
    }
    if stall > STALL_MAX {
        return Err(invalid("image.stall_timeout", format_args!("must be at most {STALL_MAX}, got {stall}")));
    }
    Ok(image::Limits {
        downloads,
        memory_bytes: at_least("image.pull_memory", pull_memory, 16 << 20)?,
        stall: Duration::from_secs(stall),
        ..image::Limits::default()
    })
}

pub(super) fn absolute(key: &str, path: PathBuf) -> Result<PathBuf, InvalidSetting> {
    let climbs = path.components().any(|part| part == std::path::Component::ParentDir);
    if !path.is_absolute() {
        Err(invalid(key, format_args!("must be an absolute path, got {path:?}")))
    } else if climbs || path.parent().is_none() {
        Err(invalid(key, format_args!("must be a path below / without \"..\", got {path:?}")))
    } else {
        Ok(path)
    }
}

pub(super) fn at_least<T: PartialOrd + Display>(key: &str, value: T, least: T) -> Result<T, InvalidSetting> {
    if value < least { Err(invalid(key, format_args!("must be at least {least}, got {value}"))) } else { Ok(value) }
}

fn mode(text: &str) -> Result<u32, InvalidSetting> {
    let key = "socket_mode";
    let mode = u32::from_str_radix(text, 8)
        .map_err(|_| invalid(key, format_args!("must be an octal number, got {text:?}")))?;
    if mode > 0o777 {
        Err(invalid(key, format_args!("must have permission bits only (at most 0777), got {text:?}")))
    } else if mode & 0o600 != 0o600 {
        Err(invalid(key, format_args!("must let the owner read and write (0600), got {text:?}")))
    } else if mode & 0o007 != 0 {
        Err(invalid(key, format_args!("{text:?} would give every user of the node root access: use socket_group")))
    } else {
        Ok(mode)
    }
}

fn group(text: &str) -> Result<Option<u32>, InvalidSetting> {
    let key = "socket_group";
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(number) = text.parse() {
        return Ok(Some(number));
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(Some(group.gid.as_raw())),
        Ok(None) => Err(invalid(key, format_args!("group {text:?} not found"))),
        Err(errno) => Err(invalid(key, format_args!("looking up group {text:?}: {errno}"))),
    }
}

fn log_config(RawLog { level, format }: RawLog) -> Result<LogConfig, InvalidSetting> {
    let level = log_level::parse(&level).map_err(|problem| invalid("log.level", problem))?;
    let format = match format.as_str() {
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        other => return Err(invalid("log.format", format_args!("must be \"text\" or \"json\", got {other:?}"))),
    };
    Ok(LogConfig { level, format })
}

fn cgroup_config(RawCgroup { driver, parent, favordynmods }: RawCgroup) -> Result<CgroupConfig, InvalidSetting> {
    let driver = match driver.as_str() {
        "cgroupfs" => CgroupDriver::Cgroupfs,
        "systemd" => CgroupDriver::Systemd,
        other => {
            let problem = format_args!("must be \"cgroupfs\" or \"systemd\", got {other:?}");
            return Err(invalid("cgroup.driver", problem));
        }
    };
    let parent = match (parent.as_str(), driver) {
        ("", CgroupDriver::Cgroupfs) => CgroupPath::new("/crisp"),
        ("", CgroupDriver::Systemd) => CgroupPath::new("/crisp.slice"),
        (parent, CgroupDriver::Cgroupfs) => CgroupPath::new(parent),
        (parent, CgroupDriver::Systemd) => CgroupPath::new(parent).and_then(|parent| cgroup::slice(&parent)),
    };
    let parent = parent.and_then(CgroupPath::refuse_kernel_files).map_err(|e| invalid("cgroup.parent", e))?;
    let favordynmods = match favordynmods.as_str() {
        "auto" => cgroup::favordynmods_is_free(&rustix::system::uname().release().to_string_lossy()),
        "off" => false,
        other => {
            let problem = format_args!("must be \"auto\" or \"off\", got {other:?}");
            return Err(invalid("cgroup.favordynmods", problem));
        }
    };
    Ok(CgroupConfig { driver, parent, favordynmods })
}

/// Returns the configured shim, else the one in the directory of this program, else the one in PATH.
fn shim_path(named: PathBuf) -> Result<PathBuf, InvalidSetting> {
    let key = "shim.path";
    if !named.as_os_str().is_empty() {
        let named = absolute(key, named)?;
        return if named.is_file() { Ok(named) } else { Err(invalid(key, format_args!("file {named:?} not found"))) };
    }
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(SHIM)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(std::env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(SHIM)))
        .find(|candidate| is_program(candidate))
        .ok_or_else(|| invalid(key, format_args!("{SHIM} not found in the directory of this program or in PATH")))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn resources_config(RawResources { mismatch, annotation }: &RawResources) -> Result<ResourcesConfig, InvalidSetting> {
    let mismatch = match mismatch.as_str() {
        "warn" => MismatchPolicy::Warn,
        "refuse" => MismatchPolicy::Refuse,
        other => {
            let problem = format_args!("must be \"warn\" or \"refuse\", got {other:?}");
            return Err(invalid("resources.mismatch", problem));
        }
    };
    let annotation = match annotation.as_str() {
        "" => None,
        name => Some(name.parse().map_err(|e: InvalidName| invalid("resources.annotation", e))?),
    };
    Ok(ResourcesConfig { mismatch, annotation })
}

fn cdi_config(RawCdi { spec_dirs, annotations }: RawCdi) -> Result<CdiConfig, InvalidSetting> {
    let spec_dirs = spec_dirs.into_iter().map(|dir| absolute("cdi.spec_dirs", dir)).collect::<Result<_, _>>()?;
    Ok(CdiConfig { spec_dirs, annotations })
}

fn stop_config(&RawStop { grace_max, kill_wait }: &RawStop) -> Result<StopConfig, InvalidSetting> {
    /// In seconds: 100 years. Adding more to a clock's time may overflow.
    const LONGEST: u64 = 100 * 366 * 86_400;
    for (key, seconds) in [("stop.grace_max", grace_max), ("stop.kill_wait", kill_wait)] {
        if seconds > LONGEST {
            return Err(invalid(key, format_args!("must be at most {LONGEST}, got {seconds}")));
        }
    }
    let kill_wait = at_least("stop.kill_wait", kill_wait, 1)?;
    Ok(StopConfig { grace_max: Duration::from_secs(grace_max), kill_wait: Duration::from_secs(kill_wait) })
}
