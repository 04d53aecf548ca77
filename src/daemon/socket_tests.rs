use std::io::{Read as _, Write as _};

use super::*;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_socket_has_the_configured_mode_and_is_removed_when_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deeper/still/crisp.sock");
    let (socket, listener) = Socket::bind(&path, 0o660, None).unwrap();
    assert_eq!(mode(&path), 0o660);
    assert_eq!(mode(path.parent().unwrap()), 0o711);
    let mut client = UnixStream::connect(&path).unwrap();
    listener.set_nonblocking(false).unwrap();
    listener.accept().unwrap().0.write_all(b"hello").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn the_file_is_created_for_the_owner_alone() {
    // `bind` depends on it: the file gets the mode of the socket, with any umask.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn a_stale_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    let (_socket, _listener) = Socket::bind(&path, 0o600, None).unwrap();
    assert!(UnixStream::connect(&path).is_ok());
}

#[test]
fn a_live_socket_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (_socket, _listener) = Socket::bind(&path, 0o600, None).unwrap();
    let error = Socket::bind(&path, 0o600, None).unwrap_err();
    assert!(matches!(error, SocketError::Live(_)), "{error}");
    assert!(UnixStream::connect(&path).is_ok());
}

#[test]
fn a_file_that_is_not_a_socket_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    fs::write(&path, "precious").unwrap();
    let error = Socket::bind(&path, 0o600, None).unwrap_err();
    assert!(matches!(error, SocketError::NoSocket(_)), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_socket_that_replaced_this_one_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (socket, _listener) = Socket::bind(&path, 0o600, None).unwrap();
    fs::rename(&path, dir.path().join("moved")).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(socket);
    assert!(path.exists());
}

#[test]
fn an_existing_directory_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o750)).unwrap();
    make_dir(dir.path(), 0o711).unwrap();
    assert_eq!(mode(dir.path()), 0o750);
}

#[test]
fn only_the_owner_can_open_a_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let _held = lock(&path, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert!(lock(&path, FlockOperation::NonBlockingLockExclusive).is_err());
}
