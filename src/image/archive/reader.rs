//! The source of an import: a directory or a tar archive whose files are found by name.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::archive::import::ImportError;
use crate::digest::Digest;
use crate::layer::confined_root::ConfinedRoot;
use crate::manifest::{Descriptor, Document, Manifest, ManifestError, NameAnnotations, check_layer_count};
use crate::platform::choose;
use crate::reference::{BadReference, Reference, TagOrDigest};
use crate::tar::reader::{EntryKind, TarReader};

/// Files in an archive that are indexed; an image has a few per layer.
const MEMBERS_MAX: usize = 1 << 16;
/// Maximum length of a file name in an archive, in bytes; files with longer names are ignored.
const NAME_MAX: usize = 4096;
/// Maximum length of all those names together, in bytes.
const NAMES_MAX: usize = 16 << 20;
/// Maximum number of images in one archive.
const IMAGES_MAX: usize = 1024;

/// An image found in an archive.
pub(crate) struct Candidate {
    pub(crate) tags: Vec<String>,
    pub(crate) digests: Vec<String>,
    pub(crate) place: Place,
}

/// Where an archive has the parts of an image.
pub(crate) enum Place {
    Oci { manifest: Digest },
    Docker { config: String, layers: Vec<String> },
}

/// The parts of an image.
pub(crate) struct Parts {
    /// Digest and content, if there is a manifest.
    pub(crate) manifest: Option<(Digest, Vec<u8>)>,
    pub(crate) config_digest: Digest,
    pub(crate) config_json: Vec<u8>,
    /// Name of each layer in the archive, lowest first, and its descriptor if there is one.
    pub(crate) layers: Vec<(String, Option<Descriptor>)>,
}

/// The file or directory an import reads from.
pub(crate) struct ImageArchive {
    path: PathBuf,
    from: From,
}

enum From {
    Directory,
    /// The members: where the data is, or the name of the link target.
    Tar {
        file: File,
        members: HashMap<String, Member>,
    },
}

enum Member {
    Data { offset: u64, size: u64 },
    Link(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

impl ImageArchive {
    pub(crate) fn directory(path: &Path) -> Self {
        Self { path: path.to_owned(), from: From::Directory }
    }

    pub(crate) fn tar(path: &Path, file: File) -> Result<Self, ImportError> {
        let members = members(path, &file)?;
        Ok(Self { path: path.to_owned(), from: From::Tar { file, members } })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn missing(&self, name: &str) -> ImportError {
        ImportError::Missing { path: self.path.clone(), name: name.to_owned() }
    }

    fn unusable(&self, source: ManifestError) -> ImportError {
        ImportError::Manifest { path: self.path.clone(), source }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        match &self.from {
            From::Directory => self.path.join(name).is_file(),
            From::Tar { members, .. } => members.contains_key(name),
        }
    }

    /// Opens a part and returns its size. The name comes from the archive and is not trusted.
    pub(crate) fn open(&self, name: &str) -> Result<(Box<dyn Read + '_>, u64), ImportError> {
        let read = |source| ImportError::Read { path: self.path.clone(), what: name.to_owned(), source };
        match &self.from {
            From::Directory => {
                let inside = ConfinedRoot::open(&self.path).map_err(read)?;
                match inside.regular(Path::new(name)) {
                    Ok(file) => {
                        let size = file.metadata().map_err(read)?.len();
                        Ok((Box::new(file), size))
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.missing(name)),
                    Err(error) => Err(read(error)),
                }
            }
            From::Tar { file, members } => {
                let mut wanted = name;
                // Old docker archives link a repeated layer to its first copy.
                for _ in 0..4 {
                    match members.get(wanted).ok_or_else(|| self.missing(wanted))? {
                        Member::Link(target) => wanted = target,
                        Member::Data { offset, size } => {
                            return Ok((Box::new(Window { file, at: *offset, left: *size }), *size));
                        }
                    }
                }
                Err(self.missing(name))
            }
        }
    }

    fn read(&self, name: &str, cap: u64) -> Result<Vec<u8>, ImportError> {
        let mut content = Vec::new();
        let mut from = self.open(name)?.0.take(cap.saturating_add(1));
        let read = from.read_to_end(&mut content);
        read.map_err(|source| ImportError::Read { path: self.path.clone(), what: name.to_owned(), source })?;
        if u64::try_from(content.len()).map_or(true, |length| length > cap) {
            let (path, name) = (self.path.clone(), name.to_owned());
            return Err(ImportError::TooLarge { path, name, limit: cap });
        }
        Ok(content)
    }

    fn read_json<T: for<'a> Deserialize<'a>>(&self, name: &'static str, cap: u64) -> Result<T, ImportError> {
        let content = self.read(name, cap)?;
        serde_json::from_slice(&content).map_err(|error| self.unusable(ManifestError::json(name, &error)))
    }

    fn read_blob(&self, digest: &Digest, cap: u64) -> Result<Vec<u8>, ImportError> {
        let content = self.read(&blob_name(digest), cap)?;
        if digest.matches(&content) {
            Ok(content)
        } else {
            Err(ImportError::Digest { path: self.path.clone(), wanted: digest.clone() })
        }
    }

    /// Returns the images of an OCI layout, with their names only: the rest is read again when it
    /// is needed.
    pub(crate) fn oci_images(&self, cap: u64) -> Result<Vec<Candidate>, ImportError> {
        let index: Index = self.read_json("index.json", cap)?;
        let mut entries: BTreeMap<&Digest, Vec<Reference>> = BTreeMap::new();
        for entry in &index.manifests {
            entries.entry(&entry.digest).or_default().extend(reference_name(entry)?);
            self.bounded(entries.len())?;
        }
        // Several entries may be one image under several names.
        let mut found: BTreeMap<Digest, Candidate> = BTreeMap::new();
        for (digest, names) in entries {
            let (manifest_digest, _, manifest) = self.oci_manifest(digest, cap)?;
            let image = found.entry(manifest.config.digest).or_insert_with(|| Candidate {
                tags: Vec::new(),
                digests: Vec::new(),
                place: Place::Oci { manifest: manifest_digest },
            });
            image.tags.extend(names.iter().map(ToString::to_string));
            image.digests.extend(names.iter().map(|name| name.at(digest).to_string()));
        }
        Ok(found.into_values().collect())
    }

    fn bounded(&self, images: usize) -> Result<(), ImportError> {
        if images > IMAGES_MAX { Err(self.too_many("images", IMAGES_MAX)) } else { Ok(()) }
    }

    fn too_many(&self, what: &'static str, limit: usize) -> ImportError {
        ImportError::TooMany { path: self.path.clone(), what, limit }
    }

    fn oci_manifest(&self, digest: &Digest, cap: u64) -> Result<(Digest, Vec<u8>, Manifest), ImportError> {
        let mut digest = digest.clone();
        for _ in 0..3 {
            let json = self.read_blob(&digest, cap)?;
            match Document::parse(&json).map_err(|source| self.unusable(source))? {
                Document::Manifest(manifest) => return Ok((digest, json, manifest)),
                Document::Index(entries) => {
                    digest = choose(&entries).map_err(|source| self.unusable(source))?.digest.clone();
                }
            }
        }
        Err(self.unusable(ManifestError::Nested))
    }

    /// Returns the images of a docker archive.
    pub(crate) fn docker_images(&self, cap: u64) -> Result<Vec<Candidate>, ImportError> {
        let images: Vec<DockerImage> = self.read_json("manifest.json", cap)?;
        self.bounded(images.len())?;
        let one = |DockerImage { config, repo_tags, layers }: DockerImage| {
            check_layer_count(layers.len()).map_err(|source| self.unusable(source))?;
            let tags = repo_tags.unwrap_or_default();
            let tags = tags.into_iter().map(|tag| tag.parse::<Reference>().map(|name| name.to_string()));
            let tags = tags.collect::<Result<Vec<_>, _>>()?;
            Ok(Candidate { tags, digests: Vec::new(), place: Place::Docker { config, layers } })
        };
        images.into_iter().map(one).collect()
    }

    /// Reads the parts of an image.
    pub(crate) fn parts(&self, place: Place, cap: u64) -> Result<Parts, ImportError> {
        match place {
            Place::Oci { manifest } => {
                let (digest, json, manifest) = self.oci_manifest(&manifest, cap)?;
                let config_json = self.read_blob(&manifest.config.digest, cap)?;
                let layers = manifest.layers.into_iter().map(|layer| (blob_name(&layer.digest), Some(layer)));
                let (config_digest, layers) = (manifest.config.digest, layers.collect());
                Ok(Parts { manifest: Some((digest, json)), config_digest, config_json, layers })
            }
            Place::Docker { config, layers } => {
                let config_json = self.read(&config, cap)?;
                let layers = layers.into_iter().map(|layer| (layer, None)).collect();
                Ok(Parts { manifest: None, config_digest: Digest::of(&config_json), config_json, layers })
            }
        }
    }

    /// Returns the total size of an image's layers in this archive.
    pub(crate) fn layer_bytes(&self, place: &Place, cap: u64) -> Result<u64, ImportError> {
        let size = |name: &str| Ok(self.open(name)?.1);
        let sizes: Vec<u64> = match place {
            Place::Oci { manifest } => {
                let layers = self.oci_manifest(manifest, cap)?.2.layers;
                layers.iter().map(|layer| size(&blob_name(&layer.digest))).collect::<Result<_, ImportError>>()?
            }
            Place::Docker { layers, .. } => {
                layers.iter().map(|layer| size(layer)).collect::<Result<_, ImportError>>()?
            }
        };
        Ok(sizes.into_iter().fold(0, u64::saturating_add))
    }
}

/// Returns the path of a blob in an OCI layout.
pub(crate) fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

/// Returns the full name of an index entry. A bare tag is not a name: the repository is unknown.
fn reference_name(entry: &Descriptor) -> Result<Option<Reference>, BadReference> {
    let NameAnnotations { full, reference } = &entry.annotations;
    let name = full.as_ref().or_else(|| reference.as_ref().filter(|name| name.contains(['/', ':'])));
    let name = name.map(|name| name.parse::<Reference>()).transpose()?;
    Ok(name.filter(|name| matches!(name.pick(), TagOrDigest::Tag(_))))
}

/// Indexes all files of a tar archive.
fn members(path: &Path, file: &File) -> Result<HashMap<String, Member>, ImportError> {
    let broken = |source| ImportError::Tar { path: path.to_owned(), source };
    let too_many = |what, limit| ImportError::TooMany { path: path.to_owned(), what, limit };
    let mut archive = TarReader::new(BufReader::with_capacity(1 << 20, file));
    let (mut members, mut kept) = (HashMap::new(), 0usize);
    while let Some(entry) = archive.next().map_err(broken)? {
        if entry.path.len() > NAME_MAX || entry.link.len() > NAME_MAX {
            // No part of an image has such a long name.
            continue;
        }
        let Ok(path) = String::from_utf8(entry.path) else { continue };
        let name = path.trim_start_matches("./").trim_start_matches('/').to_owned();
        let member = match entry.what {
            EntryKind::File if entry.segments.is_none() => {
                Member::Data { offset: archive.position(), size: entry.size }
            }
            EntryKind::Symlink | EntryKind::HardLink => match String::from_utf8(entry.link) {
                Ok(target) if entry.what == EntryKind::HardLink => Member::Link(target),
                Ok(target) => Member::Link(beside(&name, &target)),
                Err(_) => continue,
            },
            _ => continue,
        };
        kept += name.len() + if let Member::Link(target) = &member { target.len() } else { 0 };
        if kept > NAMES_MAX {
            return Err(too_many("bytes of file names", NAMES_MAX));
        }
        if members.len() == MEMBERS_MAX {
            return Err(too_many("files", MEMBERS_MAX));
        }
        members.insert(name, member);
    }
    Ok(members)
}

/// Resolves the target of a symbolic link at `name` to a name in the archive.
fn beside(name: &str, target: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    parts.join("/")
}

/// A range of a file.
struct Window<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Window<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        // Other threads read other ranges of the same file.
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        let read = u64::try_from(count).unwrap_or(u64::MAX);
        self.at += read;
        self.left -= read;
        Ok(count)
    }
}
