//! Works on an image store that no daemon has open.
//!
//! Containers outlive the daemon. While there may be one, no layer is deleted here: only a daemon
//! can find out which containers run.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ::image::{Compress, Image, Limits, OpenError, PruneError, Registries, Store};
use config::{ConfigError, PinnedImages, RawConfig};
use cri_api::{admin, v1};
use daemon::convert;
use daemon::serve::images_dir;
use daemon::store::Layout;
use safe_fs::FileError;

use super::ImageError;
use super::output_file::OutputFile;
use crate::progress_bar::ProgressBar;
use crate::signals::Interrupt;

/// A store opened by this process.
pub(crate) struct LocalStore {
    store: Store,
    layout: Layout,
    pinned: PinnedImages,
}

/// The action if the store does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Make,
    Refuse,
}

impl LocalStore {
    pub(crate) fn open(config: &RawConfig, absent: IfMissing) -> Result<Self, ImageError> {
        let dir = images_dir(&config.root);
        // A store has a lock file from its creation on; a directory without one may be another
        // program's. If the directory cannot be read, `Store::open` reports it.
        if absent == IfMissing::Refuse && matches!(dir.join("lock").try_exists(), Ok(false)) {
            return Err(ImageError::NoStore(dir));
        }
        let pinned = PinnedImages::parse(&config.image.pinned).map_err(ConfigError::from)?;
        let registries = Registries { search: config.image.search.clone(), ..Registries::default() };
        let store = Store::open(&dir, registries, Limits::default())?;
        let layout = Layout { state: config.state.clone(), root: config.root.clone() };
        Ok(Self { store, layout, pinned })
    }

    pub(crate) fn list(&self) -> Vec<v1::Image> {
        self.store.list().iter().map(|image| convert::image::to_wire(image, &self.pinned)).collect()
    }

    /// Returns a path of a container that may still run.
    fn container(&self) -> Result<Option<PathBuf>, FileError> {
        let first = |dir: PathBuf| safe_fs::list_names(&dir).map(|names| names.first().map(|name| dir.join(name)));
        if let Some(writable) = first(self.layout.writable_layers())? {
            return Ok(Some(writable));
        }
        for pod in safe_fs::list_names(&self.layout.pods())? {
            if let Some(container) = first(self.layout.pods().join(pod).join("containers"))? {
                return Ok(Some(container));
            }
        }
        Ok(None)
    }

    fn known_container(&self) -> Result<Option<PathBuf>, ImageError> {
        self.container().map_err(|error| ImageError::Containers(error.into()))
    }

    /// Removes a tag, or an image with all its tags; None if it does not exist.
    pub(crate) fn remove(&self, name: &str, all_tags: bool) -> Result<Option<admin::RemoveResponse>, ImageError> {
        let failed = |source| ImageError::Remove { name: name.to_owned(), source };
        if self.known_container()?.is_none() {
            self.store.remove_unused().map_err(|error| failed(error.into()))?;
        }
        let removed = self.store.remove_named(name, all_tags).map_err(failed)?;
        Ok(removed.map(convert::admin::removed_to_wire))
    }

    pub(crate) fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        progress_bar: &ProgressBar,
        interrupt: &Interrupt,
    ) -> Result<Vec<admin::Image>, ImageError> {
        let imported = self.store.import(path, name, &|progress| {
            progress_bar.update(progress);
            going_on(interrupt)
        });
        let images =
            imported.map_err(|error| if interrupt.is_stopped() { ImageError::Interrupted } else { error.into() })?;
        Ok(images.iter().map(|image| convert::admin::to_wire(image)).collect())
    }

    pub(crate) fn export(
        &self,
        names: &[String],
        compress: Compress,
        output: &mut OutputFile,
        progress_bar: &ProgressBar,
        interrupt: &Interrupt,
    ) -> Result<(), ImageError> {
        let exported = self.store.export(names, compress, output, &|progress| {
            progress_bar.update(progress);
            going_on(interrupt)
        });
        exported.map_err(|error| match error {
            _ if interrupt.is_stopped() => ImageError::Interrupted,
            ::image::ExportError::Write(source) => output.failed(source),
            other => other.into(),
        })
    }

    pub(crate) fn prune(&self, all: bool, dry_run: bool) -> Result<admin::PruneResponse, ImageError> {
        if let Some(container) = self.known_container()? {
            return Err(ImageError::MayRun(container));
        }
        self.store.remove_unused().map_err(PruneError::from)?;
        let keep = |image: &Image| self.pinned.spares(image, all);
        let pruned = if dry_run { self.store.prunable(keep) } else { self.store.prune(keep) };
        Ok(convert::admin::pruned_to_wire(&pruned?))
    }
}

fn going_on(interrupt: &Interrupt) -> ControlFlow<()> {
    if interrupt.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Returns whether opening failed because a daemon uses the store, or because only root may open it.
pub(crate) fn is_daemons(error: &OpenError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut denied = false;
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        denied |= io.is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied);
        cause = error.source();
    }
    denied || matches!(error, OpenError::InUse(_))
}
