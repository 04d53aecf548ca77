//! `poll(2)` for raw descriptors.
//!
//! Unlike epoll it keeps no state in the kernel between calls, so no per-user quota limits it.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

pub use libc::pollfd as PollFd;
pub use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT};

/// Returns an entry that waits for `events` of `fd`.
pub fn entry(fd: RawFd, events: i16) -> PollFd {
    PollFd { fd, events, revents: 0 }
}

/// Waits until an entry is ready, a signal handler ran, or `limit` has passed; the results are in
/// `revents`.
///
/// A number that is not an open descriptor is ready with `POLLNVAL`.
pub fn wait(entries: &mut [PollFd], limit: Option<Duration>) -> io::Result<()> {
    // Rounded up to whole milliseconds: the wait must not end before the limit.
    let millis = limit.map_or(-1, |limit| i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    let count = libc::nfds_t::try_from(entries.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: pointer and length are those of one slice, which is borrowed mutably for the call.
    let ready = unsafe { libc::poll(entries.as_mut_ptr(), count, millis) };
    match io::Error::last_os_error() {
        _ if ready >= 0 => Ok(()),
        interrupted if interrupted.kind() == io::ErrorKind::Interrupted => {
            entries.iter_mut().for_each(|entry| entry.revents = 0);
            Ok(())
        }
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn input_an_end_and_a_closed_descriptor_are_distinguished() {
        let (silent, _open) = io::pipe().unwrap();
        let (full, mut filled) = io::pipe().unwrap();
        let (ended, closed) = io::pipe().unwrap();
        filled.write_all(b"x").unwrap();
        drop(closed);
        let mut entries =
            [silent.as_raw_fd(), full.as_raw_fd(), ended.as_raw_fd(), 1 << 20].map(|fd| entry(fd, POLLIN));
        wait(&mut entries, None).unwrap();
        assert_eq!(entries.map(|entry| entry.revents), [0, POLLIN, POLLHUP, POLLNVAL]);
    }

    #[test]
    fn a_wait_ends_after_its_limit_and_not_before() {
        let (silent, _open) = io::pipe().unwrap();
        let (mut entries, begin) = ([entry(silent.as_raw_fd(), POLLIN)], std::time::Instant::now());
        let limit = Duration::from_micros(20_500);
        wait(&mut entries, Some(limit)).unwrap();
        assert!(begin.elapsed() >= limit);
        assert_eq!(entries[0].revents, 0);
    }
}
