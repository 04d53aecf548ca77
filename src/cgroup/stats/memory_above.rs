//! Memory left below the limits of the cgroups above, for statistics: each level is read once per list.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::read::{ReadBuffer, ReadError, keyed};
use super::{limit, working_set};
use crate::cgroup::Cgroup;
use crate::file_cache::FileCache;
use crate::layout::Version;
use crate::limits::knob::Knob;

/// Levels that were read; `None` without a limit.
#[derive(Debug, Default)]
pub struct MemoryAbove(HashMap<String, Option<LevelMemory>>);

#[derive(Debug)]
struct LevelMemory {
    dir: PathBuf,
    kept: Option<Arc<FileCache>>,
    limit: u64,
    usage: u64,
    /// Read only if it matters: memory.stat takes ten times as long as the other files.
    working_set: Option<u64>,
}

impl MemoryAbove {
    /// Returns the memory left to `group` if its own limit leaves `own`: the least of all levels, each limit without
    /// the working set below it. `files` returns the open files of a level by its path.
    pub fn left(
        &mut self,
        group: &Cgroup,
        own: Option<u64>,
        files: impl Fn(&str) -> Option<Arc<FileCache>>,
        scratch: &mut ReadBuffer,
    ) -> Result<Option<u64>, ReadError> {
        let Some(mount) = group.layout().mount_of("memory") else { return Ok(own) };
        let version = group.layout().version();
        let path = group.path().as_str();
        let mut left = own;
        for name in path.rmatch_indices('/').map(|(at, _)| &path[..at]) {
            if !self.0.contains_key(name) {
                let dir = mount.join(name.trim_start_matches('/'));
                self.0.insert(name.to_owned(), read(version, dir, files(name), scratch)?);
            }
            let Some(Some(level)) = self.0.get_mut(name) else { continue };
            // The working set is at most the usage.
            if left.is_some_and(|left| left <= level.limit.saturating_sub(level.usage)) {
                continue;
            }
            let here = level.limit.saturating_sub(level.working_set(version, scratch)?);
            left = Some(left.map_or(here, |left| left.min(here)));
        }
        Ok(left)
    }
}

impl LevelMemory {
    fn working_set(&mut self, version: Version, scratch: &mut ReadBuffer) -> Result<u64, ReadError> {
        if let Some(known) = self.working_set {
            return Ok(known);
        }
        let inactive = match version {
            Version::V1 => "total_inactive_file",
            Version::V2 => "inactive_file",
        };
        scratch.turn_to(self.kept.as_ref());
        let [inactive] =
            scratch.text(&self.dir, "memory.stat")?.map(|text| keyed(text, [inactive])).unwrap_or_default();
        Ok(*self.working_set.insert(working_set(self.usage, inactive)))
    }
}

fn read(
    version: Version,
    dir: PathBuf,
    kept: Option<Arc<FileCache>>,
    scratch: &mut ReadBuffer,
) -> Result<Option<LevelMemory>, ReadError> {
    let (limit_file, usage_file) = match version {
        Version::V1 => (Knob::MEMORY_LIMIT, Knob::MEMORY_USAGE),
        Version::V2 => (Knob::MEMORY_MAX, Knob::MEMORY_CURRENT),
    };
    scratch.turn_to(kept.as_ref());
    let Some(limit) = limit(&limit_file, &dir, scratch)? else { return Ok(None) };
    let usage = scratch.number(Path::new(&dir), usage_file.file())?;
    Ok(usage.map(|usage| LevelMemory { dir, kept, limit, usage, working_set: None }))
}
