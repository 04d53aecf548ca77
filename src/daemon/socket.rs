//! The socket that clients talk to.
//!
//! Whoever can write to it is root on the node, so at no moment is it open to more than was configured: the file is
//! born for the owner alone, gets its group and mode next, and only then takes connections.

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

/// The socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("another daemon is listening on {}", .0.display())]
    Live(PathBuf),
    #[error("{} exists and is not a socket", .0.display())]
    NoSocket(PathBuf),
    #[error("{doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

fn failed<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> SocketError {
    move |source| SocketError::Io { doing, path: path.to_owned(), source: source.into() }
}

/// A listening socket; its file goes when it does.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Device and number of the file, to know it from one that came later.
    file: (u64, u64),
}

impl Socket {
    /// Listens on `path`. A file left by a daemon that is gone is replaced; a living daemon is not disturbed.
    pub(crate) fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<(Self, UnixListener), SocketError> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        // The group needs a way to the socket, but nobody needs to see what else is there.
        make_dir(dir, 0o711)?;
        // Two daemons that find the same stale file must not take over from each other.
        let mut turn = path.as_os_str().to_owned();
        turn.push(".lock");
        let turn = PathBuf::from(turn);
        let _turn = lock(&turn, FlockOperation::LockExclusive).map_err(failed("locking", &turn))?;
        clear_stale(path)?;

        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed("creating a socket for", path))?;
        // The file takes over the mode of the socket it is bound to.
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
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the socket file");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// Removes the socket of a daemon that is gone.
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

/// Whether the process that listens was killed: while a thread of it waits in the kernel, its sockets stay open.
fn is_of_killed(listener: &UnixStream) -> bool {
    let listens = rustix::net::sockopt::socket_peercred(listener);
    listens.is_ok_and(|process| process_lock::is_killed(process.pid.as_raw_nonzero().get()))
}

/// Makes a directory, and those above it, where it is missing; one that exists is left as it is.
pub(crate) fn make_dir(dir: &Path, mode: u32) -> Result<(), SocketError> {
    if let Some(above) = dir.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(above).map_err(failed("creating", above))?;
    }
    match DirBuilder::new().mode(mode).create(dir) {
        Err(exists) if exists.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        other => other.map_err(failed("creating", dir)),
    }
}

/// Locks the file `path`, which stays; the lock goes with what is returned.
///
/// For the owner alone: whoever can open a file can lock it, and keep a daemon from starting.
pub(crate) fn lock(path: &Path, operation: FlockOperation) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    rustix::fs::flock(&file, operation)?;
    Ok(file)
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
