//! Restores limits after a reload of systemd.
//!
//! At a reload, systemd writes all limits from its properties. Two values have no exact property: a
//! quota that is not a whole percent of a CPU, and `memory.oom.group`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use super::bus::Bus;
use super::{MANAGER, SyncError, SystemdError, properties, property};
use crate::cgroup::Cgroup;
use crate::limits::knob::{AppliedValues, CgroupFs as _, Knob};
use crate::limits::plan::Write;

/// The file whose modification time changes when systemd has reloaded all units.
const DIR: &str = "/run/systemd";
const FILE: &[u8] = b"systemd-units-load";

/// Watches for reloads.
#[derive(Debug)]
pub struct ReloadWatcher {
    inotify: OwnedFd,
}

impl ReloadWatcher {
    pub fn watch() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC)?;
        inotify::add_watch(&inotify, DIR, WatchFlags::ATTRIB | WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
        Ok(Self { inotify })
    }

    /// Waits for the next reload.
    pub fn wait(&mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.file_name().is_some_and(|name| name.to_bytes() == FILE) => return Ok(()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl super::Systemd {
    /// Waits until systemd has written everything after a reload: it does not reply before that.
    pub fn settle(&self) -> Result<(), SystemdError> {
        property(&mut Bus::connect()?, MANAGER, "org.freedesktop.systemd1.Manager", "Version")?;
        Ok(())
    }
}

impl Cgroup {
    /// Restores the files of `settings` that a reload changed, and returns each with systemd's
    /// value and the one read back. A file with neither the written nor systemd's value was changed
    /// by another process, and stays.
    pub fn restore_after_reload(&self, settings: &AppliedValues) -> Result<Vec<Write>, SyncError> {
        let mut again = Vec::new();
        if self.unit().is_none() {
            return Ok(again);
        }
        for (knob, setting) in settings {
            let period = self.held(&Knob::CFS_PERIOD)?;
            let Some(theirs) = properties::after_reload(knob, &setting.written, period.as_ref()) else { continue };
            let Some(found) = self.held(knob)? else { continue };
            if theirs != setting.read_back && knob.same(&found, &knob.value(theirs)) {
                self.write(knob, &setting.written).map_err(|source| SyncError::Restore {
                    file: self.location(knob),
                    value: setting.written.clone(),
                    source,
                })?;
                let want = self.held(knob)?.unwrap_or_else(|| knob.value(setting.written.as_str()));
                again.push(Write { knob: knob.clone(), had: found, want });
            }
        }
        Ok(again)
    }
}
