//! The process of a shim, noted where the next daemon finds it.
//!
//! `shim.pid` has its number, `shim.start` the moment of its start: numbers are used again, the pair never is.

use std::path::Path;
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const PID: &str = "shim.pid";
const START: &str = "shim.start";
/// How long a killed shim may take to be gone.
const END_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Notes the running process `pid` in the pod's directory. The number comes last: where it is, the other is too.
pub(super) fn write(dir: &Path, pid: u32) -> io::Result<()> {
    fs::write(dir.join(START), start_of(pid)?)?;
    fs::write(dir.join(PID), pid.to_string())
}

/// The number of the pod's shim, unless it is known to be gone.
pub(crate) fn pid(dir: &Path) -> Option<u32> {
    fs::read_to_string(dir.join(PID)).ok()?.trim().parse().ok()
}

/// Whether the noted shim runs.
pub(crate) fn is_alive(dir: &Path) -> bool {
    let started = pid(dir).and_then(|pid| start_of(pid).ok());
    started.is_some() && started == fs::read_to_string(dir.join(START)).ok()
}

/// Ends the noted shim by force, if it still runs, and forgets it once it is gone.
pub(crate) fn end(dir: &Path) {
    if let Some(pid) = pid(dir)
        && is_gone(dir, pid)
    {
        // What stays is read again, and found to be about nobody.
        fs::remove_file(dir.join(PID)).ok();
        fs::remove_file(dir.join(START)).ok();
    }
}

/// Kills the process and waits for its end; true also when it was gone before.
fn is_gone(dir: &Path, pid: u32) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(errno) => return errno == rustix::io::Errno::SRCH,
    };
    // The descriptor names one process: what is read next is about it, or it is gone.
    let (Ok(noted), Ok(now)) = (fs::read_to_string(dir.join(START)), start_of(pid)) else { return false };
    if noted != now {
        return true;
    }
    pidfd_send_signal(&process, Signal::KILL).ok();
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&END_WITHIN)).is_ok_and(|ended| ended > 0)
}

/// When the process began, in ticks since the boot.
fn start_of(pid: u32) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may hold anything, parentheses too.
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
    fn a_noted_process_is_ended_and_forgotten() {
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
    fn another_process_with_the_same_number_lives_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = sleeper();
        write(dir.path(), child.id()).unwrap();
        fs::write(dir.path().join(START), "1").unwrap();
        assert!(!is_alive(dir.path()));
        end(dir.path());
        assert!(child.try_wait().unwrap().is_none());
        assert_eq!(pid(dir.path()), None, "the noted one is gone");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
