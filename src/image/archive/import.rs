//! Imports images from an OCI layout (a directory or a tar archive) or a docker archive.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, Mode, OFlags};
use safe_fs::FileError;
use sync::Mutex;

use crate::archive::progress::{Counter, ProgressFn};
use crate::archive::reader::{Candidate, ImageArchive, Parts};
use crate::config::ConfigBlob;
use crate::digest::Digest;
use crate::layer::decompress::decompressed;
use crate::layer::unpack::UnpackError;
use crate::layer_plan::plan;
use crate::manifest::ManifestError;
use crate::record::Image;
use crate::reference::{BadReference, Reference, TagOrDigest};
use crate::store::commit::{LayerPlan, NewImage, ReadyLayer};
use crate::store::temp_file::TempFileError;
use crate::store::{Store, durable};
use crate::tar::reader::TarError;

/// An import that failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A read failed.
    #[error("reading {what} of the image archive {}", path.display())]
    Read {
        /// The archive.
        path: PathBuf,
        /// The part of the archive.
        what: String,
        /// The error of the read.
        source: io::Error,
    },
    /// The file is not a tar archive.
    #[error("reading the image archive {}", path.display())]
    Tar {
        /// The archive.
        path: PathBuf,
        /// The error of the tar reader.
        source: TarError,
    },
    /// The path is not a file, a directory or a pipe.
    #[error("cannot import images from {}: not a file, a directory or a pipe", .0.display())]
    NoFile(PathBuf),
    /// The caller cancelled the import.
    #[error("the image import was cancelled: its client disconnected or was interrupted")]
    GivenUp,
    /// The archive is neither an OCI layout nor a docker archive.
    #[error("{} is not an image archive: expected index.json or manifest.json", .0.display())]
    Unknown(PathBuf),
    /// A part is missing.
    #[error("{name} not found in the image archive {}", path.display())]
    Missing {
        /// The archive.
        path: PathBuf,
        /// The part.
        name: String,
    },
    /// A part is larger than the limit.
    #[error("{name} in the image archive {} is larger than {limit} bytes", path.display())]
    TooLarge {
        /// The archive.
        path: PathBuf,
        /// The part.
        name: String,
        /// The limit.
        limit: u64,
    },
    /// The archive has more items than crisp keeps in memory.
    #[error("the image archive {} has more than {limit} {what}", path.display())]
    TooMany {
        /// The archive.
        path: PathBuf,
        /// The kind of item.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The content of a part does not match its digest.
    #[error("the image archive {} is damaged: the content of {wanted} does not match this digest", path.display())]
    Digest {
        /// The archive.
        path: PathBuf,
        /// The expected digest.
        wanted: Digest,
    },
    /// A name, given or in the archive, is not valid.
    #[error(transparent)]
    Reference(#[from] BadReference),
    /// A name was given for several images, or it has a digest.
    #[error("{0}")]
    Name(&'static str),
    /// An image in the archive is not supported.
    #[error("importing an image from {}", path.display())]
    Manifest {
        /// The archive.
        path: PathBuf,
        /// The reason.
        source: ManifestError,
    },
    /// A layer could not be unpacked.
    #[error("unpacking the layers of the image archive {}", path.display())]
    Unpack {
        /// The archive.
        path: PathBuf,
        /// The error of the layer.
        source: UnpackError,
    },
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] FileError),
}

impl model::ErrorClass for ImportError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => model::ErrorKind::NotFound,
            Self::Read { source, .. } => durable::io_kind(source),
            Self::Tar { .. }
            | Self::NoFile(_)
            | Self::Unknown(_)
            | Self::Missing { .. }
            | Self::Digest { .. }
            | Self::Name(_) => model::ErrorKind::Invalid,
            Self::GivenUp => model::ErrorKind::Unavailable,
            Self::TooLarge { .. } | Self::TooMany { .. } => model::ErrorKind::Exhausted,
            Self::Reference(source) => source.kind(),
            Self::Manifest { source, .. } => source.kind(),
            Self::Unpack { source, .. } => source.kind(),
            Self::Disk(source) => source.kind(),
        }
    }
}

impl Store {
    /// Imports all images of an OCI layout (directory or tar) or docker archive, or the only one as
    /// `name`. If an image fails, those imported before it stay. Up to `Limits::downloads` layers
    /// are unpacked at once, besides those of pulls. Blocks; must not be called on an async thread.
    pub fn import(
        &self,
        path: &Path,
        name: Option<&str>,
        watch: ProgressFn<'_>,
    ) -> Result<Vec<Arc<Image>>, ImportError> {
        let name = name.map(str::parse::<Reference>).transpose()?;
        if name.as_ref().is_some_and(|name| matches!(name.pick(), TagOrDigest::Digest(_))) {
            return Err(ImportError::Name("an imported image must be named by tag, not by digest"));
        }
        let package = self.open_archive(path, watch)?;
        let cap = self.limits().document_bytes;
        let mut found = match package.has("index.json") {
            true => package.oci_images(cap)?,
            false if package.has("manifest.json") => package.docker_images(cap)?,
            false => return Err(ImportError::Unknown(path.to_owned())),
        };
        if let Some(name) = name {
            let [only] = &mut found[..] else {
                return Err(ImportError::Name("a name can be given only if the archive has exactly one image"));
            };
            only.tags = vec![name.to_string()];
        }
        let mut total = 0u64;
        for image in &found {
            total = total.saturating_add(package.layer_bytes(&image.place, cap)?);
        }
        let counter = Counter::new(total, watch);
        found.into_iter().map(|image| self.import_one(&package, image, &counter)).collect()
    }

    fn open_archive(&self, path: &Path, watch: ProgressFn<'_>) -> Result<ImageArchive, ImportError> {
        let read = |source| ImportError::Read { path: path.to_owned(), what: "the start".to_owned(), source };
        if path.is_dir() {
            return Ok(ImageArchive::directory(path));
        }
        // Opening a pipe must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file: File = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| read(errno.into()))?.into();
        let stat = rustix::fs::fstat(&file).map_err(|errno| read(errno.into()))?;
        let counter = Counter::new(u64::try_from(stat.st_size).unwrap_or(0), watch);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let mut first = [0; 2];
                let start = file.read(&mut first).and_then(|count| file.rewind().map(|()| count)).map_err(read)?;
                if start == 2 && (first == [0x1f, 0x8b] || first == [0x28, 0xb5]) {
                    file = self.copy_to_temp_file(counter.reading(file), path, &counter)?;
                }
            }
            FileType::Fifo => {
                let pipe = PollingReader { pipe: file, begun: false, counter: &counter };
                file = self.copy_to_temp_file(counter.reading(pipe), path, &counter)?;
            }
            _ => return Err(ImportError::NoFile(path.to_owned())),
        }
        ImageArchive::tar(path, file)
    }

    /// Copies to a temporary file what cannot be read at random: a compressed archive or a pipe.
    fn copy_to_temp_file(&self, mut from: impl Read, path: &Path, counter: &Counter<'_>) -> Result<File, ImportError> {
        let read = |source| ImportError::Read { path: path.to_owned(), what: "the content".to_owned(), source };
        let mut temp_file = self.catalog.temp_file()?;
        let begun = decompressed(&mut from, &self.limits());
        let mut plain = begun.map_err(|error| if counter.is_stopped() { ImportError::GivenUp } else { read(error) })?;
        match temp_file.fill(&mut plain, self.limits().unpacked_bytes) {
            Ok(()) => Ok(temp_file.rewound()?),
            Err(_) if counter.is_stopped() => Err(ImportError::GivenUp),
            Err(TempFileError::Read(error)) => Err(read(error)),
            Err(TempFileError::TooLarge(limit)) => {
                let name = "the decompressed content".to_owned();
                Err(ImportError::TooLarge { path: path.to_owned(), name, limit })
            }
            Err(TempFileError::Disk(error)) => Err(error.into()),
        }
    }

    fn import_one(
        &self,
        package: &ImageArchive,
        image: Candidate,
        counter: &Counter<'_>,
    ) -> Result<Arc<Image>, ImportError> {
        let Candidate { tags, digests, place } = image;
        let Parts { manifest, config_digest, config_json, layers } =
            package.parts(place, self.limits().document_bytes)?;
        let unusable = |source| ImportError::Manifest { path: package.path().to_owned(), source };
        let config = ConfigBlob::parse(&config_json).map_err(unusable)?;
        let blobs = layers.iter().map(|(_, descriptor)| descriptor.as_ref());
        let plans = plan(None, blobs, &config).map_err(unusable)?;
        let chain: Vec<Digest> = plans.iter().map(|plan| plan.chain_id.clone()).collect();
        let _pin = self.catalog.pin(chain.clone());
        self.catalog.forget_lost(&chain)?;
        let work: Vec<(&LayerPlan, &str)> =
            plans.iter().zip(&layers).map(|(plan, (name, _))| (plan, name.as_str())).collect();
        let ready = self.unpack_all(package, &work, counter)?;
        let user = config.config.user;
        let new = NewImage { id: config_digest, config_json, user, manifest, chain, tags, digests };
        Ok(self.catalog.add(new, &ready)?)
    }

    /// Unpacks all layers, several at a time; the first error stops the others.
    fn unpack_all(
        &self,
        package: &ImageArchive,
        work: &[(&LayerPlan, &str)],
        counter: &Counter<'_>,
    ) -> Result<Vec<ReadyLayer>, ImportError> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new((Vec::with_capacity(work.len()), None));
        std::thread::scope(|threads| {
            for _ in 0..self.limits().downloads.clamp(1, work.len().max(1)) {
                threads.spawn(|| {
                    while let Some((plan, name)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let unpacked = self.unpack_one(package, plan, name, counter);
                        let mut done = done.lock();
                        match unpacked {
                            Ok(ready) => done.0.push(ready),
                            Err(error) => {
                                // Layers that this one stops fail after it.
                                done.1.get_or_insert(if counter.is_stopped() { ImportError::GivenUp } else { error });
                                counter.stop();
                                return;
                            }
                        }
                    }
                });
            }
        });
        match done.into_inner() {
            (ready, None) => Ok(ready),
            (_, Some(error)) => Err(error),
        }
    }

    fn unpack_one(
        &self,
        package: &ImageArchive,
        plan: &LayerPlan,
        name: &str,
        counter: &Counter<'_>,
    ) -> Result<ReadyLayer, ImportError> {
        let given_up = |_| ImportError::GivenUp;
        let _lock = self.pull_locks.lock_blocking(plan.chain_id.as_str());
        let (source, size) = package.open(name)?;
        let mut source = counter.reading(source);
        let unpacked = self.catalog.receive_import(plan, &mut source, &self.limits());
        let ready = unpacked.map_err(|source| ImportError::Unpack { path: package.path().to_owned(), source })?;
        counter.bytes(size.saturating_sub(source.seen())).map_err(given_up)?;
        counter.layer().map_err(given_up)?;
        Ok(ready)
    }
}

/// Reads a pipe whose writer may open it late or be slow, and checks regularly whether the import
/// was cancelled.
struct PollingReader<'a> {
    pipe: File,
    /// A writer has opened the pipe; before that, an end of file means nothing.
    begun: bool,
    counter: &'a Counter<'a>,
}

/// How long to poll the pipe between two checks.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

impl Read for PollingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.pipe.read(buffer) {
                Ok(0) if !self.begun => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.begun = true,
                other => {
                    self.begun = true;
                    return other;
                }
            }
            self.counter.bytes(0)?;
            let mut ready = [PollFd::new(&self.pipe, PollFlags::IN)];
            match rustix::event::poll(&mut ready, Some(&PATIENCE)) {
                // The kernel reports HUP only if there was a writer.
                Ok(_) => self.begun |= ready[0].revents().intersects(PollFlags::IN | PollFlags::HUP),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
