//! Sequenced packets over Unix sockets: each send is one message, with file descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Maximum length of a message in bytes; both sides refuse longer ones. Longer data is passed in
/// files.
pub const MAX: usize = 128 * 1024;
/// Maximum number of descriptors in one message.
pub const MAX_FDS: usize = 8;

/// Listens on a socket at `path`, for root only: the parent directory must have mode 0700.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    // The socket file gets the mode of the socket.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    at(path, |address| rustix::net::bind(&socket, address))?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket)
}

/// Connects to a socket of [`listen`]. The connection is non-blocking, as that of [`accept`].
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    at(path, |address| rustix::net::connect(&socket, address))?;
    Ok(socket)
}

/// Addresses a socket through a descriptor of its directory: an address has at most 107 bytes, a
/// path may be longer.
fn at(path: &Path, act: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok(act(&SocketAddrUnix::new(&short)?)?)
}

/// Accepts the next connection; refuses peers that are not root.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let peer = rustix::net::sockopt::socket_peercred(&socket)?;
    if peer.uid.is_root() { Ok(socket) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Returns two connected sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sets the send buffer to `bytes`, above the system's limit if needed. Needs `CAP_NET_ADMIN`.
pub fn make_room(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    // The kernel doubles it for its overhead per message.
    Ok(nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::SndBufForce, &bytes)?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends one message completely or returns an error.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > MAX || fds.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message into `buffer`; returns `None` at the end of the connection.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message truncated"));
    }
    if got.bytes == 0 && fds.is_empty() { Ok(None) } else { Ok(Some((got.bytes, fds))) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (a, b) = pair().unwrap();
        let (read, write) = std::io::pipe().unwrap();
        send(&a, b"hello", &[write.as_fd()]).unwrap();
        drop(write);
        let mut buffer = [0; 64];
        let (n, mut fds) = receive(&b, &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..n], b"hello");
        std::fs::File::from(fds.pop().unwrap()).write_all(b"x").unwrap();
        assert_eq!(std::io::read_to_string(read).unwrap(), "x");
        drop(a);
        assert!(receive(&b, &mut buffer).unwrap().is_none());
    }

    #[test]
    fn a_socket_path_may_be_longer_than_an_address() {
        let top = std::env::temp_dir().join(format!("crisp-packet-{}", std::process::id()));
        let deep = top.join("x".repeat(100)).join("y".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        let listener = listen(&deep.join("s"));
        let connected = connect(&deep.join("s"));
        let missing = connect(&deep.join("none"));
        std::fs::remove_dir_all(top).unwrap();
        drop(listener.unwrap());
        connected.unwrap();
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_message_that_does_not_fit_is_an_error() {
        let (a, b) = pair().unwrap();
        send(&a, &[7; 100], &[]).unwrap();
        let mut buffer = [0; 64];
        assert_eq!(receive(&b, &mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
