//! Images without a daemon: the store is used directly, which only works while no daemon has it open.

use std::path::Path;
use std::sync::Arc;

use image::{Image, ImportError, Limits, OpenError, Registries, Store};

use crate::serve::images_dir;

/// The store could not be used.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error("this works only while no daemon uses the store")]
    InUse(#[source] OpenError),
    #[error("opening the image store")]
    Open(#[source] OpenError),
    #[error("importing the archive")]
    Import(#[from] ImportError),
}

/// Puts the images of an OCI layout or docker archive into the store below `root`, the only one under `name` where one is given.
pub fn import(root: &Path, archive: &Path, name: Option<&str>) -> Result<Vec<Arc<Image>>, OfflineError> {
    Ok(open(root)?.import(archive, name)?)
}

/// All images of the store below `root`.
pub fn list(root: &Path) -> Result<Vec<Arc<Image>>, OfflineError> {
    Ok(open(root)?.list())
}

fn open(root: &Path) -> Result<Store, OfflineError> {
    let store = Store::open(&images_dir(root), Registries::default(), Limits::default());
    store.map_err(|error| match error {
        OpenError::InUse(_) => OfflineError::InUse(error),
        OpenError::Version { .. } | OpenError::Disk(_) => OfflineError::Open(error),
    })
}
