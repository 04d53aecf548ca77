//! The container's standard streams, on the shim's side.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use sys::mount::{Attributes, RDONLY, Reach, detach_copy, set_attributes};

use crate::io::attach_client::AttachClient;
use crate::io::cri_log::{DroppedBytes, Lines, LogFile, Stream};
use crate::io::log_rate::LogRate;
use crate::launch::{ContainerStdio, LaunchChannels};

/// What the container prints, on its way to the log, and what it is told.
#[derive(Debug)]
pub struct Streams {
    stdout: Option<Source>,
    stderr: Option<Source>,
    /// Open as long as somebody may still attach and write.
    stdin: Option<OwnedFd>,
    /// The container's side of its terminal: held so that the terminal lives while nobody in there has it open.
    _slave: Option<OwnedFd>,
    log: LogFile,
    rate: LogRate,
    pub attached: Vec<AttachClient>,
}

#[derive(Debug)]
struct Source {
    fd: OwnedFd,
    lines: Lines,
    /// The pipe holds more than it did at first.
    wide: bool,
}

/// What a pipe holds at first.
const PIPE_USUAL: usize = 64 << 10;
/// What it is made to hold once the container has filled it: twice of what is read at once, so that neither side waits for the
/// other.
const PIPE_WIDE: usize = 256 << 10;
/// The most that an unprivileged program can make a pipe hold.
const PIPE_MAX: usize = 1024 * 1024;

/// What a read came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Flow {
    /// There may be more.
    More,
    /// The same, and nothing is to be read for so long: the container is ahead of the rate of its log.
    Paused(Duration),
    /// Nothing more for now.
    Dry,
    /// Nothing more ever.
    Ended,
}

/// The host's `/dev/null`, to read and to write, by a mount that is nowhere and read-only: whoever is given it, root of a
/// container too, changes neither its mode nor its owner.
pub fn null() -> io::Result<OwnedFd> {
    let mount = detach_copy(Path::new("/dev/null"), Reach::Top)?;
    set_attributes(&mount, Attributes { set: RDONLY, ..Attributes::default() }, Reach::Top)?;
    let file = format!("/proc/self/fd/{}", mount.as_raw_fd());
    Ok(std::fs::File::options().read(true).write(true).open(file)?.into())
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

/// Creates the ends of the shim and of the container. With a terminal, the container's end is opened in the container later.
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
    /// The terminal that the container opened. Its output counts as stdout.
    pub fn set_console(&mut self, master: OwnedFd, slave: OwnedFd, line_max: usize) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&master, true)?;
        self._slave = Some(slave);
        // A terminal is no pipe, and as wide as it gets.
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

    /// Where the container's input is written to: of a terminal its master side.
    pub fn input(&self) -> Option<BorrowedFd<'_>> {
        let terminal = self.stdout.as_ref().filter(|_| self._slave.is_some());
        self.stdin.as_ref().or_else(|| terminal.map(|source| &source.fd)).map(|fd| fd.as_fd())
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Moves one buffer full of output to the log, and to those who look on.
    pub fn copy_output(&mut self, stream: Stream, buffer: &mut [u8]) -> (Flow, Option<DroppedBytes>) {
        let slot = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(source) = slot else { return (Flow::Ended, None) };
        // The first byte is for the word that comes before output on the way to those who look on.
        match rustix::io::read(&source.fd, &mut buffer[1..]) {
            Ok(n) if n > 0 => {
                if n >= PIPE_USUAL && !source.wide {
                    source.wide = true;
                    // Where a host allows no more, both sides only wait more often.
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
            // A terminal whose last user is gone answers EIO.
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

    /// Takes all that is still in the pipes, and closes them: the container is gone. No more than a pipe can hold is its
    /// own; whoever else still writes has got hold of its streams and is not waited for.
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
