//! Directories that crisp created above cgroups; they are removed once they are empty.

use std::cmp::Reverse;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::cgroupfs::LINKS_OF_A_LEAF;
use crate::created_cgroup::CreatedCgroup;

/// Parent directories that the creation of cgroups created, for later removal. Directories that
/// existed before belong to another owner, which may have set limits.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CreatedParents(Vec<Dir>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Dir {
    path: PathBuf,
    /// Distinguishes it from a later directory at the same path.
    inode: u64,
}

impl CreatedParents {
    /// Adds the directories that were created above `group`. Returns whether there were any.
    pub fn record(&mut self, made: &CreatedCgroup, group: &Cgroup) -> bool {
        let own: Vec<PathBuf> = group.dirs().collect();
        let above = made.dirs.iter().filter(|dir| !own.contains(dir));
        let above = above.filter_map(|path| Some(Dir { path: path.clone(), inode: fs::metadata(path).ok()?.ino() }));
        let above: Vec<Dir> = above.collect();
        self.0.retain(|old| !above.iter().any(|new| new.path == old.path));
        self.0.extend(above.iter().cloned());
        // Children before parents.
        self.0.sort_by_key(|dir| Reverse(dir.path.components().count()));
        !above.is_empty()
    }

    /// Removes the empty directories. Returns whether any was removed. A concurrent creation below
    /// one of them creates it again.
    pub fn remove_empty(&mut self) -> bool {
        let before = self.0.len();
        self.0.retain(Dir::stays);
        self.0.len() != before
    }
}

impl Dir {
    /// Returns whether the directory exists and is in use; removes it if it is not.
    fn stays(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(now) if now.ino() != self.inode => false,
            // The link count includes each subdirectory: stat(2) takes no lock of the cgroup file
            // system.
            Ok(now) if now.nlink() > LINKS_OF_A_LEAF => true,
            Ok(_) => fs::remove_dir(&self.path).is_err_and(|e| e.kind() != io::ErrorKind::NotFound),
            Err(e) => e.kind() != io::ErrorKind::NotFound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_directories_that_crisp_created_are_removed() {
        let top = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = top.path().join(name);
            fs::create_dir(&path).unwrap();
            Dir { inode: fs::metadata(&path).unwrap().ino(), path }
        };
        let (used, gone, replaced, empty) = (make("used"), make("gone"), make("replaced"), make("empty"));
        fs::create_dir(used.path.join("pod")).unwrap();
        fs::remove_dir(&gone.path).unwrap();
        let replaced = Dir { inode: replaced.inode + 1, ..replaced };
        let mut above = CreatedParents(vec![used.clone(), gone, replaced.clone(), empty.clone()]);
        assert!(above.remove_empty());
        assert_eq!(above, CreatedParents(vec![used.clone()]));
        assert!(replaced.path.exists() && !empty.path.exists());
        assert!(!above.remove_empty());
        fs::remove_dir(used.path.join("pod")).unwrap();
        assert!(above.remove_empty() && !used.path.exists());
    }
}
