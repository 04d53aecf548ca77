//! Starts a shim from a sealed copy of its program, on a socket that the daemon creates.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use model::{ErrorClass, ErrorKind};

use super::pid_file;

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("loading the shim program {path}")]
    Program { path: PathBuf, source: io::Error },
    #[error("creating the socket of the pod's shim {path}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("starting the pod's shim")]
    Start(#[source] io::Error),
    #[error("recording the process of the pod's shim in {dir}")]
    Note { dir: PathBuf, source: io::Error },
}

impl ErrorClass for SpawnError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Start(source) if source.kind() == io::ErrorKind::WouldBlock => ErrorKind::Exhausted,
            Self::Program { .. } | Self::Listen { .. } | Self::Start(_) | Self::Note { .. } => ErrorKind::Internal,
        }
    }
}

/// The shim's program, in sealed memory: no container can overwrite it through `/proc`, all shims
/// share its pages, and an upgrade of the file does not change running shims.
#[derive(Debug)]
pub struct ShimProgram(OwnedFd);

impl ShimProgram {
    pub fn load(path: &Path) -> Result<Self, SpawnError> {
        let failed = |source| SpawnError::Program { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        Ok(Self(sys::memfd::sealed("crisp-shim", file).map_err(failed)?))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Starts a shim for the pod whose directory is `dir`. The daemon creates the socket
    /// `shim.sock`, so the shim is reachable from its start.
    pub(crate) fn spawn(&self, dir: &Path) -> Result<(), SpawnError> {
        let socket = dir.join("shim.sock");
        let listener = sys::seqpacket::listen(&socket).map_err(|source| SpawnError::Listen { path: socket, source })?;
        let log = File::options().create(true).append(true).open(dir.join("shim.log")).map_err(SpawnError::Start)?;
        let mut child = tokio::process::Command::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
            .arg0("crisp-shim")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .spawn()
            .map_err(SpawnError::Start)?;
        let noted = child.id().map_or(Ok(()), |pid| pid_file::write(dir, pid));
        // Reaps the shim. Its exit is noticed by the end of its connection.
        tokio::spawn(async move { child.wait().await });
        noted.map_err(|source| SpawnError::Note { dir: dir.to_owned(), source })
    }
}
