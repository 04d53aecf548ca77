//! The records of attached pods, for detaching them: the configuration and the result of each ADD.
//!
//! ```text
//! CACHE/POD@INTERFACE@NETWORK.json     written before the first plugin is called, removed after
//! the last DEL
//! ```
//!
//! The directory should survive a reboot, since allocations of plugins do. Files are not synced:
//! after a power failure a truncated file still has the pod's name.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use safe_fs::FileError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::conf::ConfList;
use super::plugin::chain::Attachment;
use super::plugin::version::Version;

/// The largest file that is read; results and configurations are far smaller.
const FILE_MAX: u64 = 32 << 20;
const FORMAT: u32 = 1;

/// A pod in a network, as it was attached.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) place: Attachment,
    pub(super) list: ConfList,
    pub(super) version: Version,
    /// `None` until all plugins have returned.
    pub(super) result: Option<Value>,
}

/// The parts of a record's file name.
#[derive(Debug)]
pub(super) struct CachedAttachment {
    pub(super) pod: String,
    pub(super) interface: String,
    pub(super) network: String,
    pub(super) path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct CacheFile {
    format: u32,
    pod: String,
    interface: String,
    netns: Option<PathBuf>,
    args: String,
    capabilities: Map<String, Value>,
    config: Value,
    result: Option<Value>,
}

impl Entry {
    fn path(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}@{}@{}.json", self.place.pod, self.place.interface, self.list.name))
    }

    /// Returns the record to write.
    pub(super) fn draft(&self, dir: &Path) -> NewEntry {
        let Attachment { pod, interface, netns, args, offered } = self.place.clone();
        let config = self.list.to_value(self.version);
        let result = self.result.clone();
        let written = CacheFile { format: FORMAT, pod, interface, netns, args, capabilities: offered, config, result };
        NewEntry { dir: dir.to_owned(), path: self.path(dir), written }
    }

    pub(super) fn remove(&self, dir: &Path) -> Result<(), FileError> {
        safe_fs::remove_file(&self.path(dir))
    }
}

/// A record to write.
pub(super) struct NewEntry {
    dir: PathBuf,
    path: PathBuf,
    written: CacheFile,
}

impl NewEntry {
    /// Replaces the file atomically.
    pub(super) fn write(self) -> Result<(), FileError> {
        let Self { dir, path, written } = self;
        safe_fs::private_dir(&dir)?;
        safe_fs::write_json(&path, &written)
    }
}

/// Lists all records by file name; none if the directory does not exist.
pub(super) fn cached(dir: &Path) -> Result<Vec<CachedAttachment>, FileError> {
    let failed = |source: io::Error| FileError::new("reading", dir, source);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut cached = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        cached.extend(CachedAttachment::parse(entry.path()));
    }
    cached.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(cached)
}

impl CachedAttachment {
    /// Returns `None` for another kind of file name.
    fn parse(path: PathBuf) -> Option<Self> {
        let mut parts = path.file_name()?.to_str()?.strip_suffix(".json")?.split('@').map(str::to_owned);
        let (pod, interface, network) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        Some(Self { pod, interface, network, path })
    }

    /// Returns `None` if the file is damaged or missing.
    pub(super) fn read(&self) -> Result<Option<Entry>, FileError> {
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(FileError::new("reading", &self.path, source)),
        }
        let entry = self.understand(&bytes);
        if entry.is_none() {
            tracing::warn!(path = %self.path.display(), "the CNI record of a pod is damaged; CHECK skips it, DEL uses the current CNI configuration");
        }
        Ok(entry)
    }

    fn understand(&self, bytes: &[u8]) -> Option<Entry> {
        let CacheFile { format, pod, interface, netns, args, capabilities, config, result } =
            serde_json::from_slice(bytes).ok()?;
        let list = ConfList::from_value(config).ok()?;
        let version = list.highest();
        let is_same = pod == self.pod && interface == self.interface && list.name == self.network;
        let place = Attachment { pod, interface, netns, args, offered: capabilities };
        (format == FORMAT && is_same).then_some(Entry { place, list, version, result })
    }
}
