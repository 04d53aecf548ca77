//! Counts processes, threads and open files of a container.

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use model::metrics::ProcessCounters;

/// Maximum descriptors of a container whose type is looked up, with one system call each.
const LOOKED_AT: u64 = 4096;

/// Counts the open files of `members`; `first` is the container's first process.
pub(super) fn count(members: &[NonZeroU32], first: Option<NonZeroU32>) -> ProcessCounters {
    let mut open = Open { descriptors: Some(0), sockets: Some(0), left: LOOKED_AT };
    for pid in members {
        open.add(&of(*pid).join("fd"));
    }
    let limits = first.and_then(|pid| fs::read_to_string(of(pid).join("limits")).ok());
    ProcessCounters {
        processes: u64::try_from(members.len()).ok(),
        descriptors: open.descriptors,
        sockets: open.sockets,
        open_files_max: limits.as_deref().and_then(open_files_max),
    }
}

fn of(pid: NonZeroU32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The open files so far, and the number of descriptors that may still be looked up.
struct Open {
    descriptors: Option<u64>,
    sockets: Option<u64>,
    left: u64,
}

impl Open {
    /// Adds the directory `fd` of a process; an exited process has none.
    fn add(&mut self, fd: &Path) {
        // Since Linux 6.2 the size is the number of open files; before, it is 0.
        let reported = fs::metadata(fd).map_or(0, |meta| meta.len());
        if reported > self.left {
            self.sockets = None;
            self.descriptors = self.descriptors.map(|sum| sum + reported);
            return;
        }
        let Ok(entries) = fs::read_dir(fd) else { return };
        for entry in entries.flatten() {
            if self.left == 0 {
                // The number of further sockets is unknown.
                (self.sockets, self.descriptors) = (None, None);
                return;
            }
            self.left -= 1;
            self.descriptors = self.descriptors.map(|sum| sum + 1);
            // Names of files begin with a slash, also those that a container chooses.
            if fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:[")) {
                self.sockets = self.sockets.map(|sum| sum + 1);
            }
        }
    }
}

/// Parses `Max open files            1024                 524288               files`; an unlimited
/// value is not a number.
fn open_files_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn open_files_of_this_process_are_counted() {
        let me = NonZeroU32::new(std::process::id()).unwrap();
        let before = count(&[me], Some(me));
        let pairs: Vec<_> = (0..50).map(|_| UnixStream::pair().unwrap()).collect();
        let after = count(&[me], Some(me));
        drop(pairs);
        assert_eq!((before.processes, after.processes), (Some(1), Some(1)));
        // Other tests open and close files meanwhile.
        assert!(after.sockets.unwrap() >= before.sockets.unwrap() + 90, "{before:?} {after:?}");
        assert!(after.descriptors.unwrap() >= after.sockets.unwrap());
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        assert_eq!(after.open_files_max, limit);
    }

    #[test]
    fn an_exited_process_has_no_open_files() {
        let gone = NonZeroU32::new(u32::MAX).unwrap();
        let counted = count(&[gone], Some(gone));
        let none = ProcessCounters { processes: Some(1), descriptors: Some(0), sockets: Some(0), open_files_max: None };
        assert_eq!(counted, none);
    }

    #[test]
    fn a_directory_above_the_limit_is_not_estimated() {
        let dir = tempfile::tempdir().unwrap();
        for name in 0..8 {
            std::os::unix::fs::symlink("socket:[1]", dir.path().join(name.to_string())).unwrap();
        }
        let open = |left| {
            let mut open = Open { descriptors: Some(0), sockets: Some(0), left };
            // The size of a directory on a disk is not the number of its entries.
            let reported = fs::metadata(dir.path()).unwrap().len();
            open.add(dir.path());
            (open.descriptors, open.sockets, reported)
        };
        assert_eq!((open(LOOKED_AT).0, open(LOOKED_AT).1), (Some(8), Some(8)));
        let (descriptors, sockets, reported) = open(3);
        let said = if reported > 3 { Some(reported) } else { None };
        assert_eq!((descriptors, sockets), (said, None));
    }

    #[test]
    fn the_limit_of_open_files_is_the_soft_one() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             15645                15645                processes \n\
            Max open files            1024                 524288               files     \n";
        assert_eq!(open_files_max(text), Some(1024));
        assert_eq!(open_files_max(&text.replace("1024  ", "unlimited")), None);
        assert_eq!(open_files_max(""), None);
    }
}
