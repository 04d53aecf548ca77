//! The image service: finds, pulls and removes images, with the registries as they are configured now.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use config::{NoSuchHandler, PinnedImages, RegistryReloader};
use image::{AmbiguousImageId, Image, PullError, PullRequest, Store, Usage};
use model::error_chain::chain;
use model::{ErrorClass, ErrorKind, ImageName};
use safe_fs::FileError;
use sync::threads::ORDINARY;

use crate::runtime::Runtime;

/// The images of this node, and the settings that decide how they are pulled and shown.
#[derive(Debug)]
pub(crate) struct Images {
    runtime: Arc<Runtime>,
    registries: Arc<RegistryReloader>,
}

/// An image that could not be found, pulled or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error(transparent)]
    Handler(#[from] NoSuchHandler),
    #[error(transparent)]
    Ambiguous(#[from] AmbiguousImageId),
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error(transparent)]
    Remove(#[from] FileError),
}

impl ErrorClass for ImageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Handler(error) => error.kind(),
            Self::Ambiguous(error) => error.kind(),
            Self::Pull(error) => error.kind(),
            Self::Remove(error) => error.kind(),
        }
    }
}

/// The manifest and config of an image as it was pulled; `None` if the image was removed meanwhile.
#[derive(Debug)]
pub(crate) struct Documents {
    pub(crate) config: Option<Vec<u8>>,
    pub(crate) manifest: Option<Vec<u8>>,
}

impl Images {
    pub(crate) fn new(runtime: Arc<Runtime>, registries: Arc<RegistryReloader>) -> Self {
        Self { runtime, registries }
    }

    fn store(&self) -> &Arc<Store> {
        self.runtime.images()
    }

    /// Returns the images that the configuration pins.
    pub(crate) fn pinned(&self) -> PinnedImages {
        self.runtime.settings().pinned.clone()
    }

    /// Returns the image that `filter` names, or all images if it names none.
    pub(crate) fn list(&self, filter: Option<&ImageName>) -> Result<Vec<Arc<Image>>, ImageError> {
        if let Some(name) = filter {
            self.check_handler(name)?;
        }
        Ok(match filter.filter(|name| !name.image.is_empty()) {
            Some(name) => self.store().lookup(&name.image)?.into_iter().collect(),
            None => self.store().list(),
        })
    }

    /// Returns the image `name`.
    pub(crate) fn find(&self, name: &ImageName) -> Result<Option<Arc<Image>>, ImageError> {
        self.check_handler(name)?;
        Ok(self.store().lookup(&name.image)?)
    }

    /// Reads the documents of an image. Blocks.
    pub(crate) fn documents(&self, image: &Image) -> Documents {
        let blob = |digest| self.store().blob(digest).ok();
        Documents { config: blob(&image.id), manifest: image.manifest.as_ref().and_then(blob) }
    }

    /// Reloads the settings of registries, and returns the registries to search for a name without one.
    ///
    /// Invalid settings fail no pull: the last valid ones stay in use.
    pub(crate) async fn search(&self) -> Vec<String> {
        let (registries, store) = (Arc::clone(&self.registries), Arc::clone(self.store()));
        if ORDINARY.run(move || refresh_registries(&registries, &store)).await.is_err() {
            tracing::error!(
                "reloading the registry settings panicked; the previous ones stay in use, please report this bug"
            );
        }
        self.store().search()
    }

    /// Pulls an image. Dropping the future abandons the pull.
    pub(crate) async fn pull(&self, name: &ImageName, request: PullRequest) -> Result<Arc<Image>, ImageError> {
        self.check_handler(name)?;
        Ok(self.store().pull(request).await?)
    }

    /// Removes the image `name` with all its names, even a pinned one: pins only keep the kubelet from collecting it.
    ///
    /// Containers keep the layers that they use. Succeeds if there is no such image. Blocks.
    pub(crate) fn remove(&self, name: &ImageName) -> Result<(), ImageError> {
        match self.find(name)? {
            Some(image) => Ok(self.store().remove(image.id.as_str())?),
            None => Ok(()),
        }
    }

    /// Returns the usage of the filesystems of images and of writable layers. Blocks.
    pub(crate) fn filesystems(&self) -> (Usage, Usage) {
        let images = self.store().usage();
        let containers = of_containers(&images, &self.runtime.layers_dir()).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot stat the filesystem of writable layers; ImageFsInfo reports that of images for both");
            images.clone()
        });
        (images, containers)
    }

    /// Checks that the handler exists. Images are the same for all handlers.
    fn check_handler(&self, name: &ImageName) -> Result<(), NoSuchHandler> {
        self.runtime.settings().handlers.for_field(&name.handler).map(drop)
    }
}

/// Applies the settings of registries if their files have changed. Blocks. Invalid settings are
/// logged, and the previous ones stay in use.
pub(crate) fn refresh_registries(registries: &RegistryReloader, store: &Store) {
    if let Err(error) = registries.refresh(|new| store.set_registries(new)) {
        tracing::warn!(
            error = chain(&error),
            "invalid [image] or [registries] settings, or files named there; keeping the previous ones for pulls"
        );
    }
}

/// Returns the usage of the filesystem of `writables`: the images' own entry if both are on the same filesystem, from
/// which the kubelet detects that.
fn of_containers(images: &Usage, writables: &Path) -> io::Result<Usage> {
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev());
    if device(&images.path)? == device(writables)? {
        return Ok(images.clone());
    }
    // Of the whole filesystem: adding up the files of every container would take minutes.
    let whole = rustix::fs::statvfs(writables)?;
    Ok(Usage {
        path: writables.to_owned(),
        bytes: whole.f_blocks.saturating_sub(whole.f_bfree).saturating_mul(whole.f_frsize),
        inodes: whole.f_files.saturating_sub(whole.f_ffree),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_of_both_is_reported_once_and_two_are_reported_as_two() {
        let dir = tempfile::tempdir().unwrap();
        let images = Usage { path: dir.path().to_owned(), bytes: 5, inodes: 6 };
        let writables = dir.path().join("containers");
        std::fs::create_dir(&writables).unwrap();
        assert_eq!(of_containers(&images, &writables).unwrap(), images);
        let other = of_containers(&images, Path::new("/proc")).unwrap();
        assert_eq!(other.path, Path::new("/proc"));
        assert!(of_containers(&images, &dir.path().join("none")).is_err());
    }
}
