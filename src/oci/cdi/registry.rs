//! Finds all spec files and the devices in them.

use std::collections::HashMap;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use safe_fs::FileStamp;
use sync::Mutex;

use super::edits::{Edits, Owner};
use super::spec::Spec;
use super::{CdiError, Unresolved, file};

/// The maximum number of spec files in a directory; a DRA driver may write one per claim.
const FILES_MAX: usize = 4096;
/// The maximum size of all spec files together, in bytes.
const ALL_BYTES_MAX: u64 = 32 << 20;

/// The spec files of some directories; a later directory overrides those before it.
///
/// Every lookup lists the directories again and reads the files that changed, so a spec is effective
/// as soon as a driver writes or removes it. A watch (inotify) could be late, and would miss changes
/// of a symlink's target.
#[derive(Debug)]
pub struct CdiRegistry {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    dirs: Vec<PathBuf>,
    files: HashMap<PathBuf, Reading>,
    index: Arc<Index>,
}

/// One file at the time when it was read.
#[derive(Debug)]
struct Reading {
    stamp: FileStamp,
    /// Whether any later write changes the stamp.
    settled: bool,
    outcome: Result<Arc<Spec>, String>,
}

/// The devices of all files.
#[derive(Debug, Default)]
pub(super) struct Index {
    dirs: Vec<PathBuf>,
    devices: HashMap<String, Found>,
    bad: Vec<(PathBuf, String)>,
}

/// The definition of a device. With more than one file the device is ambiguous and not used.
#[derive(Debug)]
struct Found {
    rank: usize,
    name: String,
    spec: Arc<Spec>,
    files: Vec<PathBuf>,
}

impl CdiRegistry {
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Self { known: Mutex::new(Known { dirs, ..Known::default() }) }
    }

    /// Replaces the directories, effective from the next lookup.
    pub fn set_dirs(&self, dirs: Vec<PathBuf>) {
        let mut known = self.lock();
        if known.dirs != dirs {
            // The order of the same files may have changed.
            *known = Known { dirs, ..Known::default() };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Returns the edits of the devices `names` to a container whose first process runs as `owner`.
    /// The error lists all devices that are not found.
    pub fn find(&self, names: &[String], owner: Owner) -> Result<Edits, CdiError> {
        if names.is_empty() {
            return Ok(Edits::default());
        }
        let index = self.look();
        let mut unresolved = Unresolved::default();
        let mut found = Vec::new();
        for name in names {
            match index.devices.get(name) {
                None => unresolved.missing.push(name.clone()),
                Some(Found { files, .. }) if files.len() > 1 => {
                    unresolved.conflicts.push((name.clone(), files.clone()));
                }
                Some(device) => found.push((name, device)),
            }
        }
        if !unresolved.missing.is_empty() || !unresolved.conflicts.is_empty() {
            unresolved.dirs.clone_from(&index.dirs);
            unresolved.bad.clone_from(&index.bad);
            return Err(CdiError::Unresolved(unresolved));
        }
        let mut edits = Edits::default();
        let mut specs: Vec<&Arc<Spec>> = Vec::new();
        for (name, device) in found {
            let Some(part) = device.spec.devices.get(&device.name) else { continue };
            if !specs.iter().any(|spec| Arc::ptr_eq(spec, &device.spec)) {
                specs.push(&device.spec);
                edits.add(name, &device.spec.edits, owner)?;
            }
            edits.add(name, part, owner)?;
            edits.note(name, &device.files);
        }
        Ok(edits)
    }

    /// Returns the number of devices, and the invalid files with their errors.
    pub fn count_devices(&self) -> (usize, Vec<(PathBuf, String)>) {
        let index = self.look();
        (index.devices.len(), index.bad.clone())
    }

    /// Checks every file and reads those that are new or changed.
    pub(super) fn look(&self) -> Arc<Index> {
        let mut known = self.lock();
        let dirs = known.dirs.clone();
        let mut files = HashMap::new();
        let (mut order, mut bad, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut changed = false;
        for (rank, dir) in dirs.iter().enumerate() {
            let names = spec_files(dir).unwrap_or_else(|error| {
                bad.push((dir.clone(), error.to_string()));
                Vec::new()
            });
            for path in names {
                let before = known.files.remove(&path);
                let Some((file, new)) = read_if_changed(&path, before, &mut bytes) else { continue };
                changed |= new;
                files.insert(path.clone(), file);
                order.push((rank, path));
            }
        }
        // The remaining files no longer exist.
        changed |= !known.files.is_empty()
            || known.index.dirs != dirs
            || known.index.bad.iter().filter(|(path, _)| dirs.contains(path)).ne(&bad);
        known.files = files;
        if changed {
            known.index = Arc::new(index(dirs, &known.files, order, bad));
        }
        Arc::clone(&known.index)
    }
}

/// Returns the files of a directory with the extension of a spec, sorted by name.
fn spec_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_spec = |entry: &DirEntry| {
        let path = entry.path();
        let named = path.extension().is_some_and(|ext| ext == "json" || ext == "yaml");
        named && !entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        if is_spec(&entry) {
            paths.push(entry.path());
        }
        if paths.len() > FILES_MAX {
            return Err(io::Error::other(format!("has more than {FILES_MAX} specs")));
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the current file and whether it was read again; `None` if it was removed meanwhile.
fn read_if_changed(path: &Path, before: Option<Reading>, bytes: &mut u64) -> Option<(Reading, bool)> {
    let meta = match std::fs::metadata(path) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound && std::fs::symlink_metadata(path).is_err() => return None,
        meta => meta.ok(),
    };
    *bytes = bytes.saturating_add(meta.as_ref().map_or(0, std::fs::Metadata::len));
    let stamp = meta.as_ref().map(FileStamp::of).unwrap_or_default();
    if let Some(before) = before
        && before.settled
        && before.stamp == stamp
        && *bytes <= ALL_BYTES_MAX
    {
        return Some((before, false));
    }
    // Checked before the read, so that a write during the read changes the stamp.
    let settled = file::is_settled(&stamp);
    let outcome = if *bytes > ALL_BYTES_MAX {
        Err(format!("all specs together have more than {ALL_BYTES_MAX} bytes"))
    } else {
        file::read(path).map(Arc::new).map_err(|error| error.to_string())
    };
    Some((Reading { stamp, settled, outcome }, true))
}

fn index(
    dirs: Vec<PathBuf>,
    files: &HashMap<PathBuf, Reading>,
    order: Vec<(usize, PathBuf)>,
    bad: Vec<(PathBuf, String)>,
) -> Index {
    let mut index = Index { dirs, devices: HashMap::new(), bad };
    for (rank, path) in order {
        let spec = match files.get(&path).map(|file| &file.outcome) {
            None => continue,
            Some(Err(problem)) => {
                index.bad.push((path, problem.clone()));
                continue;
            }
            Some(Ok(spec)) => spec,
        };
        for name in spec.devices.keys() {
            let found = || Found { rank, name: name.clone(), spec: Arc::clone(spec), files: vec![path.clone()] };
            let known = index.devices.entry(format!("{}={name}", spec.kind)).or_insert_with(found);
            if known.rank < rank {
                *known = found();
            } else if known.files.first() != Some(&path) {
                known.files.push(path.clone());
            }
        }
    }
    index
}
