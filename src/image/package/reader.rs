//! What an import reads from: a directory or a tar archive whose files are found by name.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::digest::Digest;
use crate::layer::archive::{Archive, TarError, What};
use crate::layer::root::Root;
use crate::manifest::{Descriptor, Document, Manifest, ManifestError, choose};
use crate::package::import::{Found, ImportError};
use crate::reference::{BadReference, Pick, Reference};

/// Files in an archive that are indexed; an image has a few per layer.
const MEMBERS_MAX: usize = 1 << 16;

/// The file or directory an import reads from.
pub(crate) struct Package {
    path: PathBuf,
    from: From,
}

enum From {
    Directory,
    /// Where each member's data is, or what it links to.
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

impl Package {
    pub(crate) fn directory(path: &Path) -> Self {
        Self { path: path.to_owned(), from: From::Directory }
    }

    pub(crate) fn tar(path: &Path, file: File) -> Result<Self, TarError> {
        let members = members(&file)?;
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

    /// Opens a part by a name that came from the package, which is as little trusted as the rest of it; gives its size.
    pub(crate) fn open(&self, name: &str) -> Result<(Box<dyn Read + '_>, u64), ImportError> {
        let read = |source| ImportError::Read { path: self.path.clone(), what: name.to_owned(), source };
        match &self.from {
            From::Directory => {
                let inside = Root::open(&self.path).map_err(read)?;
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
        serde_json::from_slice(&content).map_err(|source| self.unusable(ManifestError::Json { what: name, source }))
    }

    fn read_blob(&self, digest: &Digest, cap: u64) -> Result<Vec<u8>, ImportError> {
        let content = self.read(&blob_name(digest), cap)?;
        if digest.matches(&content) {
            Ok(content)
        } else {
            Err(ImportError::Digest { path: self.path.clone(), wanted: digest.clone() })
        }
    }

    pub(crate) fn oci_images(&self, cap: u64) -> Result<Vec<Found>, ImportError> {
        let index: Index = self.read_json("index.json", cap)?;
        // Several entries may be one image under several names.
        let mut found: BTreeMap<Digest, Found> = BTreeMap::new();
        for entry in &index.manifests {
            let (digest, json, manifest) = self.oci_manifest(entry, cap)?;
            let names = reference_name(entry)?;
            let digests = names.iter().map(|name| name.at(&entry.digest).to_string());
            let (tags, digests): (Vec<_>, Vec<_>) =
                (names.iter().map(ToString::to_string).collect(), digests.collect());
            let config_digest = manifest.config.digest.clone();
            match found.get_mut(&config_digest) {
                Some(same) => {
                    same.tags.extend(tags);
                    same.digests.extend(digests);
                }
                None => {
                    let config_json = self.read_blob(&config_digest, cap)?;
                    let layers = manifest.layers.into_iter().map(|layer| (blob_name(&layer.digest), Some(layer)));
                    let layers = layers.collect();
                    let manifest = Some((digest, json));
                    let image =
                        Found { tags, digests, manifest, config_digest: config_digest.clone(), config_json, layers };
                    found.insert(config_digest, image);
                }
            }
        }
        Ok(found.into_values().collect())
    }

    fn oci_manifest(&self, entry: &Descriptor, cap: u64) -> Result<(Digest, Vec<u8>, Manifest), ImportError> {
        let mut digest = entry.digest.clone();
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

    pub(crate) fn docker_images(&self, cap: u64) -> Result<Vec<Found>, ImportError> {
        let images: Vec<DockerImage> = self.read_json("manifest.json", cap)?;
        let one = |image: DockerImage| {
            let tags = image
                .repo_tags
                .unwrap_or_default()
                .into_iter()
                .map(|tag| tag.parse::<Reference>().map(|name| name.to_string()));
            let tags = tags.collect::<Result<Vec<_>, _>>()?;
            let config_json = self.read(&image.config, cap)?;
            Ok(Found {
                tags,
                digests: Vec::new(),
                manifest: None,
                config_digest: Digest::of(&config_json),
                config_json,
                layers: image.layers.into_iter().map(|layer| (layer, None)).collect(),
            })
        };
        images.into_iter().map(one).collect()
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.hex())
}

/// The full name of an index entry; a bare tag is no name, for nobody says of what.
fn reference_name(entry: &Descriptor) -> Result<Option<Reference>, BadReference> {
    let annotations = entry.annotations.as_ref();
    let get = |key: &str| annotations.and_then(|annotations| annotations.get(key));
    let name = get("io.containerd.image.name")
        .or_else(|| get("org.opencontainers.image.ref.name").filter(|name| name.contains(['/', ':'])));
    let name = name.map(|name| name.parse::<Reference>()).transpose()?;
    Ok(name.filter(|name| matches!(name.pick(), Pick::Tag(_))))
}

/// Finds every file of a tar archive.
fn members(file: &File) -> Result<HashMap<String, Member>, TarError> {
    let mut archive = Archive::new(BufReader::with_capacity(1 << 20, file));
    let mut members = HashMap::new();
    while let Some(entry) = archive.next()? {
        let Ok(path) = String::from_utf8(entry.path) else { continue };
        let name = path.trim_start_matches("./").trim_start_matches('/').to_owned();
        let member = match entry.what {
            What::File if entry.segments.is_none() => Member::Data { offset: archive.position(), size: entry.size },
            What::Symlink | What::HardLink => match String::from_utf8(entry.link) {
                Ok(target) if entry.what == What::HardLink => Member::Link(target),
                Ok(target) => Member::Link(beside(&name, &target)),
                Err(_) => continue,
            },
            _ => continue,
        };
        if members.len() == MEMBERS_MAX {
            return Err(TarError::Extension(u64::try_from(MEMBERS_MAX).unwrap_or(u64::MAX)));
        }
        members.insert(name, member);
    }
    Ok(members)
}

/// What a symbolic link at `name` points to, as a name in the archive.
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

/// A stretch of a file.
struct Window<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Window<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        // Other threads read elsewhere in the same file.
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        let read = u64::try_from(count).unwrap_or(u64::MAX);
        self.at += read;
        self.left -= read;
        Ok(count)
    }
}
