//! Bounded reads of the files of a process.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

/// The most bytes of one file; arguments and variables can have megabytes.
const MAX: u64 = 256 << 10;
/// The time for one read: the memory of a process, and so its arguments, may be on a file system that hangs.
const WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) struct ProcFiles {
    pid: u32,
}

impl ProcFiles {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid }
    }

    fn path(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    /// Returns the beginning of a file; None if it cannot be read in time.
    fn read(self, name: &str) -> Option<Vec<u8>> {
        let path = self.path(name);
        in_time(move || {
            let mut bytes = Vec::new();
            File::open(path)?.take(MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    pub(super) fn text(self, name: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.read(name)?).into_owned())
    }

    /// Returns the strings of `cmdline` or `environ`.
    pub(super) fn strings(self, name: &str) -> Vec<String> {
        let bytes = self.read(name).unwrap_or_default();
        bytes.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    }

    pub(super) fn variable(self, name: &str) -> Option<String> {
        self.strings("environ").iter().find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    /// Returns the file name of the program, if it is a usual one.
    pub(super) fn program(self) -> Option<String> {
        let path = std::fs::read_link(self.path("exe")).ok()?;
        let name = path.file_name()?.to_str()?.trim_end_matches(" (deleted)").to_owned();
        (name.len() <= 64 && name.chars().all(|c| c.is_ascii_graphic())).then_some(name)
    }

    /// Reads up to `length` bytes of the program at `offset`.
    pub(super) fn of_program(self, offset: u64, length: usize) -> Option<Vec<u8>> {
        let path = self.path("exe");
        in_time(move || {
            let mut bytes = vec![0; length];
            let count = File::open(path)?.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            Ok(bytes)
        })
    }
}

/// Runs a read in a thread; if it takes too long, the thread is left behind and ends with this process.
fn in_time<T: Send + 'static>(read: impl FnOnce() -> io::Result<T> + Send + 'static) -> Option<T> {
    let (sender, receiver) = sync_channel(1);
    // The receiver may be gone.
    thread::Builder::new().spawn(move || sender.send(read()).ok()).ok()?;
    receiver.recv_timeout(WITHIN).ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_this_process_are_read() {
        let files = ProcFiles::new(std::process::id());
        assert!(files.text("status").unwrap().contains("Cpus_allowed_list:"));
        assert!(files.strings("cmdline").len() > 1);
        assert_eq!(files.variable("NO_SUCH_VARIABLE_OF_CRISP"), None);
        assert_eq!(files.of_program(0, 4).unwrap(), b"\x7fELF");
        assert!(ProcFiles::new(u32::MAX).text("status").is_none());
    }

    #[test]
    fn a_read_that_hangs_is_given_up() {
        assert_eq!(
            in_time(|| {
                thread::sleep(WITHIN * 10);
                Ok(())
            }),
            None
        );
    }
}
