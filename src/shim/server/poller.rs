//! Waits for all descriptors by `poll(2)`: a shim has tens of them, and epoll watches count against
//! a quota of root, which any container without a user namespace can use up.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, RawFd};
use std::time::Duration;

use launcher::io::cri_log::Stream;
use model::ContainerId;
use sys::poll::{POLLIN, POLLNVAL, POLLOUT, PollFd};

use crate::server::ExecKey;

/// The meaning of a watched descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Listener,
    Signals,
    Connection(u64),
    Report(ContainerId),
    Started(ContainerId),
    Poststart(ContainerId),
    LogOpened(ContainerId),
    Output(ContainerId, Stream),
    ExecStarted(ExecKey),
    Attached(ContainerId, u64),
}

/// The watched descriptors, and the meaning of each at the same index.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    entries: Vec<PollFd>,
    sources: Vec<Source>,
}

impl Poller {
    /// Watches `fd` for input until [`Poller::forget`], which must be called before `fd` is closed.
    pub(crate) fn watch(&mut self, fd: impl AsFd, source: Source) {
        self.entries.push(sys::poll::entry(fd.as_fd().as_raw_fd(), POLLIN));
        self.sources.push(source);
    }

    /// Watches a connection for room to write, too.
    pub(crate) fn watch_room(&mut self, source: &Source, room: bool) {
        let events = if room { POLLIN | POLLOUT } else { POLLIN };
        for (entry, watched) in self.entries.iter_mut().zip(&self.sources) {
            if watched == source {
                entry.events = events;
            }
        }
    }

    /// Stops watching a descriptor that is about to be closed.
    pub(crate) fn forget(&mut self, fd: impl AsFd, source: &Source) {
        let number = fd.as_fd().as_raw_fd();
        self.retain(|entry, watched| entry.fd != number && watched != source);
    }

    fn retain(&mut self, keep: impl Fn(&PollFd, &Source) -> bool) {
        let watched = self.entries.iter().zip(&self.sources);
        let kept: Vec<bool> = watched.map(|(entry, source)| keep(entry, source)).collect();
        let (mut entries, mut sources) = (kept.iter(), kept.iter());
        self.entries.retain(|_| entries.next() == Some(&true));
        self.sources.retain(|_| sources.next() == Some(&true));
    }

    /// Waits until a descriptor is ready, or for `limit`.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> io::Result<Vec<Source>> {
        sys::poll::wait(&mut self.entries, limit)?;
        let answers = self.entries.iter().zip(&self.sources);
        let ready = answers.clone().filter(|(entry, _)| entry.revents & !POLLNVAL != 0);
        let ready: Vec<Source> = ready.map(|(_, source)| source.clone()).collect();
        let closed: Vec<RawFd> =
            answers.filter(|(entry, _)| entry.revents & POLLNVAL != 0).map(|(entry, _)| entry.fd).collect();
        if !closed.is_empty() {
            launcher::log(format_args!("descriptors {closed:?} were closed while they were watched"));
            self.retain(|entry, _| entry.revents & POLLNVAL == 0);
        }
        Ok(ready)
    }
}
