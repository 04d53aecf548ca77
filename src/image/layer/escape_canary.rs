//! Detects changes outside of a layer, for tests of hostile layers.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A directory with a place for a layer, and a tree beside it that must not change.
#[derive(Debug)]
pub struct Canary {
    directory: PathBuf,
    before: BTreeMap<PathBuf, Seen>,
}

/// All visible properties of a file. The ctime reveals changes that were undone, too.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    content: Vec<u8>,
    xattrs: Vec<u8>,
}

impl Canary {
    /// Creates the tree and the layer's directory, both under `directory`, which must be empty.
    pub fn new(directory: &Path) -> std::io::Result<Self> {
        let at = |name: &str| directory.join(name);
        std::fs::create_dir_all(at("layer/fs"))?;
        std::fs::create_dir_all(at("outside/directory/empty"))?;
        std::fs::write(at("outside/file"), "untouched")?;
        std::fs::write(at("outside/directory/set-id"), "untouched")?;
        std::fs::set_permissions(at("outside/directory/set-id"), std::fs::Permissions::from_mode(0o4755))?;
        std::fs::set_permissions(at("outside/file"), std::fs::Permissions::from_mode(0o640))?;
        std::os::unix::fs::symlink("file", at("outside/link"))?;
        let before = survey(directory)?;
        Ok(Self { directory: directory.to_owned(), before })
    }

    /// Returns the directory to unpack a layer in.
    pub fn layer(&self) -> PathBuf {
        self.directory.join("layer")
    }

    /// Panics if anything outside of the layer has changed.
    pub fn check(&self) {
        let now = survey(&self.directory).unwrap_or_else(|error| panic!("reading the canary: {error}"));
        let all = self.before.keys().chain(now.keys());
        let changed = all.filter(|path| self.before.get(*path) != now.get(*path));
        let changed: Vec<_> = changed.map(|path| (path, self.before.get(path), now.get(path))).collect();
        assert!(changed.is_empty(), "changed outside the layer: {changed:#?}");
    }
}

/// Returns everything under `directory` except the content of `layer`.
fn survey(directory: &Path) -> std::io::Result<BTreeMap<PathBuf, Seen>> {
    let mut seen = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        let stat = std::fs::symlink_metadata(&path)?;
        let mut content = Vec::new();
        if stat.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?.path();
                if entry != directory.join("layer") {
                    left.push(entry);
                }
            }
        } else if stat.is_file() {
            content = std::fs::read(&path)?;
        } else {
            content = std::fs::read_link(&path)?.into_os_string().into_encoded_bytes();
        }
        let mut xattrs = vec![0; 4096];
        let length = rustix::fs::llistxattr(&path, &mut xattrs[..])?;
        xattrs.truncate(length);
        let look = Seen {
            mode: stat.mode(),
            owner: (stat.uid(), stat.gid()),
            links: stat.nlink(),
            inode: stat.ino(),
            size: stat.size(),
            modified: (stat.mtime(), stat.mtime_nsec()),
            changed: (stat.ctime(), stat.ctime_nsec()),
            content,
            xattrs,
        };
        seen.insert(path, look);
    }
    Ok(seen)
}
