//! One wait for everything: who is ready, by name.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use launcher::io::cri_log::Stream;
use model::ContainerId;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::server::ExecKey;

/// What a descriptor is there for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Listener,
    Signals,
    Connection(u64),
    Report(ContainerId),
    Started(ContainerId),
    Poststart(ContainerId),
    Output(ContainerId, Stream),
    ExecStarted(ExecKey),
    Attached(ContainerId, u64),
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    sources: HashMap<u64, Source>,
    next: u64,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, sources: HashMap::new(), next: 0 })
    }

    /// Watches `fd` for input until [`Poller::forget`], which has to be told the same descriptor.
    pub(crate) fn watch(&mut self, fd: impl AsFd, source: Source) -> io::Result<()> {
        self.next += 1;
        epoll::add(&self.epoll, fd, EventData::new_u64(self.next), EventFlags::IN)?;
        self.sources.insert(self.next, source);
        Ok(())
    }

    /// Also watches a connection for room to write.
    pub(crate) fn watch_room(&mut self, fd: impl AsFd, source: &Source, room: bool) -> io::Result<()> {
        let Some((token, _)) = self.sources.iter().find(|(_, s)| *s == source) else { return Ok(()) };
        let flags = if room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(*token), flags)?)
    }

    /// Ends the watch of a descriptor that is about to be closed.
    pub(crate) fn forget(&mut self, fd: impl AsFd, source: &Source) {
        self.sources.retain(|_, s| s != source);
        // Nothing to delete where it was never watched.
        epoll::delete(&self.epoll, fd).ok();
    }

    /// Waits until something is ready, or `limit` is over.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> io::Result<Vec<Source>> {
        let mut events = Vec::with_capacity(16);
        // Longer than a timer can count is for ever.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.iter().filter_map(|e| self.sources.get(&e.data.u64()).cloned()).collect())
    }
}
