//! The errors of CNI plugins, and the verb that failed.

use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use model::{ErrorClass, ErrorKind, Signal};

/// A CNI verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A plugin that failed. Output of plugins is shortened and shown without control characters.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error("CNI plugin {plugin} not found in {}: install it there, or set network.cni.bin_dirs", paths(dirs))]
    Missing { plugin: String, dirs: Vec<PathBuf> },
    #[error("starting the CNI plugin {} for {verb}", path.display())]
    Start { path: PathBuf, verb: Verb, source: io::Error },
    #[error("exchanging data with the CNI plugin {plugin} during {verb}{}", Stderr(stderr))]
    Talk { plugin: String, verb: Verb, stderr: String, source: io::Error },
    #[error("the CNI plugin {plugin} was killed: {verb} not complete after {} s{}", limit.as_secs_f32(), Stderr(stderr))]
    Late { plugin: String, verb: Verb, limit: Duration, stderr: String },
    #[error("the CNI plugin {plugin} was killed: its output for {verb} is longer than {limit} bytes{}", Stderr(stderr))]
    Flood { plugin: String, verb: Verb, limit: usize, stderr: String },
    #[error("the CNI plugin {plugin} was killed by {} during {verb}{}", SignalName(*signal), Stderr(stderr))]
    Signal { plugin: String, verb: Verb, signal: i32, stderr: String },
    /// With an error object as CNI defines it.
    #[error("the CNI plugin {plugin} refused {verb}: {}{}", ErrorText { code: *code, msg, details }, Stderr(stderr))]
    Refused { plugin: String, verb: Verb, code: u64, msg: String, details: String, stderr: String },
    /// Without an error object.
    #[error("the CNI plugin {plugin} failed in {verb} with exit code {exit}{}{}", Stdout(stdout), Stderr(stderr))]
    Failed { plugin: String, verb: Verb, exit: i32, stdout: String, stderr: String },
    #[error("the CNI plugin {plugin} returned an invalid result for {verb}: {why}{}{}", Stdout(stdout), Stderr(stderr))]
    InvalidOutput { plugin: String, verb: Verb, why: String, stdout: String, stderr: String },
    #[error(
        "the CNI plugin {plugin} supports {supported:?}, and the network {network} allows {allowed} with its other plugins"
    )]
    UnsupportedVersion { plugin: String, supported: Vec<String>, network: String, allowed: String },
}

impl ErrorClass for PluginError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } | Self::UnsupportedVersion { .. } => ErrorKind::Precondition,
            Self::Late { .. } => ErrorKind::Deadline,
            Self::Refused { code, .. } => match *code {
                // Version, field or configuration: a retry fails until an administrator changes the
                // file.
                1 | 2 | 7 => ErrorKind::Precondition,
                11 | 50 | 51 => ErrorKind::Unavailable,
                _ => ErrorKind::Internal,
            },
            Self::Start { .. }
            | Self::Talk { .. }
            | Self::Flood { .. }
            | Self::Signal { .. }
            | Self::Failed { .. }
            | Self::InvalidOutput { .. } => ErrorKind::Internal,
        }
    }
}

impl PluginError {
    /// Returns whether the plugin reports that it does not know the pod, so nothing is left to
    /// remove.
    pub(crate) fn is_unknown_container(&self) -> bool {
        matches!(self, Self::Refused { code: 3, .. })
    }
}

fn paths(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
}

struct Stderr<'a>(&'a str);

impl fmt::Display for Stderr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; its stderr ends in: {}", self.0) }
    }
}

struct Stdout<'a>(&'a str);

impl fmt::Display for Stdout<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("; it wrote nothing") } else { write!(f, "; it wrote: {}", self.0) }
    }
}

struct ErrorText<'a> {
    code: u64,
    msg: &'a str,
    details: &'a str,
}

impl fmt::Display for ErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, msg, details } = self;
        write!(f, "{msg}")?;
        if !details.is_empty() {
            write!(f, "; {details}")?;
        }
        write!(f, " (code {code})")
    }
}

struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Signal::try_from(self.0) {
            Ok(signal) => write!(f, "{signal}"),
            Err(_) => write!(f, "signal {}", self.0),
        }
    }
}
