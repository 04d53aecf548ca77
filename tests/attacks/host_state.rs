//! Files of the host that containers must not reach.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::support::env::TestEnv;
use crate::support::kernel_state;

/// A directory of the host that no container has. Its files must not be read, created, changed or
/// mounted over.
#[derive(Debug)]
pub(super) struct Outside {
    dir: PathBuf,
    before: Vec<Looks>,
}

/// The state that creating, writing, truncating, renaming, chmod or chown would change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Looks {
    path: PathBuf,
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    changed: (i64, i64),
    text: String,
}

impl Outside {
    /// The text that no container may read.
    pub(super) const SECRET: &str = "a secret of the host";

    pub(super) fn new(env: &TestEnv) -> Self {
        let dir = env.dir().join("outside");
        fs::create_dir_all(dir.join("dir/target")).unwrap();
        for file in ["file", "null", "console", "dir/file", "dir/target/secret"] {
            fs::write(dir.join(file), Self::SECRET).unwrap();
        }
        symlink("file", dir.join("link")).unwrap();
        let before = look(&dir);
        Self { dir, before }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path in it as an image has it: from the root, as if the image's root were the host's.
    pub(super) fn absolute(&self, below: &str) -> String {
        self.dir.join(below).display().to_string()
    }

    /// The same from any depth, by way of the root.
    pub(super) fn climbing(&self, below: &str) -> String {
        format!("{}{}", "../".repeat(20), self.absolute(below).trim_start_matches('/'))
    }

    pub(super) fn check(&self, what: &str) {
        assert_eq!(look(&self.dir), self.before, "{what}");
        assert!(kernel_state::mounts_under(&self.dir).is_empty(), "{what}: a mount exists there");
    }
}

fn look(dir: &Path) -> Vec<Looks> {
    let (mut all, mut ahead) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(path) = ahead.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            ahead.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let text = if meta.is_file() { fs::read_to_string(&path).unwrap() } else { String::new() };
        all.push(Looks {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            links: meta.nlink(),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
            text,
            path,
        });
    }
    all.sort();
    all
}
