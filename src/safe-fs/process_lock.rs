//! A lock on a directory that one process at a time holds, and that a killed process cannot keep.
//!
//! The lock is a `flock`, so it goes with its process, however that ends. While a thread of a killed process waits in the kernel,
//! for a disk that hangs perhaps, its files stay open, and the lock with them. So the file names its holder. Where the kernel says
//! that no thread of it will ever run its program again, the next process puts a file of its own in the place of that one. All
//! that the old one can still do is to end the system calls that it is in.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How long a process that was killed may take to end as usual.
const END_WITHIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);
/// The bit of SIGKILL in a set of signals.
const KILL_BIT: u64 = 1 << 8;

/// A lock that this process holds until this is dropped.
#[derive(Debug)]
pub struct ProcessLock {
    _file: File,
    /// The process that had it before and could not end; it may still be ending a system call.
    pub replaced: Option<Holder>,
}

/// Locks the file at `path` for this process. `WouldBlock` while another has it.
///
/// For the owner alone: a process that can open a file can lock it.
pub fn lock(path: &Path) -> io::Result<ProcessLock> {
    let end = Instant::now() + END_WITHIN;
    loop {
        match try_lock(path) {
            Err(held) if held.kind() == io::ErrorKind::WouldBlock => {}
            Ok(Some(file)) => return Ok(ProcessLock { _file: file, replaced: None }),
            // Another file took its place meanwhile.
            Ok(None) => continue,
            Err(error) => return Err(error),
        }
        let holder = Holder::read(path)?;
        if !holder.as_ref().is_some_and(Holder::is_killed) {
            return Err(Errno::WOULDBLOCK.into());
        }
        if Instant::now() >= end {
            let file = take_over(path, holder.as_ref())?;
            return Ok(ProcessLock { _file: file, replaced: holder });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a process was killed, so that none of its threads will run its program again; it may wait in the kernel for long.
pub fn is_killed(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut any = false;
    for thread in threads.flatten() {
        any = true;
        // One that ended meanwhile runs nothing either.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        let is_over = field("State:").starts_with(['Z', 'X']);
        let pending = u64::from_str_radix(field("SigPnd:"), 16).unwrap_or(0);
        if !is_over && pending & KILL_BIT == 0 {
            return false;
        }
    }
    any
}

fn has_threads(pid: i32) -> bool {
    let is_over =
        |status: &str| status.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX"));
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut statuses = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    statuses.any(|status| !is_over(&status))
}

/// None where the locked file is no longer the one at `path`.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let (locked, there) = (file.metadata()?, fs::metadata(path));
    if !there.is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino())) {
        return Ok(None);
    }
    Holder::this()?.write(&file)?;
    Ok(Some(file))
}

/// Puts a locked file of this process in the place of one that `holder`, which was killed, keeps locked.
fn take_over(path: &Path, holder: Option<&Holder>) -> io::Result<File> {
    let turn = path.with_extension("takeover");
    let turn = File::options().create(true).truncate(false).write(true).mode(0o600).open(turn)?;
    flock(&turn, FlockOperation::NonBlockingLockExclusive)?;
    // Another may have had its turn since.
    if Holder::read(path)?.as_ref() != holder {
        return Err(Errno::WOULDBLOCK.into());
    }
    let fresh = path.with_extension("new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let file = File::options().create_new(true).read(true).write(true).mode(0o600).open(&fresh)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Holder::this()?.write(&file)?;
    fs::rename(&fresh, path)?;
    Ok(file)
}

/// A process: its number, which is used again, and the moment of its start.
#[derive(Debug, PartialEq, Eq)]
pub struct Holder {
    pid: i32,
    start: String,
}

impl Holder {
    fn this() -> io::Result<Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Ok(Self { pid, start: start_of(pid)? })
    }

    /// None where the file names no holder.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut text = String::new();
        File::open(path)?.take(64).read_to_string(&mut text)?;
        let (pid, start) = text.trim().split_once(' ').unwrap_or_default();
        Ok(pid.parse().ok().map(|pid| Self { pid, start: start.to_owned() }))
    }

    fn write(&self, mut file: &File) -> io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{} {}\n", self.pid, self.start).as_bytes())
    }

    /// Whether a thread of the process has not ended yet.
    pub fn is_alive(&self) -> bool {
        start_of(self.pid).is_ok_and(|start| start == self.start) && has_threads(self.pid)
    }

    fn is_killed(&self) -> bool {
        start_of(self.pid).is_ok_and(|start| start == self.start) && is_killed(self.pid)
    }
}

/// When the process began, in ticks since the boot.
fn start_of(pid: i32) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may hold anything, parentheses too.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    fields.split_whitespace().nth(19).map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A process that holds a lock, as far as the file says.
    fn noted(path: &Path, child: &Child) {
        let pid = i32::try_from(child.id()).unwrap();
        let file = File::create(path).unwrap();
        Holder { pid, start: start_of(pid).unwrap() }.write(&file).unwrap();
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    /// Locked by an open file of this process, whatever it says.
    fn held(path: &Path) -> File {
        let file = File::open(path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    }

    fn is_refused(path: &Path) -> bool {
        lock(path).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn one_process_at_a_time_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = lock(&path).unwrap();
        assert!(is_refused(&path));
        drop(first);
        lock(&path).unwrap();
    }

    #[test]
    fn the_lock_of_a_killed_process_is_taken_over_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut child = sleeper();
        noted(&path, &child);
        let old = held(&path);
        assert!(is_refused(&path), "it lives");
        // A zombie, as the first thread of a killed process is.
        child.kill().unwrap();
        let new = lock(&path).unwrap();
        assert!(is_refused(&path), "it is this process's now");
        drop(old);
        assert!(is_refused(&path), "the end of the old one changes nothing");
        drop(new);
        lock(&path).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_lock_is_not_taken_from_a_holder_that_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut child = sleeper();
        child.kill().unwrap();
        let pid = child.id();
        for text in [String::new(), "x y".to_owned(), format!("{pid} 1"), "999999999 5".to_owned()] {
            fs::write(&path, &text).unwrap();
            let _old = held(&path);
            assert!(is_refused(&path), "{text:?}");
        }
        child.wait().unwrap();
    }
}
