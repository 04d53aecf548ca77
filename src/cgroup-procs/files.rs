//! Directories and files of one cgroup hierarchy.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The links of a directory without subdirectories: its name and its own dot. Each subdirectory adds its two dots.
pub const LINKS_OF_A_LEAF: u64 = 2;

/// Returns the cgroups directly below; none if the directory does not exist.
pub fn children(dir: &Path) -> io::Result<Vec<PathBuf>> {
    // Most have none: then the long list of their files is not read.
    match fs::metadata(dir) {
        Ok(about) if about.nlink() == LINKS_OF_A_LEAF || !about.is_dir() => return Ok(Vec::new()),
        Ok(_) => {}
        Err(e) if gone(&e) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    }
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if gone(&e) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut dirs = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            dirs.push(entry.path());
        }
    }
    Ok(dirs)
}

/// Whether an error means that the cgroup does not exist: it was removed, or the path is a kernel file.
pub fn gone(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOENT | Errno::NODEV | Errno::NOTDIR))
}

/// Writes `value` in one write(2): each is one request to the kernel.
pub fn write_once(path: &Path, value: &str) -> io::Result<()> {
    write_to(&File::options().write(true).open(path)?, value)
}

/// Writes `value` to an open file in one write(2).
pub fn write_to(mut file: &File, value: &str) -> io::Result<()> {
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
