//! The ID of a selftest run. It names the process that began it, so that any process can check whether it still runs.

use std::fmt;
use std::str::FromStr;

/// Repository of the images of selftests.
pub(super) const IMAGES: &str = "crisp.local/trial";
/// Label of the pods of selftests; the value is the run ID.
pub(super) const LABEL: &str = "io.crisp.trial";
/// Prefix of the directories of selftests.
const DIRECTORY: &str = "trial-";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunId {
    pid: u32,
    /// Clock ticks from boot to the start of the process: a PID may be reused, but not with the same start time.
    start: u64,
}

impl RunId {
    /// Returns the run ID of this process.
    pub(super) fn own() -> Self {
        let pid = std::process::id();
        Self { pid, start: start_of(pid).unwrap_or_default() }
    }

    /// Returns whether the process still runs.
    pub(super) fn is_alive(&self) -> bool {
        start_of(self.pid) == Some(self.start)
    }

    pub(super) fn image(&self) -> String {
        format!("{IMAGES}:{self}")
    }

    /// Returns the run that an image belongs to.
    pub(super) fn of_image(name: &str) -> Option<Self> {
        name.strip_prefix(IMAGES)?.strip_prefix(':')?.parse().ok()
    }

    pub(super) fn directory(&self) -> String {
        format!("{DIRECTORY}{self}")
    }

    pub(super) fn of_directory(name: &str) -> Option<Self> {
        name.strip_prefix(DIRECTORY)?.parse().ok()
    }
}

/// Reads field 22 of `/proc/PID/stat`. Field 2, the program's name, may contain spaces and brackets.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.pid, self.start)
    }
}

/// Not a run ID.
#[derive(Debug, thiserror::Error)]
#[error("invalid ID of a test pod run {0:?}: expected PID-START")]
pub(super) struct InvalidRunId(String);

impl FromStr for RunId {
    type Err = InvalidRunId;

    fn from_str(text: &str) -> Result<Self, InvalidRunId> {
        let parse = || {
            let (pid, start) = text.split_once('-')?;
            Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()? })
        };
        parse().ok_or_else(|| InvalidRunId(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_alive_as_long_as_its_process() {
        let own = RunId::own();
        assert!(own.is_alive() && own.start > 0);
        assert!(!RunId { start: own.start + 1, ..own.clone() }.is_alive());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let run = RunId { pid: child.id(), start: start_of(child.id()).unwrap() };
        child.wait().unwrap();
        assert!(!run.is_alive());
    }

    #[test]
    fn the_run_id_is_parsed_from_image_and_directory_names() {
        let run = RunId { pid: 12, start: 345 };
        assert_eq!(run.to_string().parse::<RunId>().unwrap(), run);
        assert_eq!(RunId::of_image(&run.image()).unwrap(), run);
        assert_eq!(RunId::of_directory(&run.directory()).unwrap(), run);
        for other in ["docker.io/library/trial:12-345", "crisp.local/trials:1-2", "crisp.local/trial:latest", ""] {
            assert_eq!(RunId::of_image(other), None, "{other}");
        }
        assert!("12".parse::<RunId>().is_err() && "a-b".parse::<RunId>().is_err());
    }
}
