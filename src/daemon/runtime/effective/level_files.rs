//! Open files of the cgroups above containers, which statistics read again and again.

use std::collections::HashMap;
use std::sync::Arc;

use cgroup::FileCache;
use sync::Mutex;

/// Cgroups with open files.
const MOST: usize = 1024;

/// Open files by the path of the cgroup.
#[derive(Debug, Default)]
pub(crate) struct LevelFiles(Mutex<HashMap<String, Arc<FileCache>>>);

impl LevelFiles {
    /// Returns the open files of a cgroup; none if there are too many cgroups.
    pub(crate) fn of(&self, level: &str) -> Option<Arc<FileCache>> {
        let mut levels = self.0.lock();
        if let Some(known) = levels.get(level) {
            return Some(Arc::clone(known));
        }
        (levels.len() < MOST).then(|| Arc::clone(levels.entry(level.to_owned()).or_default()))
    }

    /// Closes all files: after the removal of a pod, so that none of its cgroups stays open.
    pub(crate) fn close(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_cgroups_is_bounded_until_they_are_closed() {
        let files = LevelFiles::default();
        assert!((0..MOST).all(|n| files.of(&format!("/pod{n}")).is_some()));
        assert!(files.of("/another").is_none() && files.of("/pod0").is_some());
        files.close();
        assert!(files.of("/another").is_some());
    }
}
