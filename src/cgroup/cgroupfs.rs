//! Directories and files of one cgroup tree.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cgroup_procs::files;
pub(crate) use cgroup_procs::files::{LINKS_OF_A_LEAF, gone, write_once, write_to};

use crate::cgroup::CgroupError;
use crate::file_cache::FileCache;

/// How often parents of a cgroup are created again because another process removed them while empty.
const TRIES: u32 = 100;

/// Creates `dir` and its missing parents. A cgroup tree has no symbolic links.
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
            // It existed before, or one of its parents no longer exists.
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

/// Removes a cgroup and its descendants, leaf first.
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

/// Returns the cgroups directly below; none if the directory does not exist.
pub(crate) fn children(dir: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    files::children(dir).map_err(|source| CgroupError::Read { path: dir.to_owned(), source })
}

pub(crate) fn read_file(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|source| CgroupError::Read { path: path.to_owned(), source })
}

/// Reads a small kernel file. The kernel writes it in one read(2), so a read that does not fill the
/// buffer has the whole file.
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
                    // Bounded: on a slow machine the race could repeat.
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
