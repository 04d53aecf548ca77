//! Importing images from files: an OCI layout directory, the same as a tar archive, or what `docker save` writes.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::add::{NewImage, Ready};
use crate::archive::TarError;
use crate::config::ConfigBlob;
use crate::digest::Digest;
use crate::disk::{self, DiskError};
use crate::image::Image;
use crate::manifest::{Descriptor, ManifestError};
use crate::package::Package;
use crate::plan::plan;
use crate::reference::{BadReference, Pick, Reference};
use crate::store::Store;
use crate::unpack::{UnpackError, decompressed};

/// An archive that could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Reading it failed.
    #[error("reading {what} of {}", path.display())]
    Read {
        /// The archive.
        path: PathBuf,
        /// The part of it.
        what: String,
        /// What happened.
        source: io::Error,
    },
    /// It is no tar archive.
    #[error("reading {} as an archive", path.display())]
    Tar {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        source: TarError,
    },
    /// Neither an OCI layout nor a docker archive.
    #[error("{} has neither index.json nor manifest.json", .0.display())]
    Unknown(PathBuf),
    /// A part is missing.
    #[error("{} has no {name}", path.display())]
    Missing {
        /// The archive.
        path: PathBuf,
        /// The part.
        name: String,
    },
    /// A part is larger than it may be.
    #[error("{name} of {} is larger than {limit} bytes", path.display())]
    TooLarge {
        /// The archive.
        path: PathBuf,
        /// The part.
        name: String,
        /// The bound.
        limit: u64,
    },
    /// A part is not what its digest says.
    #[error("{} has another content under {wanted}", path.display())]
    Digest {
        /// The archive.
        path: PathBuf,
        /// The digest that does not fit.
        wanted: Digest,
    },
    /// A name, given or in the archive, is not one.
    #[error(transparent)]
    Reference(#[from] BadReference),
    /// One name cannot be given to several images, and a digest to none.
    #[error("{0}")]
    Name(&'static str),
    /// An image in it is not usable here.
    #[error("image in {}", path.display())]
    Manifest {
        /// The archive.
        path: PathBuf,
        /// Why not.
        source: ManifestError,
    },
    /// A layer could not be unpacked.
    #[error("unpacking {}", path.display())]
    Unpack {
        /// The archive.
        path: PathBuf,
        /// The layer's trouble.
        source: UnpackError,
    },
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl ImportError {
    /// The class of this error.
    pub fn kind(&self) -> model::Kind {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => model::Kind::NotFound,
            Self::Read { source, .. } => disk::io_kind(source),
            Self::Tar { .. } | Self::Unknown(_) | Self::Missing { .. } | Self::Digest { .. } | Self::Name(_) => {
                model::Kind::Invalid
            }
            Self::TooLarge { .. } => model::Kind::Exhausted,
            Self::Reference(source) => source.kind(),
            Self::Manifest { source, .. } => source.kind(),
            Self::Unpack { source, .. } => source.kind(),
            Self::Disk(source) => source.kind(),
        }
    }
}

/// One image of a package, before its layers are unpacked.
pub(crate) struct Found {
    pub(crate) tags: Vec<String>,
    pub(crate) digests: Vec<String>,
    pub(crate) manifest: Option<(Digest, Vec<u8>)>,
    pub(crate) config_digest: Digest,
    pub(crate) config_json: Vec<u8>,
    /// Name inside the package and descriptor of each layer, lowest first.
    pub(crate) layers: Vec<(String, Option<Descriptor>)>,
}

impl Store {
    /// Imports all images of an OCI layout (directory or tar) or docker archive, or the only one under `name`.
    ///
    /// Names come from the archive otherwise. Blocks; not to be called on an async thread.
    pub fn import(&self, path: &Path, name: Option<&str>) -> Result<Vec<Arc<Image>>, ImportError> {
        let name = name.map(str::parse::<Reference>).transpose()?;
        if name.as_ref().is_some_and(|name| matches!(name.pick(), Pick::Digest(_))) {
            return Err(ImportError::Name("an imported image can be named by tag only"));
        }
        let package = self.open_package(path)?;
        let cap = self.limits.document_bytes;
        let mut found = match package.has("index.json") {
            true => package.oci_images(cap)?,
            false if package.has("manifest.json") => package.docker_images(cap)?,
            false => return Err(ImportError::Unknown(path.to_owned())),
        };
        if let Some(name) = name {
            let [only] = &mut found[..] else {
                return Err(ImportError::Name("a name needs an archive of exactly one image"));
            };
            only.tags = vec![name.to_string()];
        }
        found.into_iter().map(|image| self.import_one(&package, image)).collect()
    }

    fn open_package(&self, path: &Path) -> Result<Package, ImportError> {
        let read = |source| ImportError::Read { path: path.to_owned(), what: "the start".to_owned(), source };
        if path.is_dir() {
            return Ok(Package::directory(path));
        }
        let mut file = File::open(path).map_err(read)?;
        let mut first = [0; 2];
        let start = file.read(&mut first).and_then(|count| file.rewind().map(|()| count)).map_err(read)?;
        if start == 2 && (first == [0x1f, 0x8b] || first == [0x28, 0xb5]) {
            file = self.inflated(file, path)?;
        }
        Package::tar(path, file).map_err(|source| ImportError::Tar { path: path.to_owned(), source })
    }

    /// A compressed archive cannot be read at random: it is decompressed into a file without a name first.
    fn inflated(&self, mut file: File, path: &Path) -> Result<File, ImportError> {
        let read =
            |source| ImportError::Read { path: path.to_owned(), what: "the compressed content".to_owned(), source };
        let place = self.shelf.root.join("tmp").join(format!("import-{}", self.shelf.fresh_number()));
        let open = File::options().create_new(true).read(true).write(true).open(&place);
        let mut plain = open.map_err(disk::at("creating", &place))?;
        disk::remove_file(&place)?;
        let cap = self.limits.unpacked_bytes;
        let mut from = decompressed(&mut file).map_err(read)?.take(cap.saturating_add(1));
        let copied = io::copy(&mut from, &mut plain).map_err(read)?;
        if copied > cap {
            let name = "the decompressed content".to_owned();
            return Err(ImportError::TooLarge { path: path.to_owned(), name, limit: cap });
        }
        plain.rewind().map_err(read)?;
        Ok(plain)
    }

    fn import_one(&self, package: &Package, found: Found) -> Result<Arc<Image>, ImportError> {
        let Found { tags, digests, manifest, config_digest, config_json, layers } = found;
        let unusable = |source| ImportError::Manifest { path: package.path().to_owned(), source };
        if let Some(image) = self.shelf.name(&config_digest, &tags, &digests)? {
            return Ok(image);
        }
        let config = ConfigBlob::parse(&config_json).map_err(unusable)?;
        let blobs = layers.iter().map(|(_, descriptor)| descriptor.as_ref());
        let plans = plan(blobs, &config).map_err(unusable)?;
        let chain: Vec<Digest> = plans.iter().map(|plan| plan.chain_id.clone()).collect();
        let _pin = self.shelf.pin(chain.clone());
        let mut ready: Vec<Ready> = Vec::with_capacity(plans.len());
        for (plan, (name, _)) in plans.iter().zip(&layers) {
            let _turn = self.turns.take_blocking(plan.chain_id.as_str());
            ready.push(match self.shelf.ready(&plan.chain_id) {
                Some(have) => have,
                None => {
                    let unpacked = self.shelf.stage(plan, package.open(name)?, &self.limits);
                    unpacked.map_err(|source| ImportError::Unpack { path: package.path().to_owned(), source })?
                }
            });
        }
        let config = config.config;
        let new = NewImage { id: config_digest, config_json, config, manifest, chain, tags, digests };
        Ok(self.shelf.add(new, &ready)?)
    }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
