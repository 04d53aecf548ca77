//! Loads the store's records when it is opened.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safe_fs::FileError;

use crate::config::chain_id;
use crate::digest::Digest;
use crate::layer::confined_root::{ConfinedRoot, DiskUsage, disk_usage};
use crate::layer::staged_layer::{Layer, LayerRecord, number};
use crate::record::Image;
use crate::store::catalog::{ImageRecord, OpenError, State, VERSION};
use crate::store::durable;
use crate::store::durable::Found;

/// Returns the entries of a directory.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>, FileError> {
    let listed = std::fs::read_dir(directory).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
    listed.map_err(safe_fs::at("listing", directory))
}

/// Removes what a crash left in `tmp/`. An entry that cannot be removed stays, and its number is
/// not used again.
pub(crate) fn clear(directory: &Path, state: &mut State) -> Result<(), FileError> {
    for path in entries(directory)? {
        let removed =
            if path.is_dir() && !path.is_symlink() { safe_fs::remove_dir(&path) } else { safe_fs::remove_file(&path) };
        if let Err(error) = removed {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(
                error,
                "cannot remove a leftover in the image store's tmp directory; it stays until the next start"
            );
            state.next_number = state.next_number.max(number(&path).unwrap_or_default());
        }
    }
    Ok(())
}

/// Loads the records of all layers.
///
/// A layer with a damaged record no longer belongs to an image, but a container may use its files:
/// it stays, under a chain id that only its number determines, until a sweep finds it unused.
pub(crate) fn load_layers(directory: &Path, state: &mut State) -> Result<(), OpenError> {
    let mut paths = entries(directory)?;
    // Of two with the same chain id, the older one keeps it.
    paths.sort_by_key(|path| number(path));
    for path in paths {
        let Some(number) = number(&path) else {
            tracing::warn!(path = %path.display(), "ignored an entry of the image store's layer directory that is not a layer; remove it by hand");
            continue;
        };
        state.next_number = state.next_number.max(number);
        let record_path = path.join("layer.json");
        let record = match durable::read_record::<LayerRecord>(&record_path, VERSION)? {
            Found::OtherVersion(found) => return Err(OpenError::Version { path: record_path, found }),
            Found::Record(record) if chain_id(record.parent.as_ref(), &record.diff_id) != record.chain_id => {
                tracing::warn!(path = %record_path.display(), "the record of an image layer is inconsistent; removing its images, pull them again");
                nameless(number, &path)?
            }
            Found::Record(record) if state.layers.contains_key(&record.chain_id) => {
                tracing::warn!(path = %path.display(), chain_id = %record.chain_id, "two image layers in the store have the same chain ID; using the older one");
                LayerRecord { chain_id: unreferenced_chain_id(number), ..record }
            }
            Found::Record(_) if !path.join("fs").is_dir() => {
                tracing::warn!(path = %path.display(), "the files of an image layer are missing; removing its images, pull them again");
                nameless(number, &path)?
            }
            Found::Record(record) => record,
            Found::Spoilt(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(
                    error,
                    "the record of an image layer is unreadable; removing its images, pull them again"
                );
                nameless(number, &path)?
            }
        };
        let beside = beside(&path)?;
        state.layers.insert(record.chain_id.clone(), Arc::new(Layer { number, record, beside }));
    }
    Ok(())
}

/// Returns the disk usage of a layer's directory without its files.
pub(crate) fn beside(path: &Path) -> Result<DiskUsage, FileError> {
    let mut usage = durable::disk_usage_of(path)?;
    usage.add(durable::disk_usage_of_entries(path, "fs")?);
    Ok(usage)
}

/// Returns a chain id that no image can have.
pub(crate) fn unreferenced_chain_id(number: u64) -> Digest {
    Digest::of(format!("layer {number} of no image").as_bytes())
}

/// Returns the record of a layer of which only the disk usage is known.
fn nameless(number: u64, path: &Path) -> Result<LayerRecord, FileError> {
    let files = path.join("fs");
    let weighed = ConfinedRoot::open(&files).and_then(|root| disk_usage(root.directory(Path::new("."))?.as_fd(), None));
    let DiskUsage { bytes, inodes } = match weighed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => DiskUsage::default(),
        other => other.map_err(safe_fs::at("weighing", &files))?,
    };
    let id = unreferenced_chain_id(number);
    Ok(LayerRecord {
        version: VERSION,
        chain_id: id.clone(),
        diff_id: id,
        parent: None,
        bytes,
        inodes,
        tar_bytes: None,
        origins: Vec::new(),
    })
}

/// Loads the records of all images; the layers are loaded before.
pub(crate) fn load_images(root: &Path, state: &mut State) -> Result<(), OpenError> {
    let (directory, blobs) = (root.join("images"), root.join("blobs"));
    let mut records = Vec::new();
    for path in entries(&directory)? {
        if path.extension().is_some_and(|extension| extension == "new") {
            safe_fs::remove_file(&path)?;
            continue;
        }
        let why = match durable::read_record::<ImageRecord>(&path, VERSION)? {
            Found::OtherVersion(found) => return Err(OpenError::Version { path, found }),
            Found::Record(record) if path.file_stem().and_then(|stem| stem.to_str()) != Some(record.image.id.hex()) => {
                "its record has the file name of another image"
            }
            Found::Record(record) if !record.image.chain.iter().all(|layer| state.layers.contains_key(layer)) => {
                "its layers are missing"
            }
            Found::Record(record) if !blobs.join(record.image.id.hex()).is_file() => "its config is missing",
            Found::Record(record) => {
                records.push(record);
                continue;
            }
            Found::Spoilt(_) => "its record is not readable",
        };
        tracing::warn!(path = %path.display(), "dropped an image from the image store, pull it again: {why}");
        safe_fs::remove_file(&path)?;
    }
    records.sort_by_key(|record| record.generation);
    let generations: HashMap<Digest, u64> =
        records.iter().map(|record| (record.image.id.clone(), record.generation)).collect();
    let mut robbed = BTreeSet::new();
    for record in records {
        state.generation = state.generation.max(record.generation);
        // A crash between writing the two records of a moved tag leaves it in both; the newer one
        // is valid.
        robbed.extend(state.insert(Arc::new(record.image)).iter().map(|image| image.id.clone()));
    }
    for (id, image) in robbed.iter().filter_map(|id| state.images.get_key_value(id)) {
        // Otherwise the tag would reappear after its removal from the other image.
        let generation = generations.get(id).copied().unwrap_or_default();
        let record = ImageRecord { version: VERSION, generation, image: Image::clone(image) };
        if let Err(error) = durable::write_json(&directory.join(format!("{}.json", id.hex())), &record) {
            tracing::warn!(
                old_image = %id,
                error = &error as &dyn std::error::Error,
                "cannot record that an image lost a tag to another; the tag may return to it when the other is removed"
            );
        }
    }
    Ok(())
}
