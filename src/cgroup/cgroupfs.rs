//! Directories and files of one cgroup tree.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::cgroup::CgroupError;
use crate::file_cache::FileCache;

/// How often parents of a cgroup are created again because another process removed them while empty.
const TRIES: u32 = 100;

/// Makes `dir` and what is missing above it. A cgroup tree has no symbolic links that could lead elsewhere.
pub(crate) fn make_dirs(dir: &Path, made: &mut Vec<PathBuf>) -> Result<(), CgroupError> {
    let failed = |source| CgroupError::Make { path: dir.to_owned(), source };
    let mut tries = 0;
    loop {
        let missing = match fs::create_dir(dir) {
            Ok(()) => {
                made.push(dir.to_owned());
                return Ok(());
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
            // It was there a moment ago, or what is above it is not.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !dir.exists() => e,
            Err(e) if e.kind() == io::ErrorKind::NotFound => e,
            Err(e) => return Err(failed(e)),
        };
        match dir.parent() {
            Some(above) if tries < TRIES => make_dirs(above, made)?,
            _ => return Err(failed(missing)),
        }
        tries += 1;
    }
}

/// Removes a cgroup and all below it, leaf first.
pub(crate) fn remove_tree(dir: &Path, deadline: Instant) -> Result<(), CgroupError> {
    for child in children(dir)? {
        remove_tree(&child, deadline)?;
    }
    remove_dir(dir, deadline)
}

/// Removes one directory, and waits until `deadline` until the kernel has released its exited processes.
pub(crate) fn remove_dir(dir: &Path, deadline: Instant) -> Result<(), CgroupError> {
    let mut pause = Duration::from_millis(1);
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            // A kernel file, or a path through one, is not a cgroup either.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(source) => return Err(CgroupError::Remove { path: dir.to_owned(), source }),
        }
    }
}

/// The links of a directory with none below it: its name and its own dot. Each one below has another, by its two dots.
pub(crate) const LINKS_OF_A_LEAF: u64 = 2;

/// The cgroups directly below; none where the directory is gone.
pub(crate) fn children(dir: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let failed = |source| CgroupError::Read { path: dir.to_owned(), source };
    // Most have none, and then the long list of their files need not be made.
    match fs::metadata(dir) {
        Ok(about) if about.nlink() == LINKS_OF_A_LEAF || !about.is_dir() => return Ok(Vec::new()),
        Ok(_) => {}
        Err(e) if gone(&e) => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    }
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if gone(&e) => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut dirs = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            dirs.push(entry.path());
        }
    }
    Ok(dirs)
}

/// Whether an error means that the cgroup does not exist: it was removed, or the path is a kernel file.
pub(crate) fn gone(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOENT | Errno::NODEV | Errno::NOTDIR))
}

pub(crate) fn read_file(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|source| CgroupError::Read { path: path.to_owned(), source })
}

/// Reads a small kernel file. The kernel writes it in one read(2), so a read that leaves room has all of it.
pub(crate) fn read_once(path: &Path, kept: Option<&FileCache>) -> io::Result<String> {
    let mut room = [0; 4096];
    let read = match kept {
        Some(kept) => kept.read(path, &mut room)?,
        None => File::open(path)?.read(&mut room)?,
    };
    if read == room.len() {
        return fs::read_to_string(path);
    }
    let text = std::str::from_utf8(&room[..read]).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(text.to_owned())
}

pub(crate) fn write_file(path: &Path, value: &str) -> Result<(), CgroupError> {
    write_once(path, value).map_err(|source| CgroupError::Write {
        path: path.to_owned(),
        value: value.to_owned(),
        source,
    })
}

/// Hands `value` to the kernel in one write: each is one request there, so it must not come in parts.
pub(crate) fn write_once(path: &Path, value: &str) -> io::Result<()> {
    write_to(&File::options().write(true).open(path)?, value)
}

/// The same, for a file that takes several.
pub(crate) fn write_to(mut file: &File, value: &str) -> io::Result<()> {
    // A write of nothing would not reach the kernel, an empty line clears a set.
    let value = if value.is_empty() { "\n" } else { value };
    loop {
        match file.write(value.as_bytes()) {
            Ok(n) if n == value.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    #[test]
    fn parents_can_be_removed_during_the_creation() {
        let top = tempfile::tempdir().unwrap();
        let (above, dir) = (top.path().join("a/b"), top.path().join("a/b/c"));
        let (done, removals) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Not for ever: on a slow machine nothing would ever be made.
                    let may = removals.load(Ordering::Relaxed) < TRIES / 2;
                    if may && [&above, &top.path().join("a")].iter().any(|dir| fs::remove_dir(dir).is_ok()) {
                        removals.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            let made: Result<(), CgroupError> = (0..500).try_for_each(|_| {
                removals.store(0, Ordering::Relaxed);
                make_dirs(&dir, &mut Vec::new())?;
                remove_dir(&dir, Instant::now())
            });
            done.store(true, Ordering::Relaxed);
            made.unwrap();
        });
    }
}
