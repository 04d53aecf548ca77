//! Changes the `oom_score_adj` of a container's processes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU32;

use cgroup::{Cgroup, CgroupError};
use model::resources::OomScoreAdj;
use model::{ErrorClass, ErrorKind};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::store::ContainerRecord;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OomScoreError {
    #[error("listing the container's processes to change their OOM score")]
    Processes(#[from] CgroupError),
    #[error("writing {score} to oom_score_adj of process {pid}")]
    Write { pid: NonZeroU32, score: i16, source: io::Error },
}

impl ErrorClass for OomScoreError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Processes(e) => e.kind(),
            Self::Write { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Precondition,
                _ => ErrorKind::Internal,
            },
        }
    }
}

/// The scores before a change.
#[derive(Debug, Default)]
#[must_use = "only this knows what to take back"]
pub(crate) struct Changed(Vec<(File, OomScoreAdj)>);

impl Changed {
    /// Restores the score of every process; one that has exited is skipped.
    pub(crate) fn roll_back(self) {
        for (mut file, had) in self.0 {
            if let Err(error) = file.write_all(had.get().to_string().as_bytes()) {
                tracing::debug!(%error, "rolling back a failed resize: cannot restore the OOM score of a process; it keeps the new one");
            }
        }
    }
}

/// Returns the score of a process; none if it has exited.
pub(crate) fn of(pid: NonZeroU32) -> Option<OomScoreAdj> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?)
}

fn parse(text: &str) -> Option<OomScoreAdj> {
    text.trim().parse().ok().and_then(|score| OomScoreAdj::new(score).ok())
}

/// Returns the score of a program that is executed in the container.
pub(crate) fn for_exec(record: &ContainerRecord) -> Option<i32> {
    Some(record.spec.resources.oom_score_adj.map_or(0, |score| i32::from(score.get())))
}

/// Changes the score of those processes of `group` that have one of the scores `from`: a process
/// that changed its own keeps it.
pub(crate) fn change(group: &Cgroup, from: &[OomScoreAdj], to: OomScoreAdj) -> Result<Changed, OomScoreError> {
    let mut changed = Changed::default();
    for pid in group.procs()? {
        match change_one(group, pid, from, to) {
            Ok(None) => {}
            Ok(Some(had)) => changed.0.push(had),
            // The process has exited.
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::NOENT | Errno::SRCH)) => {}
            Err(source) => {
                changed.roll_back();
                return Err(OomScoreError::Write { pid, score: to.get(), source });
            }
        }
    }
    Ok(changed)
}

/// The open directory belongs to this process: if its pid is used again, the new process is not
/// affected.
fn change_one(
    group: &Cgroup,
    pid: NonZeroU32,
    from: &[OomScoreAdj],
    to: OomScoreAdj,
) -> io::Result<Option<(File, OomScoreAdj)>> {
    let dir = openat(CWD, format!("/proc/{pid}"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let open = |name: &str, how| openat(&dir, name, how | OFlags::CLOEXEC, Mode::empty()).map(File::from);
    let mut file = open("oom_score_adj", OFlags::RDWR)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let Some(had) = parse(&text).filter(|had| from.contains(had) && *had != to) else { return Ok(None) };
    if !io::read_to_string(open("cgroup", OFlags::RDONLY)?)?.contains(group.path().as_str()) {
        return Ok(None);
    }
    file.write_all(to.get().to_string().as_bytes())?;
    Ok(Some((file, had)))
}
