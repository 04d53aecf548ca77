//! Files of a cgroup that stay open between reads: opening one takes several times as long as reading it.
//!
//! They do not prevent the removal of the cgroup: a later read fails with ENODEV.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use sync::Mutex;

/// Maximum open files of all cgroups together; each takes a few kilobytes of kernel memory.
const MOST: usize = 8192;

/// The number of open files.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The open files of one cgroup, by name.
#[derive(Debug, Default)]
pub struct FileCache(Mutex<Vec<(String, Arc<File>)>>);

impl FileCache {
    /// Reads the beginning of the file at `path` in one call, and keeps it open if the limit
    /// permits.
    pub(crate) fn read(&self, path: &Path, buffer: &mut [u8]) -> io::Result<usize> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(file) = self.find(name) {
            match read_start(&file, buffer) {
                // Removed, or its controller was disabled and enabled again: then the path is
                // another file.
                Err(e) if Errno::from_io_error(&e) == Some(Errno::NODEV) => self.forget(name),
                other => return other,
            }
        }
        let file = Arc::new(File::open(path)?);
        let read = read_start(&file, buffer)?;
        if OPEN.fetch_add(1, Ordering::Relaxed) < room() {
            self.0.lock().push((name.to_owned(), file));
        } else {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(read)
    }

    fn find(&self, name: &str) -> Option<Arc<File>> {
        let files = self.0.lock();
        files.iter().find(|(known, _)| known == name).map(|(_, file)| Arc::clone(file))
    }

    fn forget(&self, name: &str) {
        let mut files = self.0.lock();
        let before = files.len();
        files.retain(|(known, _)| known != name);
        OPEN.fetch_sub(before - files.len(), Ordering::Relaxed);
    }

    /// Closes all files.
    pub fn close(&self) {
        let files = std::mem::take(&mut *self.0.lock());
        OPEN.fetch_sub(files.len(), Ordering::Relaxed);
    }
}

impl Drop for FileCache {
    fn drop(&mut self) {
        self.close();
    }
}

/// Most descriptors are reserved for connections, shims and logs.
fn room() -> usize {
    static ROOM: OnceLock<usize> = OnceLock::new();
    *ROOM.get_or_init(|| {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        usize::try_from(most / 4).unwrap_or(MOST).min(MOST)
    })
}

fn read_start(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, 0) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kept: &FileCache, path: &Path) -> io::Result<String> {
        let mut buffer = [0; 64];
        let read = kept.read(path, &mut buffer)?;
        Ok(String::from_utf8(buffer[..read].to_vec()).unwrap())
    }

    #[test]
    fn a_cached_file_has_its_current_content_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.max");
        let kept = FileCache::default();
        assert_eq!(text(&kept, &path).unwrap_err().kind(), io::ErrorKind::NotFound);
        for value in ["1", "22"] {
            std::fs::write(&path, value).unwrap();
            assert_eq!(text(&kept, &path).unwrap(), value);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text(&kept, &path).unwrap(), "22", "it is open");
        kept.close();
        assert!(text(&kept, &path).is_err());
    }
}
