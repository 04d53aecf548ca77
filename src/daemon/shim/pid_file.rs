//! Records the process of a shim for the next daemon.
//!
//! `shim.pid` has its PID, `shim.start` its start time: a PID is reused, the pair is not.

use std::path::Path;
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const PID: &str = "shim.pid";
const START: &str = "shim.start";
/// The time for a killed shim to exit.
const END_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Records the running process `pid` in the pod's directory. The PID is written last, so a PID
/// always has a start time.
pub(super) fn write(dir: &Path, pid: u32) -> io::Result<()> {
    fs::write(dir.join(START), start_of(pid)?)?;
    fs::write(dir.join(PID), pid.to_string())
}

/// Returns the PID of the pod's shim, unless it is known to have exited.
pub(crate) fn pid(dir: &Path) -> Option<u32> {
    fs::read_to_string(dir.join(PID)).ok()?.trim().parse().ok()
}

/// Returns whether the recorded shim runs.
pub(crate) fn is_alive(dir: &Path) -> bool {
    let started = pid(dir).and_then(|pid| start_of(pid).ok());
    started.is_some() && started == fs::read_to_string(dir.join(START)).ok()
}

/// Kills the recorded shim if it runs, and removes the record after its exit.
pub(crate) fn end(dir: &Path) {
    if let Some(pid) = pid(dir)
        && is_gone(dir, pid)
    {
        // A remaining record names no running process.
        fs::remove_file(dir.join(PID)).ok();
        fs::remove_file(dir.join(START)).ok();
    }
}

/// Kills the process and waits for its exit; returns true also if it had exited before.
fn is_gone(dir: &Path, pid: u32) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(errno) => return errno == rustix::io::Errno::SRCH,
    };
    // A pidfd refers to one process: what is read after opening it belongs to that process, or the
    // process has exited.
    let (Ok(noted), Ok(now)) = (fs::read_to_string(dir.join(START)), start_of(pid)) else { return false };
    if noted != now {
        return true;
    }
    pidfd_send_signal(&process, Signal::KILL).ok();
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&END_WITHIN)).is_ok_and(|ended| ended > 0)
}

/// Returns the start time of the process, in ticks since the boot.
fn start_of(pid: u32) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may contain anything, also parentheses.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    fields.split_whitespace().nth(19).map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    #[test]
    fn a_recorded_process_is_killed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = sleeper();
        write(dir.path(), child.id()).unwrap();
        assert_eq!(pid(dir.path()), Some(child.id()));
        assert!(is_alive(dir.path()));
        end(dir.path());
        assert!(!child.wait().unwrap().success());
        assert_eq!(pid(dir.path()), None);
    }

    #[test]
    fn another_process_with_the_same_pid_is_not_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = sleeper();
        write(dir.path(), child.id()).unwrap();
        fs::write(dir.path().join(START), "1").unwrap();
        assert!(!is_alive(dir.path()));
        end(dir.path());
        assert!(child.try_wait().unwrap().is_none());
        assert_eq!(pid(dir.path()), None, "the recorded process has exited");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
