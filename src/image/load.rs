//! Reading the store's records when it is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{self, DiskError};
use crate::layer::{Layer, LayerRecord, number};
use crate::shelf::{ImageRecord, OpenError, State, VERSION};

/// What is in a directory.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, DiskError> {
    let listed = std::fs::read_dir(directory).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
    listed.map_err(disk::at("listing", directory))
}

/// Reads the records of all layers.
pub(crate) fn load_layers(directory: &Path, state: &mut State) -> Result<(), OpenError> {
    for path in entries(directory)? {
        let Some(number) = number(&path) else {
            tracing::warn!(path = %path.display(), "not a layer, left alone");
            continue;
        };
        state.next_number = state.next_number.max(number);
        let record_path = path.join("layer.json");
        match disk::read_json::<LayerRecord>(&record_path) {
            Ok(record) if record.version > VERSION => {
                return Err(OpenError::Version { path: record_path, found: record.version });
            }
            Ok(record) => {
                state.layers.insert(record.chain_id.clone(), Arc::new(Layer { number, record }));
            }
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "layer without a readable record, left alone");
            }
        }
    }
    Ok(())
}

/// Reads the records of all images, whose layers are known by now.
pub(crate) fn load_images(directory: &Path, state: &mut State) -> Result<(), OpenError> {
    let mut records = Vec::new();
    for path in entries(directory)? {
        if path.extension().is_some_and(|extension| extension == "new") {
            disk::remove_file(&path)?;
            continue;
        }
        match disk::read_json::<ImageRecord>(&path) {
            Ok(record) if record.version > VERSION => {
                return Err(OpenError::Version { path, found: record.version });
            }
            Ok(record) if !record.image.chain.iter().all(|layer| state.layers.contains_key(layer)) => {
                tracing::warn!(image = %record.image.id, "image lacks layers and is dropped");
                disk::remove_file(&path)?;
            }
            Ok(record) => records.push(record),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "image record cannot be read and is dropped");
                disk::remove_file(&path)?;
            }
        }
    }
    records.sort_by_key(|record| record.generation);
    for record in records {
        state.generation = state.generation.max(record.generation);
        // A crash between two records of a moved tag leaves both with it; the later one is right.
        state.insert(Arc::new(record.image));
    }
    Ok(())
}
