//! Waits for a child process with a timeout, and captures its output.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open};

/// Maximum length of the captured output; the end is kept.
const HEARD_MAX: usize = 2048;

/// The result of waiting for a child.
#[derive(Debug)]
pub struct Ended {
    /// `None` if the timeout expired and it was killed.
    pub status: Option<WaitStatus>,
    /// The end of its output, as text.
    pub words: String,
}

/// Waits until the child `pid`, the leader of a process group, has exited, and captures `output`.
/// After `time` its group is killed. Does not wait for other processes that hold the other end of
/// `output`.
pub fn wait(pid: i32, output: &OwnedFd, time: Duration) -> io::Result<Ended> {
    let child = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    rustix::io::ioctl_fionbio(output, true)?;
    let handle = pidfd_open(child, PidfdFlags::empty())?;
    let begun = Instant::now();
    let mut heard = Vec::new();
    let mut open = true;
    let in_time = loop {
        let Some(left) = time.checked_sub(begun.elapsed()) else { break false };
        let mut fds = vec![PollFd::new(&handle, PollFlags::IN)];
        if open {
            fds.push(PollFd::new(output, PollFlags::IN));
        }
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ended = !fds[0].revents().is_empty();
        open = open && receive(output, &mut heard);
        if ended {
            break true;
        }
    };
    if !in_time {
        // Not reaped yet, so the pid cannot be reused.
        rustix::process::kill_process_group(child, Signal::KILL).ok();
    }
    let status = reap(pid)?;
    receive(output, &mut heard);
    let words = String::from_utf8_lossy(&heard).trim().to_owned();
    Ok(Ended { status: in_time.then_some(status), words })
}

/// Waits for the child `pid` without a timeout.
pub fn reap(pid: i32) -> io::Result<WaitStatus> {
    let child = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Reads available output and keeps its end; returns whether more can follow.
fn receive(output: &OwnedFd, heard: &mut Vec<u8>) -> bool {
    let mut buffer = [0; HEARD_MAX];
    // Limited: a child with endless output must not prevent the check of the timeout.
    for _ in 0..64 {
        match rustix::io::read(output, &mut buffer) {
            Ok(0) => return false,
            Ok(n) => {
                heard.extend(&buffer[..n]);
                heard.drain(..heard.len().saturating_sub(HEARD_MAX));
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[expect(clippy::zombie_processes, reason = "`wait` reaps it by its pid")]
    fn run(script: &str, time: Duration) -> Ended {
        let (output, theirs) = io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
        let child = command.process_group(0).spawn().unwrap();
        drop(command);
        wait(i32::try_from(child.id()).unwrap(), &output.into(), time).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_output_of_a_child_is_captured_to_its_end() {
        let ended = run("echo one; echo two >&2; exit 3", LONG);
        assert_eq!((ended.status.unwrap().exit_status(), ended.words.as_str()), (Some(3), "one\ntwo"));
        let ended = run("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done", LONG);
        assert_eq!(ended.status.unwrap().exit_status(), Some(0));
        assert!(ended.words.len() <= HEARD_MAX && ended.words.ends_with("line 19999"), "{}", ended.words);
        let ended = run("echo gone; kill -9 $$", LONG);
        assert_eq!((ended.status.unwrap().terminating_signal(), ended.words.as_str()), (Some(9), "gone"));
    }

    #[test]
    fn a_child_is_killed_with_its_group_after_the_timeout() {
        let begun = Instant::now();
        let ended = run("echo before; sleep 1000 & sleep 1000", Duration::from_millis(300));
        assert!(ended.status.is_none() && begun.elapsed() < LONG);
        assert_eq!(ended.words, "before");
    }

    #[test]
    fn a_process_that_inherits_the_output_is_not_waited_for() {
        let begun = Instant::now();
        let ended = run("setsid sleep 5 & echo done", LONG);
        assert_eq!((ended.status.unwrap().exit_status(), ended.words.as_str()), (Some(0), "done"));
        assert!(begun.elapsed() < Duration::from_secs(4));
    }
}
