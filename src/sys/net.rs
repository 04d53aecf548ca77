//! Network interfaces, as far as a fresh network namespace needs it.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Brings the loopback interface of the calling thread's network namespace up.
pub fn loopback_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[108, 111]); // "lo"
    // Flags fit: IFF_UP and IFF_RUNNING are 0x41.
    request.ifr_ifru.ifru_flags = 0x41;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which lives through the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
