//! Errors of listing, freezing and killing the processes of a cgroup.

use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::files::gone;

/// The processes of a cgroup could not be listed, frozen or killed.
#[derive(Debug, thiserror::Error)]
pub enum ProcsError {
    #[error("reading {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("writing {value:?} to {path}")]
    Write { path: PathBuf, value: &'static str, source: io::Error },
    #[error("killing process {pid}")]
    Kill { pid: NonZeroU32, source: io::Error },
    #[error("this process is in the cgroup that it is to freeze or kill")]
    Own,
    #[error("the host has no freezer controller")]
    NoFreezer,
    #[error("the cgroup is still not {wanted} after {:.1} s", after.as_secs_f64())]
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
