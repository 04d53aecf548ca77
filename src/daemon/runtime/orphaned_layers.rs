//! Removes writable layers without a container, and image layers that no container uses. Both are
//! on disk, and outlive a reboot.
//!
//! A writable layer names its owner. While the owner's directory exists, the layer and its image
//! layers are kept, also those of another release or of a daemon with another state directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::ContainerId;
use model::error_chain::chain;
use safe_fs::FileError;
use safe_fs::process_lock::Holder;

use super::{Runtime, blocking_stop};
use crate::store::CONTAINER_FILE;

/// The file in a writable layer's directory with the path of its container's directory.
const OWNER: &str = "owner";

/// Records the owner of the writable layer in `writable`.
pub(super) fn write_owner(writable: &Path, container: &Path) -> Result<(), FileError> {
    use std::os::unix::ffi::OsStrExt as _;
    safe_fs::write(&writable.join(OWNER), container.as_os_str().as_bytes())
}

/// Returns the directory of the container that owns the layer in `writable`; `None` if it does not
/// exist.
fn owner(writable: &Path) -> Result<Option<PathBuf>, FileError> {
    use std::os::unix::ffi::OsStringExt as _;
    let file = writable.join(OWNER);
    let owner = match std::fs::read(&file) {
        Ok(bytes) => PathBuf::from(std::ffi::OsString::from_vec(bytes)),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(FileError::new("reading", file, source)),
    };
    match owner.try_exists() {
        Ok(there) => Ok(there.then_some(owner)),
        Err(source) => Err(FileError::new("reading", owner, source)),
    }
}

impl Runtime {
    /// Reserves the image layers of all existing containers, and removes layers without an owner. A
    /// layer whose owner cannot be read is kept.
    /// Returns the number of removed writable layers.
    pub(super) fn collect_orphaned_layers(&self) -> usize {
        match safe_fs::list_names(&self.layout.writable_layers()) {
            Ok(names) => self.reclaim_all_orphaned(names),
            Err(error) => {
                tracing::error!(
                    error = chain(&error),
                    "cannot list the writable layers of containers; unused image layers stay on disk until the next start"
                );
                0
            }
        }
    }

    /// Retries the layers that [`Runtime::collect_orphaned_layers`] could not check. Only those:
    /// other containers are being created.
    pub(super) fn retry_orphaned_layers(&self) {
        let names = std::mem::take(&mut *self.unjudged.lock());
        if !names.is_empty() {
            self.reclaim_all_orphaned(names);
        }
    }

    /// Records a removed container that an earlier daemon did not complete.
    pub(super) fn note_unfinished(&self, id: &ContainerId) {
        self.unfinished.lock().push(id.to_string());
    }

    /// Removes the layers of incomplete containers again after the replaced daemon has exited: the
    /// system call that blocked it may have created one.
    pub(crate) fn remove_layers_after(self: &Arc<Self>, replaced: Holder) {
        let runtime = Arc::downgrade(self);
        tokio::spawn(async move {
            while replaced.is_alive() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let Some(runtime) = runtime.upgrade() else { return };
            blocking_stop(move || {
                for name in std::mem::take(&mut *runtime.unfinished.lock()) {
                    let writable = runtime.layout.writable_layers().join(&name);
                    if let Err(error) = runtime.reclaim_if_orphaned(&name, &writable) {
                        tracing::warn!(
                            name,
                            error = chain(&error),
                            "cannot remove the writable layer of a container that the previous daemon left incomplete; it stays until the daemon's next start"
                        );
                    }
                }
            })
            .await;
        });
    }

    /// Returns the number of removed layers.
    fn reclaim_all_orphaned(&self, names: Vec<String>) -> usize {
        let writables = self.layout.writable_layers();
        let mut removed = 0;
        let mut judged = |name: &String| match self.reclaim_if_orphaned(name, &writables.join(name)) {
            Ok(reclaimed) => {
                removed += usize::from(reclaimed);
                true
            }
            Err(error) => {
                tracing::error!(
                    name,
                    error = chain(&error),
                    "cannot determine the container of a writable layer; keeping all image layers, will retry"
                );
                false
            }
        };
        let unjudged: Vec<String> = names.into_iter().filter(|name| !judged(name)).collect();
        if unjudged.is_empty()
            && let Err(error) = self.images.remove_unused()
        {
            tracing::warn!(
                error = chain(&error),
                "cannot remove unused image layers; they stay on disk until the next removal of unused layers"
            );
        }
        *self.unjudged.lock() = unjudged;
        removed
    }

    /// Returns whether the layer was removed.
    fn reclaim_if_orphaned(&self, name: &str, writable: &Path) -> Result<bool, FileError> {
        let Some(owner) = owner(writable)? else {
            return safe_fs::remove_dir(writable).map(|()| true);
        };
        let path = shim_protocol::LaunchConfig::path(&owner);
        let launch = safe_fs::read_json::<shim_protocol::LaunchConfig>(&path)?;
        // An incomplete container may have no launch configuration, and then uses no layers.
        if launch.is_none() && owner.join(CONTAINER_FILE).exists() {
            return Err(FileError::new("reading", path, io::ErrorKind::NotFound));
        }
        for lowers in launch.iter().flat_map(|launch| launch.images.values().chain([&launch.rootfs.lower])) {
            if let Err(error) = self.images.hold_lowers(name, lowers) {
                tracing::warn!(
                    container = name,
                    error = chain(&error),
                    "cannot reserve the image layers of an existing container; its image may lose layers that it uses"
                );
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_an_owner_while_the_container_exists() {
        let dir = tempfile::tempdir().unwrap();
        let (writable, container) = (dir.path().join("layer"), dir.path().join("container"));
        std::fs::create_dir(&writable).unwrap();
        assert_eq!(owner(&writable).unwrap(), None, "no owner is recorded");
        write_owner(&writable, &container).unwrap();
        assert_eq!(owner(&writable).unwrap(), None, "the container is gone");
        std::fs::create_dir(&container).unwrap();
        assert_eq!(owner(&writable).unwrap(), Some(container));
        std::fs::remove_file(writable.join(OWNER)).unwrap();
        std::fs::create_dir(writable.join(OWNER)).unwrap();
        assert!(owner(&writable).is_err(), "an unreadable owner is an error");
    }
}
