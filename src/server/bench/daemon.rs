//! The process that answers at a socket: its memory and processor time, as the kernel counts them.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A daemon's process. What it starts to help it is not counted.
#[derive(Debug)]
pub(super) struct Daemon {
    /// Its directory under `/proc`.
    proc: String,
}

impl Daemon {
    /// The process that listens on `socket`.
    pub(super) fn behind(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid;
        Ok(Self { proc: format!("/proc/{}", pid.as_raw_nonzero()) })
    }

    /// Lets [`Daemon::peak_mib`] begin anew.
    pub(super) fn forget_peak(&self) -> io::Result<()> {
        fs::write(format!("{}/clear_refs", self.proc), "5")
    }

    /// The most memory that was resident at any moment, in MiB.
    pub(super) fn peak_mib(&self) -> io::Result<f64> {
        let status = fs::read_to_string(format!("{}/status", self.proc))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| unknown("VmHWM"))
    }

    /// Processor time used so far, in milliseconds.
    pub(super) fn cpu_millis(&self) -> io::Result<f64> {
        let stat = fs::read_to_string(format!("{}/stat", self.proc))?;
        // The second field is the program's name and may hold anything, up to the last parenthesis.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
        // utime and stime, fields 14 and 15.
        let (user, system) = ticks(11).zip(ticks(12)).ok_or_else(|| unknown("utime"))?;
        let per_second = rustix::param::clock_ticks_per_second();
        Ok((user + system) * 1000.0 / u32::try_from(per_second).map_or(100.0, f64::from))
    }
}

fn unknown(field: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel does not tell {field}"))
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn peak_and_processor_time_are_those_of_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let daemon = Daemon::behind(&socket).unwrap();
        assert_eq!(daemon.proc, format!("/proc/{}", std::process::id()));
        daemon.forget_peak().unwrap();
        let before = daemon.cpu_millis().unwrap();
        drop(black_box(vec![1u8; 64 << 20]));
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            black_box(0);
        }
        assert!(daemon.peak_mib().unwrap() >= 64.0);
        assert!(daemon.cpu_millis().unwrap() > before);
    }
}
