//! The socket for plugins.
//!
//! A plugin has the powers of root on the node, so only root may connect: the socket has mode 0600,
//! in a directory that no other user can write.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use model::{ErrorClass, ErrorKind};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("another process is listening on {}", .0.display())]
    Live(PathBuf),
    #[error("{} exists and is not a socket", .0.display())]
    NoSocket(PathBuf),
    #[error("{} has mode {mode:04o} and owner {owner}: expected a directory that only root can write", path.display())]
    Directory { path: PathBuf, mode: u32, owner: u32 },
    #[error("{doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl ErrorClass for ListenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Live(_) => ErrorKind::Exists,
            Self::NoSocket(_) | Self::Directory { .. } => ErrorKind::Precondition,
            Self::Io { .. } => ErrorKind::Internal,
        }
    }
}

fn failed<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> ListenError {
    move |source| ListenError::Io { doing, path: path.to_owned(), source: source.into() }
}

/// The listening socket; its file is removed with it.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to recognise a file that replaced it.
    file: (u64, u64),
}

/// The process at the other end, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) pid: Option<i32>,
    pub(crate) uid: u32,
}

impl Socket {
    /// Listens on `path`, in place of a stale socket.
    pub(crate) fn bind(path: &Path) -> Result<Self, ListenError> {
        make_directory(path.parent().unwrap_or(Path::new("/")))?;
        remove_stale(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed("creating a socket for", path))?;
        // The file gets the mode of the socket that is bound to it.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("restricting the socket for", path))?;
        let address = SocketAddrUnix::new(path).map_err(failed("using as a socket address", path))?;
        rustix::net::bind(&socket, &address).map_err(failed("binding", path))?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listening on", path))?;
        let listener = UnixListener::from_std(socket.into()).map_err(failed("listening on", path))?;
        let file = identity(path).map_err(failed("reading the status of", path))?;
        Ok(Self { listener, path: path.to_owned(), file })
    }

    /// Accepts the next connection of root, or of the user of this process.
    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let credentials = stream.peer_cred()?;
            let peer = Peer { pid: credentials.pid(), uid: credentials.uid() };
            if peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw() {
                return Ok((stream, peer));
            }
            tracing::warn!(pid = peer.pid, uid = peer.uid, "a connection to the NRI socket was refused: not root");
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let is_same = identity(&self.path).is_ok_and(|file| file == self.file);
        if is_same && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the socket file");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

fn make_directory(path: &Path) -> Result<(), ListenError> {
    if let Some(above) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(above).map_err(failed("creating", above))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("creating", path)(error)),
        _ => {}
    }
    let meta = fs::metadata(path).map_err(failed("reading the status of", path))?;
    let (mode, owner) = (meta.mode() & 0o7777, meta.uid());
    let is_owner_trusted = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if !meta.is_dir() || mode & 0o022 != 0 || !is_owner_trusted {
        return Err(ListenError::Directory { path: path.to_owned(), mode, owner });
    }
    Ok(())
}

/// Removes the socket of an exited process.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("reading the status of", path)(error)),
        Ok(meta) if !meta.file_type().is_socket() => return Err(ListenError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    // Non-blocking: the queue of a listener that does not accept may be full.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(failed("creating a socket for", path))?;
    let address = SocketAddrUnix::new(path).map_err(failed("using as a socket address", path))?;
    match rustix::net::connect(&probe, &address) {
        Err(rustix::io::Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed("removing the stale", path)),
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Err(ListenError::Live(path.to_owned())),
        Err(error) => Err(failed("connecting to", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn the_socket_is_for_its_owner_alone_and_replaces_a_stale_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nri/nri.sock");
        let socket = Socket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert!(matches!(Socket::bind(&path), Err(ListenError::Live(_))));
        let client = UnixStream::connect(&path).await.unwrap();
        let (_stream, peer) = socket.accept().await.unwrap();
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
        drop((client, socket));
        assert!(!path.exists());

        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        Socket::bind(&path).unwrap();
    }

    #[tokio::test]
    async fn other_files_and_directories_that_others_can_write_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(matches!(Socket::bind(&path), Err(ListenError::NoSocket(_))));
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Socket::bind(&directory.path().join("nri.sock"));
        assert!(matches!(refused, Err(ListenError::Directory { mode: 0o777, .. })), "{refused:?}");
    }
}
