//! A process that keeps a systemd scope while it has no other process.
//!
//! systemd creates no scope without a process, and removes a scope and its cgroup with the last
//! process. crisp needs the cgroup before the container's first process, to set limits, and until
//! the shim has read how the container exited. So crisp runs a holder in each scope: a program of a
//! few instructions that waits to be killed, without libraries and with no memory but a stack.
//!
//! Until it is confirmed, the holder exits with the process that started it, so a killed daemon
//! leaves none. Its parent is init, which reaps it.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};

use super::scope_holder_elf::{NAME, program};

/// The program in memory, ready to be started.
#[derive(Debug)]
pub(super) struct ScopeHolders {
    program: OwnedFd,
}

/// A holder that exits with this process until it is confirmed.
#[derive(Debug)]
pub(super) struct ScopeHolder {
    pid: u32,
    input: ChildStdin,
}

impl ScopeHolders {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { program: sys::memfd::sealed(NAME, program().as_slice())? })
    }

    pub(super) fn spawn(&self) -> io::Result<ScopeHolder> {
        // The path as the new process resolves it, before its descriptors are closed.
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()));
        command.arg0(NAME).env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut parent = command.spawn()?;
        let (input, output) = (parent.stdin.take(), parent.stdout.take());
        // The program forks: the parent writes the child's pid, and exits.
        let mut number = [0; 4];
        let said = output.ok_or(io::ErrorKind::BrokenPipe.into()).and_then(|mut output| output.read_exact(&mut number));
        parent.wait()?;
        said?;
        let number = i32::from_le_bytes(number);
        let pid = u32::try_from(number).map_err(|_| io::Error::from_raw_os_error(number.saturating_neg()))?;
        // If the OOM killer kills the whole container, its cgroup must stay for its counters. Without the privilege for
        // this, the holder is killed too.
        fs::write(format!("/proc/{pid}/oom_score_adj"), "-1000").ok();
        Ok(ScopeHolder { pid, input: input.ok_or(io::ErrorKind::BrokenPipe)? })
    }
}

impl ScopeHolder {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Confirms the holder: from now on it runs until it is killed.
    pub(super) fn stay(mut self) -> io::Result<()> {
        self.input.write_all(b"+")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Returns a line of its status; none if it has exited.
    fn status(pid: u32, key: &str) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim().to_owned())
    }

    fn is_running(pid: u32) -> bool {
        // Init may reap it later.
        status(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
    }

    fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(10), "timed out waiting for {what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_confirmed_holder_runs_until_it_is_killed() {
        let holder = ScopeHolders::new().unwrap().spawn().unwrap();
        let pid = holder.pid();
        holder.stay().unwrap();
        wait_for("its name", || status(pid, "Name").unwrap() == NAME);
        wait_for("it to sleep", || status(pid, "State").unwrap().starts_with('S'));
        thread::sleep(Duration::from_millis(50));
        assert!(is_running(pid));
        assert_ne!(status(pid, "PPid").unwrap(), std::process::id().to_string());
        let memory: u64 = status(pid, "VmRSS").unwrap().trim_end_matches(" kB").parse().unwrap();
        assert!(memory <= 64, "{memory} kB");
        let number = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process(number, Signal::KILL).unwrap();
        wait_for("its end", || !is_running(pid));
    }

    #[test]
    fn an_unconfirmed_holder_exits_with_its_creator() {
        let holder = ScopeHolders::new().unwrap().spawn().unwrap();
        let pid = holder.pid();
        assert!(is_running(pid));
        drop(holder);
        wait_for("its end", || !is_running(pid));
    }
}
