//! Runtime handlers: named sets of settings that a RuntimeClass selects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};
use oci_spec::runtime::{Capabilities, PosixRlimitType};
use security::seccomp;

use super::OomPolicy;
use super::file::{RawContainer, RawHandler};
use super::resize_notice::AllowedNotices;
use super::resolve::{InvalidSetting, absolute, at_least, invalid};

/// The name of the default handler; the empty name means the same.
const DEFAULT: &str = "crisp";

/// In bytes per second. A smaller value is probably in the wrong unit.
const LOG_RATE_MIN: u64 = 4096;

/// Settings for the containers of a pod, used where the request does not decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// Whether a pod may be privileged.
    pub privileged: bool,
    /// The seccomp profile for `RuntimeDefault`; `None`: crisp's built-in profile.
    pub seccomp: Option<PathBuf>,
    /// The AppArmor profile for `RuntimeDefault`; `None`: crisp's own, crisp-default.
    pub apparmor: Option<String>,
    /// Whether pods have SELinux labels, on hosts that have SELinux.
    pub selinux: bool,
    /// The capabilities of a container, unless its request changes them.
    pub capabilities: Capabilities,
    pub rlimits: Vec<Rlimit>,
    /// In bytes.
    pub log_line_max: u32,
    /// The rate at which a container's log is written, in bytes per second; 0: no limit.
    pub log_rate_max: u64,
    /// In bytes.
    pub shm_size: u64,
    pub oom_score_adj: OomPolicy,
    /// The notices of a resize that a pod may select for its containers.
    pub resize_notices: AllowedNotices,
}

/// A kernel limit for each process (setrlimit(2)); `u64::MAX` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    pub kind: PosixRlimitType,
    pub soft: u64,
    pub hard: u64,
}

/// All handlers that a request may select.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handlers {
    default: Handler,
    named: BTreeMap<String, Handler>,
}

/// A request for a handler that is not configured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("runtime handler {name:?} not found: must be one of {known}, or empty for \"crisp\"")]
pub struct NoSuchHandler {
    name: String,
    known: String,
}

impl ErrorClass for NoSuchHandler {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

impl Handlers {
    /// Returns the handler of a pod that names none.
    pub fn default_one(&self) -> &Handler {
        &self.default
    }

    pub fn get(&self, name: &str) -> Option<&Handler> {
        match name {
            "" | DEFAULT => Some(&self.default),
            other => self.named.get(other),
        }
    }

    /// Returns the handler `name`, which is the value of `field` in a request.
    pub fn for_field(&self, name: &str) -> Result<&Handler, NoSuchHandler> {
        let missing = || {
            let known: Vec<String> = self.names().filter(|name| !name.is_empty()).map(|n| format!("{n:?}")).collect();
            NoSuchHandler { name: name.to_owned(), known: known.join(", ") }
        };
        self.get(name).ok_or_else(missing)
    }

    /// Iterates over all names, beginning with the empty one.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        ["", DEFAULT].into_iter().chain(self.named.keys().map(String::as_str))
    }
}

#[cfg(any(test, feature = "test-support"))]
impl Handlers {
    /// Creates handlers with the default settings under these names, in addition to the default one.
    pub fn of(names: &[&str]) -> Self {
        let named = names.iter().map(|name| ((*name).to_owned(), RawHandler::default())).collect();
        resolve(&RawContainer::default(), named).unwrap_or_else(|invalid| panic!("{invalid}"))
    }
}

/// Resolves all handlers. A key that a handler's section does not have is taken from `container`.
pub(super) fn resolve(
    container: &RawContainer,
    named: BTreeMap<String, RawHandler>,
) -> Result<Handlers, InvalidSetting> {
    let default = handler("container", container.clone())?;
    let resolve = |(name, raw): (String, RawHandler)| {
        let section = format!("handlers.{name}");
        if name == DEFAULT {
            return Err(invalid(&section, "is the default handler: its settings are those of [container]"));
        }
        if !is_label(&name) {
            return Err(invalid(&section, "invalid handler name: expected lower-case letters, digits and inner \"-\""));
        }
        let handler = handler(&section, raw.over(container.clone()))?;
        Ok((name, handler))
    };
    Ok(Handlers { default, named: named.into_iter().map(resolve).collect::<Result<_, _>>()? })
}

/// Returns whether Kubernetes accepts `name` as the handler of a RuntimeClass (a DNS label).
fn is_label(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edge = |b: Option<u8>| b.is_some_and(plain);
    let bytes = name.as_bytes();
    name.len() <= 63
        && edge(bytes.first().copied())
        && edge(bytes.last().copied())
        && bytes.iter().all(|b| plain(*b) || *b == b'-')
}

fn handler(section: &str, raw: RawContainer) -> Result<Handler, InvalidSetting> {
    let RawContainer {
        privileged,
        seccomp,
        apparmor,
        selinux,
        capabilities,
        rlimits,
        log_line_max,
        log_rate_max,
        shm_size,
        oom_score_adj,
        resize_notices,
        resize_hook,
        exec_output_max: _,
        exec_output_total: _,
    } = raw;
    let key = |name: &str| format!("{section}.{name}");
    Ok(Handler {
        privileged,
        seccomp: profile(&key("seccomp"), seccomp)?,
        apparmor: apparmor_name(&key("apparmor"), apparmor)?,
        selinux: selinux_use(&key("selinux"), &selinux)?,
        capabilities: capabilities
            .iter()
            .map(|name| capability(&key("capabilities"), name))
            .collect::<Result<_, _>>()?,
        rlimits: rlimits
            .iter()
            .map(|(name, value)| rlimit(&format!("{section}.rlimits.{name}"), name, value))
            .collect::<Result<_, _>>()?,
        log_line_max: at_least(&key("log_line_max"), log_line_max, 256)?,
        log_rate_max: if log_rate_max == 0 { 0 } else { at_least(&key("log_rate_max"), log_rate_max, LOG_RATE_MIN)? },
        shm_size: at_least(&key("shm_size"), shm_size, 4096)?,
        oom_score_adj: oom_policy(&key("oom_score_adj"), &oom_score_adj)?,
        resize_notices: AllowedNotices::resolve(section, &resize_notices, resize_hook)?,
    })
}

fn profile(key: &str, path: PathBuf) -> Result<Option<PathBuf>, InvalidSetting> {
    if path == Path::new("") {
        return Ok(None);
    }
    let path = absolute(key, path)?;
    seccomp::check(&path).map_err(|error| invalid(key, model::error_chain::chain(&error)))?;
    Ok(Some(path))
}

/// Checks the form only; whether the profile is loaded is checked at each use.
fn apparmor_name(key: &str, name: String) -> Result<Option<String>, InvalidSetting> {
    let word = name.bytes().all(|b| b.is_ascii_graphic());
    match word {
        true => Ok(Some(name).filter(|name| !name.is_empty())),
        false => Err(invalid(key, format_args!("invalid profile name {name:?}"))),
    }
}

fn selinux_use(key: &str, text: &str) -> Result<bool, InvalidSetting> {
    match text {
        "auto" => Ok(true),
        "off" => Ok(false),
        other => Err(invalid(key, format_args!("must be \"auto\" or \"off\", got {other:?}"))),
    }
}

fn capability(key: &str, name: &str) -> Result<oci_spec::runtime::Capability, InvalidSetting> {
    let upper = name.to_ascii_uppercase();
    let plain = upper.strip_prefix("CAP_").unwrap_or(&upper);
    plain.parse().map_err(|_| invalid(key, format_args!("unknown capability {name:?}")))
}

/// Parses `NUMBER`, which is used for both limits, or `SOFT:HARD`.
fn rlimit(key: &str, name: &str, value: &str) -> Result<Rlimit, InvalidSetting> {
    let unknown = |_| invalid(key, "unknown limit: expected a name of setrlimit(2) in lower case without RLIMIT_");
    let lower = name.bytes().all(|b| b.is_ascii_lowercase());
    let kind = if lower { name } else { "" };
    let kind = format!("RLIMIT_{}", kind.to_ascii_uppercase()).parse().map_err(unknown)?;
    let number = |text: &str| match text {
        "unlimited" => Ok(u64::MAX),
        digits => digits.parse().map_err(|_| invalid(key, format_args!("must be NUMBER or SOFT:HARD, got {value:?}"))),
    };
    let (soft, hard) = value.split_once(':').unwrap_or((value, value));
    let (soft, hard) = (number(soft)?, number(hard)?);
    if soft > hard {
        return Err(invalid(key, format_args!("soft limit must not exceed the hard limit, got {value:?}")));
    }
    Ok(Rlimit { kind, soft, hard })
}

fn oom_policy(key: &str, text: &str) -> Result<OomPolicy, InvalidSetting> {
    match text {
        "restrict" => Ok(OomPolicy::Restrict),
        "require" => Ok(OomPolicy::Require),
        other => Err(invalid(key, format_args!("must be \"restrict\" or \"require\", got {other:?}"))),
    }
}

#[cfg(test)]
#[path = "handlers_tests.rs"]
mod tests;
