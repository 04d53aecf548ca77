//! Exports images as an OCI image layout in a tar archive, which `docker load` reads as well.
//!
//! Each layer is written as the tar stream that was pulled or imported, byte for byte, so an import
//! of the archive yields the same diff ids, the same config and the same image id. Only the
//! manifest is new: it describes the compression used *here*.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use safe_fs::FileError;
use serde_json::json;

use crate::archive::progress::{Counter, ProgressFn};
use crate::archive::reader::blob_name;
use crate::digest::{Digest, Hasher};
use crate::record::Image;
use crate::reference::{Reference, TagOrDigest};
use crate::store::layer_refs::HoldError;
use crate::store::{Store, durable};
use crate::tar::tar_split;
use crate::tar::tar_split::TarSplitError;
use crate::tar::writer::TarWriter;

const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Compression of the layers in an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compress {
    /// No compression; the fastest.
    #[default]
    No,
    /// Gzip, supported by all tools.
    Gzip,
    /// Zstd.
    Zstd,
}

/// An export that failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The list of images is empty.
    #[error("no image given to export: give the tag or ID of at least one image")]
    Nothing,
    /// An image does not exist.
    #[error("image {0:?} not found, so it cannot be exported: `crisp image ls` lists all")]
    NoSuchImage(String),
    /// The image was removed in the meantime.
    #[error(transparent)]
    Gone(#[from] HoldError),
    /// A layer's tar stream cannot be rebuilt.
    #[error("layer {layer} of image {image} cannot be exported: remove the image and pull or import it again")]
    Tape {
        /// The layer's diff id.
        layer: Digest,
        /// An image that has this layer.
        image: String,
        /// Why it cannot be rebuilt.
        source: TarSplitError,
    },
    /// The files of a layer were changed on disk.
    #[error(
        "layer {layer} of image {image} has changed on disk, its digest is now {found}: \
         remove the image and pull or import it again"
    )]
    Changed {
        /// The layer's diff id.
        layer: Digest,
        /// An image that has this layer.
        image: String,
        /// The digest of the current content.
        found: Digest,
    },
    /// The config was changed on disk.
    #[error("the config of image {0} has changed on disk: remove the image and pull or import it again")]
    Config(Digest),
    /// The archive could not be written.
    #[error("writing the image archive")]
    Write(#[source] io::Error),
    /// The caller cancelled the export.
    #[error("the image export was cancelled: its client disconnected or was interrupted")]
    GivenUp,
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] FileError),
}

impl model::ErrorClass for ExportError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Nothing => model::ErrorKind::Invalid,
            Self::NoSuchImage(_) => model::ErrorKind::NotFound,
            Self::Gone(source) => source.kind(),
            Self::Tape { source, .. } => source.kind(),
            Self::Changed { .. } | Self::Config(_) => model::ErrorKind::Internal,
            Self::Write(source) => durable::io_kind(source),
            Self::GivenUp => model::ErrorKind::Unavailable,
            Self::Disk(source) => source.kind(),
        }
    }
}

/// An image to export, with its tags.
struct Wanted {
    image: Arc<Image>,
    tags: BTreeSet<String>,
}

/// A layer to export.
struct Source {
    diff_id: Digest,
    directory: PathBuf,
    tar_bytes: u64,
    /// An image that has this layer.
    image: String,
}

/// A blob as a descriptor in a manifest describes it.
struct Written {
    media_type: &'static str,
    digest: Digest,
    size: u64,
}

impl Store {
    /// Exports images as an OCI layout in a tar archive. An image given by tag is exported with
    /// that tag, one given by id with all its tags.
    ///
    /// After an error the archive is incomplete and must be discarded. Blocks.
    pub fn export(
        &self,
        names: &[String],
        compress: Compress,
        into: &mut impl Write,
        watch: ProgressFn<'_>,
    ) -> Result<(), ExportError> {
        let wanted = self.wanted(names)?;
        let chains = wanted.iter().flat_map(|wanted| wanted.image.chain.iter().cloned());
        let _pin = self.catalog.pin(chains.collect());
        let layers = self.layers_of(&wanted)?;
        let total = layers.values().map(|layer| layer.tar_bytes).sum();
        let counter = Counter::new(total, watch);
        self.write(&wanted, &layers, compress, into, &counter).map_err(|error| match error {
            ExportError::Write(_) | ExportError::Tape { .. } if counter.is_stopped() => ExportError::GivenUp,
            other => other,
        })
    }

    fn wanted(&self, names: &[String]) -> Result<Vec<Wanted>, ExportError> {
        let mut wanted: BTreeMap<Digest, Wanted> = BTreeMap::new();
        for name in names {
            let found = self.find_named(name).ok_or_else(|| ExportError::NoSuchImage(name.clone()))?;
            let (image, name) = found;
            let tags = match name.filter(|name| image.repo_tags.contains(name)) {
                Some(tag) => vec![tag],
                None => image.repo_tags.clone(),
            };
            let new = Wanted { image: image.clone(), tags: BTreeSet::new() };
            wanted.entry(image.id.clone()).or_insert(new).tags.extend(tags);
        }
        if wanted.is_empty() { Err(ExportError::Nothing) } else { Ok(wanted.into_values().collect()) }
    }

    /// Returns the layers of all images by chain id.
    fn layers_of(&self, wanted: &[Wanted]) -> Result<BTreeMap<Digest, Source>, ExportError> {
        let mut layers = BTreeMap::new();
        for Wanted { image, .. } in wanted {
            for chain_id in &image.chain {
                let layer = self.catalog.state().layers.get(chain_id).cloned();
                let layer = layer.ok_or_else(|| HoldError::NoSuchImage(image.id.clone()))?;
                let mut source = Source {
                    diff_id: layer.record.diff_id.clone(),
                    directory: self.layers_dir().join(layer.number.to_string()),
                    tar_bytes: 0,
                    image: image.repo_tags.first().cloned().unwrap_or_else(|| image.id.to_string()),
                };
                source.tar_bytes = match layer.record.tar_bytes {
                    Some(length) => length,
                    None => source.replay(&mut io::sink(), None)?,
                };
                layers.insert(chain_id.clone(), source);
            }
        }
        Ok(layers)
    }

    fn write(
        &self,
        wanted: &[Wanted],
        layers: &BTreeMap<Digest, Source>,
        compress: Compress,
        into: &mut impl Write,
        counter: &Counter<'_>,
    ) -> Result<(), ExportError> {
        let mut pack = TarWriter::new(into);
        pack.file("oci-layout", LAYOUT).map_err(ExportError::Write)?;
        // The same stream may have several chain ids; it is written once.
        let mut written: BTreeMap<&Digest, Written> = BTreeMap::new();
        for source in layers.values() {
            if !written.contains_key(&source.diff_id) {
                let blob = match compress {
                    Compress::No => source.write(&mut pack, counter)?,
                    Compress::Gzip | Compress::Zstd => self.write_compressed(source, compress, &mut pack, counter)?,
                };
                written.insert(&source.diff_id, blob);
            } else {
                counter.bytes(source.tar_bytes).map_err(ExportError::Write)?;
            }
            counter.layer().map_err(ExportError::Write)?;
        }
        let mut index = Vec::new();
        let mut docker = Vec::new();
        for Wanted { image, tags } in wanted {
            let blobs = image.chain.iter().filter_map(|chain_id| written.get(&layers.get(chain_id)?.diff_id));
            let blobs: Vec<&Written> = blobs.collect();
            let manifest = self.write_image(image, &blobs, &mut pack)?;
            index.extend(index_entries(&manifest, tags));
            docker.push(json!({
                "Config": blob_name(&image.id), "RepoTags": tags,
                "Layers": blobs.iter().map(|blob| blob_name(&blob.digest)).collect::<Vec<_>>(),
            }));
        }
        let index =
            json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": index });
        pack.file("index.json", index.to_string().as_bytes()).map_err(ExportError::Write)?;
        pack.file("manifest.json", json!(docker).to_string().as_bytes()).map_err(ExportError::Write)?;
        pack.finish().map_err(ExportError::Write)
    }

    /// Writes config and manifest of an image.
    fn write_image(
        &self,
        image: &Image,
        layers: &[&Written],
        pack: &mut TarWriter<&mut impl Write>,
    ) -> Result<Written, ExportError> {
        let config = self.blob(&image.id)?;
        if !image.id.matches(&config) {
            return Err(ExportError::Config(image.id.clone()));
        }
        let (digest, size) = (image.id.clone(), length(&config));
        let config_blob = Written { media_type: "application/vnd.oci.image.config.v1+json", digest, size };
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config_blob.descriptor(),
            "layers": layers.iter().map(|layer| layer.descriptor()).collect::<Vec<_>>(),
        });
        let manifest = manifest.to_string().into_bytes();
        let written = Written { media_type: MANIFEST, digest: Digest::of(&manifest), size: length(&manifest) };
        pack.file(&blob_name(&image.id), &config).map_err(ExportError::Write)?;
        pack.file(&blob_name(&written.digest), &manifest).map_err(ExportError::Write)?;
        Ok(written)
    }

    /// A tar archive has the size before the content, so the layer is compressed to a temporary
    /// file first.
    fn write_compressed(
        &self,
        source: &Source,
        compress: Compress,
        pack: &mut TarWriter<&mut impl Write>,
        counter: &Counter<'_>,
    ) -> Result<Written, ExportError> {
        let mut temp_file = self.catalog.temp_file()?;
        let mut packed = Hashed { to: &mut temp_file.file, hasher: Hasher::sha256(), length: 0, failed: None };
        let (media_type, outcome) = match compress {
            Compress::Zstd => {
                let outcome =
                    zstd::stream::write::Encoder::new(&mut packed, 0).map_err(ExportError::Write).and_then(|mut to| {
                        source.replay(&mut to, Some(counter))?;
                        to.finish().map(drop).map_err(ExportError::Write)
                    });
                ("application/vnd.oci.image.layer.v1.tar+zstd", outcome)
            }
            Compress::No | Compress::Gzip => {
                let mut to = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::default());
                let outcome = source
                    .replay(&mut to, Some(counter))
                    .and_then(|_| to.finish().map(drop).map_err(ExportError::Write));
                ("application/vnd.oci.image.layer.v1.tar+gzip", outcome)
            }
        };
        let Hashed { hasher, length: size, failed, .. } = packed;
        if let Some(error) = failed {
            return Err(temp_file.failed(error).into());
        }
        outcome?;
        let digest = hasher.finish();
        pack.begin(&blob_name(&digest), size).map_err(ExportError::Write)?;
        let mut file = temp_file.rewound()?.take(size);
        io::copy(&mut file, pack.content()).and_then(|_| pack.end(size)).map_err(ExportError::Write)?;
        Ok(Written { media_type, digest, size })
    }
}

impl Source {
    /// Writes the layer without compression.
    fn write(&self, pack: &mut TarWriter<&mut impl Write>, counter: &Counter<'_>) -> Result<Written, ExportError> {
        pack.begin(&blob_name(&self.diff_id), self.tar_bytes).map_err(ExportError::Write)?;
        let size = self.replay(pack.content(), Some(counter))?;
        pack.end(size).map_err(ExportError::Write)?;
        Ok(Written { media_type: "application/vnd.oci.image.layer.v1.tar", digest: self.diff_id.clone(), size })
    }

    /// Writes the layer's tar stream, checks its digest and returns its length.
    fn replay(&self, to: &mut impl Write, counter: Option<&Counter<'_>>) -> Result<u64, ExportError> {
        let mut out =
            Hashed { to: ProgressWriter { to, counter }, hasher: self.diff_id.hasher(), length: 0, failed: None };
        let replayed = tar_split::assemble(&self.directory, &mut out);
        if let Some(error) = out.failed {
            return Err(ExportError::Write(error));
        }
        let (layer, image) = (self.diff_id.clone(), self.image.clone());
        replayed.map_err(|source| ExportError::Tape { layer: layer.clone(), image: image.clone(), source })?;
        let found = out.hasher.finish();
        if found == layer { Ok(out.length) } else { Err(ExportError::Changed { layer, image, found }) }
    }
}

impl Written {
    fn descriptor(&self) -> serde_json::Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.size })
    }
}

/// Returns one entry for each tag, or one without a tag.
fn index_entries(manifest: &Written, tags: &BTreeSet<String>) -> Vec<serde_json::Value> {
    if tags.is_empty() {
        return vec![manifest.descriptor()];
    }
    let named = tags.iter().map(|tag| {
        let mut entry = manifest.descriptor();
        entry["annotations"] = json!({ "io.containerd.image.name": tag });
        if let Ok(TagOrDigest::Tag(short)) = tag.parse::<Reference>().map(|name| name.pick().clone()) {
            entry["annotations"]["org.opencontainers.image.ref.name"] = json!(short);
        }
        entry
    });
    named.collect()
}

fn length(content: &[u8]) -> u64 {
    u64::try_from(content.len()).unwrap_or(u64::MAX)
}

/// Hashes what is written through it and keeps a write error, which the writing code may not
/// return.
struct Hashed<W> {
    to: W,
    hasher: Hasher,
    length: u64,
    failed: Option<io::Error>,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.to.write(bytes) {
            Ok(count) => {
                self.hasher.update(&bytes[..count]);
                self.length = self.length.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.failed = Some(error);
                Err(copy)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Counts the bytes written through it, if there is a counter.
struct ProgressWriter<'a, 'b, W> {
    to: &'a mut W,
    counter: Option<&'a Counter<'b>>,
}

impl<W: Write> Write for ProgressWriter<'_, '_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        if let Some(counter) = self.counter {
            counter.bytes(u64::try_from(count).unwrap_or(u64::MAX))?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
