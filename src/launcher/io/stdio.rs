//! The standard streams of a container, at the shim's end.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use sys::mount::{Attributes, RDONLY, Reach, detach_copy, set_attributes};

use crate::io::attach_client::AttachClient;
use crate::io::cri_log::{DroppedBytes, Lines, LogFile, Stream};
use crate::io::log_rate::LogRate;
use crate::launch::{ContainerStdio, LaunchChannels};

/// The container's streams: output for the log and attach clients, and input.
#[derive(Debug)]
pub struct Streams {
    stdout: Option<Source>,
    stderr: Option<Source>,
    /// Open while attach clients can write to it.
    stdin: Option<OwnedFd>,
    /// The container's end of its terminal, which keeps the terminal alive while no process there
    /// has it open.
    _slave: Option<OwnedFd>,
    log: LogFile,
    rate: LogRate,
    pub attached: Vec<AttachClient>,
}

#[derive(Debug)]
struct Source {
    fd: OwnedFd,
    lines: Lines,
    /// The pipe was enlarged.
    wide: bool,
}

/// The default size of a pipe.
const PIPE_USUAL: usize = 64 << 10;
/// The size after the container has filled it once: twice the size of a read, so that neither side
/// waits for the other.
const PIPE_WIDE: usize = 256 << 10;
/// The maximum size of a pipe of an unprivileged program.
const PIPE_MAX: usize = 1024 * 1024;

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Flow {
    /// There may be more.
    More,
    /// There may be more, after this pause: the container is over the rate of its log.
    Paused(Duration),
    /// Nothing more now.
    Dry,
    /// The stream has ended.
    Ended,
}

/// The host's `/dev/null`, to read and to write, through a detached read-only mount: a process that
/// has it, also root of a container, cannot change its mode or owner.
#[derive(Debug)]
pub struct NullDevice(OwnedFd);

impl NullDevice {
    /// Fails where root has as many mount namespaces as `user.max_mnt_namespaces` permits: the kernel creates one for
    /// the mount, until the device is open.
    pub fn open() -> io::Result<Self> {
        let mount = detach_copy(Path::new("/dev/null"), Reach::Top)?;
        set_attributes(&mount, Attributes { set: RDONLY, ..Attributes::default() }, Reach::Top)?;
        Ok(Self(open_again(&mount)?))
    }

    /// Opens the device again through the same mount, which takes no mount namespace.
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        open_again(&self.0)
    }
}

fn open_again(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let file = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(std::fs::File::options().read(true).write(true).open(file)?.into())
}

/// Opens a [`NullDevice`] for one use.
pub fn null() -> io::Result<OwnedFd> {
    NullDevice::open().map(|device| device.0)
}

/// The standard streams that a container requests.
#[derive(Debug)]
pub struct StdioSettings {
    pub tty: bool,
    /// Whether attach clients can write to stdin; otherwise it is empty.
    pub stdin: bool,
    pub log: LogTarget,
}

/// The destination of the output, and its format.
#[derive(Debug)]
pub struct LogTarget {
    pub file: Option<std::fs::File>,
    /// Longer lines are split, in bytes.
    pub line_max: usize,
    /// In bytes a second; 0: no limit.
    pub rate_max: u64,
}

/// Creates the ends of the shim and of the container. With a terminal, the container's end is
/// opened in the container later.
pub fn connect(settings: StdioSettings, channels: LaunchChannels) -> io::Result<(Streams, ContainerStdio)> {
    let StdioSettings { tty, stdin, log: LogTarget { file, line_max, rate_max } } = settings;
    let (log, rate) = (LogFile::new(file), LogRate::new(rate_max));
    let mut streams =
        Streams { stdout: None, stderr: None, stdin: None, _slave: None, log, rate, attached: Vec::new() };
    if tty {
        return Ok((streams, ContainerStdio { stdin: null()?, stdout: null()?, stderr: null()?, channels }));
    }
    let container_in = if stdin {
        let (theirs, ours) = std::io::pipe()?;
        streams.stdin = Some(ours.into());
        theirs.into()
    } else {
        null()?
    };
    let output = |stream| -> io::Result<(Source, OwnedFd)> {
        let (ours, theirs) = std::io::pipe()?;
        let fd = OwnedFd::from(ours);
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok((Source { fd, lines: Lines::new(stream, line_max), wide: false }, theirs.into()))
    };
    let (stdout, container_out) = output(Stream::Stdout)?;
    let (stderr, container_err) = output(Stream::Stderr)?;
    streams.stdout = Some(stdout);
    streams.stderr = Some(stderr);
    Ok((streams, ContainerStdio { stdin: container_in, stdout: container_out, stderr: container_err, channels }))
}

impl Streams {
    /// Takes the terminal that the container opened. Its output counts as stdout.
    pub fn set_console(&mut self, master: OwnedFd, slave: OwnedFd, line_max: usize) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&master, true)?;
        self._slave = Some(slave);
        // A terminal cannot be enlarged.
        self.stdout = Some(Source { fd: master, lines: Lines::new(Stream::Stdout, line_max), wide: true });
        Ok(())
    }

    pub fn fd(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        let source = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        source.as_ref().map(|s| s.fd.as_fd())
    }

    /// Returns the end for writing to the container's stdin: for a terminal its master.
    pub fn input(&self) -> Option<BorrowedFd<'_>> {
        let terminal = self.stdout.as_ref().filter(|_| self._slave.is_some());
        self.stdin.as_ref().or_else(|| terminal.map(|source| &source.fd)).map(|fd| fd.as_fd())
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Copies one buffer of output to the log and to attach clients.
    pub fn copy_output(&mut self, stream: Stream, buffer: &mut [u8]) -> (Flow, Option<DroppedBytes>) {
        let slot = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(source) = slot else { return (Flow::Ended, None) };
        // The first byte is for the frame type in packets to attach clients.
        match rustix::io::read(&source.fd, &mut buffer[1..]) {
            Ok(n) if n > 0 => {
                if n >= PIPE_USUAL && !source.wide {
                    source.wide = true;
                    // If the host refuses, both sides wait more often.
                    rustix::pipe::fcntl_setpipe_size(&source.fd, PIPE_WIDE).ok();
                }
                let before = self.log.entered;
                let lost = source.lines.feed(&mut self.log, &buffer[1..=n]).err();
                self.attached.iter_mut().for_each(|attached| attached.send_output(stream, &mut buffer[..=n]));
                let pause = self.rate.count(Instant::now(), self.log.entered - before);
                (pause.map_or(Flow::More, Flow::Paused), lost)
            }
            Err(rustix::io::Errno::AGAIN) => (Flow::Dry, None),
            Err(rustix::io::Errno::INTR) => (Flow::More, None),
            // A terminal returns EIO after its last user closed it.
            Ok(_) | Err(_) => (Flow::Ended, source.lines.finish(&mut self.log).err()),
        }
    }

    /// Closes a stream that has ended.
    pub fn close(&mut self, stream: Stream) {
        match stream {
            Stream::Stdout => self.stdout = None,
            Stream::Stderr => self.stderr = None,
        }
    }

    /// Reads the remaining output and closes the pipes: the container has exited. Reads at most the
    /// size of a pipe, since other processes may have got the streams and still write.
    pub fn finish(&mut self, buffer: &mut [u8]) -> Vec<DroppedBytes> {
        self._slave = None;
        let mut all = Vec::new();
        for stream in [Stream::Stdout, Stream::Stderr] {
            for _ in 0..PIPE_MAX.div_ceil(buffer.len()) {
                let (flow, lost) = self.copy_output(stream, buffer);
                all.extend(lost);
                if matches!(flow, Flow::Dry | Flow::Ended) {
                    break;
                }
            }
        }
        for Source { mut lines, .. } in [self.stdout.take(), self.stderr.take()].into_iter().flatten() {
            all.extend(lines.finish(&mut self.log).err());
        }
        self.log = LogFile::new(None);
        self.stdin = None;
        all
    }

    pub fn reopen(&mut self, log: std::fs::File) {
        self.log.reopen(log);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::process::Command;

    use rustix::fs::{Mode, fchmod};
    use rustix::io::Errno;

    use super::*;

    const INSIDE: &str = "CRISP_TEST_IN_USER_NAMESPACE";

    /// The limit of a user namespace holds for it alone, so the test runs once more in a new one.
    #[test]
    #[ignore = "needs root"]
    fn a_null_device_is_opened_again_when_all_mount_namespaces_are_used_up() {
        if std::env::var_os(INSIDE).is_none() {
            let name = "io::stdio::tests::a_null_device_is_opened_again_when_all_mount_namespaces_are_used_up";
            let mut inside = Command::new("unshare");
            inside.args(["--user", "--map-root-user", "--mount"]).arg(std::env::current_exe().unwrap());
            let status = inside.args(["--exact", name, "--ignored", "--nocapture"]).env(INSIDE, "1").status().unwrap();
            assert!(status.success(), "{status}");
            return;
        }
        let device = NullDevice::open().unwrap();
        std::fs::write("/proc/sys/user/max_mnt_namespaces", "0").unwrap();
        assert_eq!(Errno::from_io_error(&NullDevice::open().unwrap_err()), Some(Errno::NOSPC));
        let again = device.reopen().unwrap();
        assert!(crate::rootfs::masked_paths::is_null(&again).unwrap());
        assert_eq!(rustix::io::write(again.as_fd(), b"x"), Ok(1));
        assert_eq!(fchmod(&again, Mode::RWXU), Err(Errno::ROFS));
    }
}
