//! Errors of listing, freezing and killing the processes of a cgroup.

use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::files::gone;

/// The processes of a cgroup could not be listed, frozen or killed.
#[derive(Debug, thiserror::Error)]
pub enum ProcsError {
    #[error("reading the cgroup file {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("writing {value:?} to the cgroup file {path}")]
    Write { path: PathBuf, value: &'static str, source: io::Error },
    #[error("sending SIGKILL to process {pid} of a cgroup")]
    Kill { pid: NonZeroU32, source: io::Error },
    #[error("cannot freeze or kill a cgroup: the calling crisp process is in it")]
    Own,
    #[error("cannot freeze a cgroup: the host has no freezer controller")]
    NoFreezer,
    #[error("freezing or killing a cgroup: it is still not {wanted} after {:.1} s", after.as_secs_f64())]
    TooSlow { wanted: &'static str, after: Duration },
}

pub(crate) fn read_error(path: &Path) -> impl FnOnce(io::Error) -> ProcsError {
    |source| ProcsError::Read { path: path.to_owned(), source }
}

/// Makes an operation on a cgroup that does not exist a success.
pub(crate) fn ignore_gone(outcome: Result<(), ProcsError>) -> Result<(), ProcsError> {
    match outcome {
        Err(ProcsError::Write { source, .. } | ProcsError::Read { source, .. }) if gone(&source) => Ok(()),
        outcome => outcome,
    }
}
