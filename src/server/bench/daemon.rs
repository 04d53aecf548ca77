//! The process that answers at a socket: its memory and processor time, as the kernel counts them.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::unistd::Pid;

/// A daemon's process. What it starts to help it is not counted.
#[derive(Debug)]
pub(super) struct Daemon {
    pid: Pid,
}

impl Daemon {
    /// The process that listens on `socket`.
    pub(super) fn behind(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid;
        Ok(Self { pid: Pid::from_raw(pid.as_raw_pid()) })
    }

    /// Lets [`Daemon::peak_mib`] begin anew.
    pub(super) fn forget_peak(&self) -> io::Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5")
    }

    /// The most memory that was resident at any moment, in MiB.
    pub(super) fn peak_mib(&self) -> io::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| io::Error::other("the kernel does not tell VmHWM"))
    }

    /// Processor time used so far, by all threads that there are and were.
    pub(super) fn cpu(&self) -> io::Result<Duration> {
        let clock = nix::time::clock_getcpuclockid(self.pid)?;
        Ok(clock.now()?.into())
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn peak_and_processor_time_are_those_of_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let daemon = Daemon::behind(&socket).unwrap();
        assert_eq!(daemon.pid, Pid::this());
        daemon.forget_peak().unwrap();
        let before = daemon.cpu().unwrap();
        drop(black_box(vec![1u8; 64 << 20]));
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            black_box(0);
        }
        assert!(daemon.peak_mib().unwrap() >= 64.0);
        assert!(daemon.cpu().unwrap() > before);
    }
}
