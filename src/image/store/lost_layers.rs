//! Detects layers whose files are missing on disk, before they are used.

use std::sync::Arc;

use safe_fs::FileError;

use crate::digest::Digest;
use crate::layer::staged_layer::Layer;
use crate::record::Image;
use crate::store::catalog::Catalog;

impl Catalog {
    /// Removes layers of a chain whose files are missing, and their images, so that they are pulled
    /// again; returns whether there were any. Blocks briefly.
    pub(crate) fn forget_lost(&self, chain: &[Digest]) -> Result<bool, FileError> {
        let mut any = false;
        for chain_id in chain {
            let layer = self.state().layers.get(chain_id).cloned();
            if let Some(layer) = layer
                && self.is_lost(&layer)?
            {
                any |= self.forget_layer(&layer)?;
            }
        }
        Ok(any)
    }

    /// Returns whether the directory does not exist; any other error is returned.
    fn is_lost(&self, layer: &Layer) -> Result<bool, FileError> {
        let files = self.layers_dir().join(layer.number.to_string()).join("fs");
        match rustix::fs::lstat(&files) {
            Ok(_) => Ok(false),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(true),
            Err(errno) => Err(safe_fs::at("checking", &files)(errno.into())),
        }
    }

    fn forget_layer(&self, lost: &Layer) -> Result<bool, FileError> {
        let _change = self.change.lock();
        let chain_id = &lost.record.chain_id;
        // A layer that was removed or unpacked again in the meantime is not the one that was
        // checked.
        if self.state().layers.get(chain_id).is_none_or(|layer| layer.number != lost.number) {
            return Ok(false);
        }
        let images: Vec<Arc<Image>> = self.state().images.values().cloned().collect();
        for image in images.iter().filter(|image| image.chain.contains(chain_id)) {
            tracing::error!(image = %image.id, layer = %chain_id, "files of an image layer are missing; removing the image, pull it again");
            self.drop_image(image)?;
        }
        self.state().layers.remove(chain_id);
        // Otherwise the record beside the files would be loaded at the next start.
        safe_fs::remove_dir(&self.layers_dir().join(lost.number.to_string()))?;
        Ok(true)
    }
}
