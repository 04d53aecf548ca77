//! A lock on a directory for one process, which a killed process cannot keep.
//!
//! The lock is a `flock`, which the kernel releases when the process exits. But while a thread of a
//! killed process is blocked in the kernel, for example on a disk that hangs, its files stay open,
//! and the lock with them. So the file names its holder. If the kernel reports that no thread of
//! the holder will run user code again, the next process replaces the file by its own. The old
//! process can then only finish the system calls it is in.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Time for a killed process to exit normally.
const END_WITHIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);
/// The bit of SIGKILL in a signal set.
const KILL_BIT: u64 = 1 << 8;

/// A lock that this process holds until it is dropped.
#[derive(Debug)]
pub struct ProcessLock {
    _file: File,
    /// The previous holder, if it was killed and could not exit; it may still be in a system call.
    pub replaced: Option<Holder>,
}

/// Locks the file at `path` for this process. Returns `WouldBlock` while another process holds it.
///
/// The mode allows only the owner: a process that can open a file can lock it.
pub fn lock(path: &Path) -> io::Result<ProcessLock> {
    let end = Instant::now() + END_WITHIN;
    loop {
        match try_lock(path) {
            Err(held) if held.kind() == io::ErrorKind::WouldBlock => {}
            Ok(Some(file)) => return Ok(ProcessLock { _file: file, replaced: None }),
            // Another file has replaced it in the meantime.
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

/// Returns whether a process was killed, so that none of its threads will run user code again; it
/// may be blocked in the kernel for long.
pub fn is_killed(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut any = false;
    for thread in threads.flatten() {
        any = true;
        // A thread that exited in the meantime runs no code either.
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

/// Returns `None` if the locked file is no longer the one at `path`.
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

/// Replaces a file that the killed `holder` keeps locked by a locked file of this process.
fn take_over(path: &Path, holder: Option<&Holder>) -> io::Result<File> {
    let turn = path.with_extension("takeover");
    let turn = File::options().create(true).truncate(false).write(true).mode(0o600).open(turn)?;
    flock(&turn, FlockOperation::NonBlockingLockExclusive)?;
    // Another process may have taken it over since.
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

/// A process: its number, which may be reused, and its start time.
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

    /// Returns `None` if the file names no holder.
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

    /// Returns whether a thread of the process has not exited yet.
    pub fn is_alive(&self) -> bool {
        start_of(self.pid).is_ok_and(|start| start == self.start) && has_threads(self.pid)
    }

    fn is_killed(&self) -> bool {
        start_of(self.pid).is_ok_and(|start| start == self.start) && is_killed(self.pid)
    }
}

/// Returns the start time of a process, in ticks since boot.
fn start_of(pid: i32) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may contain any character, also parentheses.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    fields.split_whitespace().nth(19).map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Writes `child` as the holder of a lock.
    fn noted(path: &Path, child: &Child) {
        let pid = i32::try_from(child.id()).unwrap();
        let file = File::create(path).unwrap();
        Holder { pid, start: start_of(pid).unwrap() }.write(&file).unwrap();
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    /// Waits for the exit of `child` and does not reap it.
    fn await_zombie(child: &Child) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(child)), options).unwrap();
    }

    /// Locks the file in this process, without changing its content.
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
        assert!(is_refused(&path), "the holder is running");
        // A zombie, as the main thread of a killed process is.
        child.kill().unwrap();
        await_zombie(&child);
        let new = lock(&path).unwrap();
        assert!(is_refused(&path), "this process holds it now");
        drop(old);
        assert!(is_refused(&path), "the exit of the old holder changes nothing");
        drop(new);
        lock(&path).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_lock_with_an_unknown_holder_is_not_taken_over() {
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
