//! Lets tests inspect the disk at every step of an operation, as a crash there would leave it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sync::Mutex;

type Look = Arc<dyn Fn(&'static str) + Send + Sync>;

static LOOKS: Mutex<Option<HashMap<PathBuf, Look>>> = Mutex::new(None);

/// Calls `look` at every step of the store at `root`, until the returned value is dropped.
pub(crate) fn at_each_step(root: &Path, look: impl Fn(&'static str) + Send + Sync + 'static) -> Looking {
    let root = std::fs::canonicalize(root).unwrap();
    let mut looks = LOOKS.lock();
    looks.get_or_insert_default().insert(root.clone(), Arc::new(look));
    Looking(root)
}

pub(crate) struct Looking(PathBuf);

impl Drop for Looking {
    fn drop(&mut self) {
        let mut looks = LOOKS.lock();
        looks.get_or_insert_default().remove(&self.0);
    }
}

pub(crate) fn crash_point(path: &Path, name: &'static str) {
    let looks = LOOKS.lock();
    let found = looks.as_ref().and_then(|looks| path.ancestors().find_map(|above| looks.get(above)).cloned());
    drop(looks);
    if let Some(look) = found {
        look(name);
    }
}
