//! Network namespaces: the loopback interface of a new one, and access to others.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Brings the loopback interface of the calling thread's network namespace up.
pub fn loopback_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[108, 111]); // "lo"
    // Flags fit: IFF_UP and IFF_RUNNING are 0x41.
    request.ifr_ifru.ifru_flags = 0x41;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Creates a TCP socket in the network namespace of the calling thread; it stays in that namespace
/// wherever it is used.
pub fn tcp(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

/// Restricts a socket to one network interface, also after it was bound to a port.
pub fn bind_to_device(socket: impl AsFd, name: &str) -> io::Result<()> {
    Ok(nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::BindToDevice, &name.into())?)
}

/// Runs `look` in each of the network namespaces at `paths`, and returns the results in their
/// order.
///
/// Uses a temporary thread, so that the other threads never leave their namespace, even after an
/// error.
pub fn run_in<T: Send>(paths: &[&Path], look: impl Fn() -> io::Result<T> + Send) -> io::Result<Vec<io::Result<T>>> {
    let visit = move |path: &&Path| {
        let namespace = File::open(path)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        look()
    };
    std::thread::scope(|scope| {
        let visitor = std::thread::Builder::new().name("net-visitor".to_owned());
        let visitor = visitor.spawn_scoped(scope, || paths.iter().map(visit).collect())?;
        visitor.join().map_err(|_| io::Error::other("the thread in other network namespaces panicked"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn own() -> fs::Metadata {
        fs::metadata("/proc/thread-self/ns/net").unwrap()
    }

    #[test]
    #[ignore = "needs root"]
    fn other_namespaces_are_read_without_moving_this_thread() {
        use std::os::unix::fs::MetadataExt as _;
        let before = own().ino();
        // A thread in a new namespace, which exists as long as the channel is open.
        let (found, path) = std::sync::mpsc::channel();
        let (stay, end) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let thread = fs::read_link("/proc/thread-self").unwrap();
            found.send(Path::new("/proc").join(thread).join("ns/net")).unwrap();
            end.recv().unwrap_err();
        });
        let path = path.recv().unwrap();
        let gone = Path::new("/nowhere/netns");
        let no_namespace = Path::new("/dev/null");
        let look = || Ok((own().ino(), fs::read_to_string("/proc/thread-self/net/dev")?));
        let paths = [path.as_path(), gone, no_namespace, Path::new("/proc/self/ns/net")];
        let seen = run_in(&paths, look).unwrap();
        drop(stay);
        other.join().unwrap();
        let (there, devices) = seen[0].as_ref().unwrap();
        assert_ne!(*there, before);
        assert_eq!(devices.lines().count(), 3, "two header lines and only loopback: {devices}");
        assert_eq!(seen[1].as_ref().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(seen[2].is_err());
        assert_eq!(seen[3].as_ref().unwrap().0, before);
        assert_eq!(own().ino(), before);
    }
}
