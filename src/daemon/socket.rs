//! The Unix socket of the daemon.
//!
//! Access to it equals root on the node, so its permissions are never wider than configured: the
//! file is created for the owner alone, then gets its group and mode, and only then accepts
//! connections.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Gid, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use safe_fs::process_lock;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("another daemon is listening on {}: stop it, or set another socket with `listen`", .0.display())]
    Live(PathBuf),
    #[error("{} exists and is not a socket: remove it, or set another socket with `listen`", .0.display())]
    NoSocket(PathBuf),
    #[error("{doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

fn failed<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> SocketError {
    move |source| SocketError::Io { doing, path: path.to_owned(), source: source.into() }
}

/// A listening socket; its file is removed with it.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Device and inode of the file, to recognise a file that replaced it.
    file: (u64, u64),
}

impl Socket {
    /// Listens on `path`. Replaces the stale socket of an exited daemon; refuses the socket of a
    /// running one.
    pub(crate) fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<(Self, UnixListener), SocketError> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        // The group needs access to the socket, but not to the list of files.
        make_dir(dir, 0o711)?;
        // Two daemons that find the same stale file must not replace each other's.
        let mut turn = path.as_os_str().to_owned();
        turn.push(".lock");
        let turn = PathBuf::from(turn);
        let _turn = lock(&turn, FlockOperation::LockExclusive).map_err(failed("locking", &turn))?;
        clear_stale(path)?;

        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed("creating a socket for", path))?;
        // The file gets the mode of the socket that is bound to it.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("restricting the socket for", path))?;
        let address = SocketAddrUnix::new(path).map_err(failed("using as a socket address", path))?;
        rustix::net::bind(&socket, &address).map_err(failed("binding", path))?;
        let ours = Self { path: path.to_owned(), file: identity(path).map_err(failed("reading the status of", path))? };
        if let Some(group) = group {
            rustix::fs::chown(path, None, Some(Gid::from_raw(group))).map_err(failed("setting the group of", path))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("setting the mode of", path))?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listening on", path))?;
        Ok((ours, UnixListener::from(socket)))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let still_ours = identity(&self.path).is_ok_and(|file| file == self.file);
        if still_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the daemon's socket file at its exit");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// Removes the socket of an exited daemon.
fn clear_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("reading the status of", path)(error)),
        Ok(meta) if !meta.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("removing the stale", path))
        }
        Err(error) => Err(failed("connecting to", path)(error)),
        Ok(listener) if is_of_killed(&listener) => fs::remove_file(path).map_err(failed("removing the stale", path)),
        Ok(_) => Err(SocketError::Live(path.to_owned())),
    }
}

/// Returns whether the listening process was killed: its sockets stay open while one of its threads
/// is blocked in the kernel.
fn is_of_killed(listener: &UnixStream) -> bool {
    let listens = rustix::net::sockopt::socket_peercred(listener);
    listens.is_ok_and(|process| process_lock::is_killed(process.pid.as_raw_nonzero().get()))
}

/// Creates a missing directory and its parents; an existing one is not changed.
pub(crate) fn make_dir(dir: &Path, mode: u32) -> Result<(), SocketError> {
    if let Some(above) = dir.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(above).map_err(failed("creating", above))?;
    }
    match DirBuilder::new().mode(mode).create(dir) {
        Err(exists) if exists.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        other => other.map_err(failed("creating", dir)),
    }
}

/// Locks the file `path`; the lock is released with the result, the file remains.
///
/// Its mode is 0600: any process that can open a file can lock it, and keep a daemon from starting.
pub(crate) fn lock(path: &Path, operation: FlockOperation) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    rustix::fs::flock(&file, operation)?;
    Ok(file)
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
