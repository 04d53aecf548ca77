//! The daemon's state: in memory for reads, on disk for the next daemon.
//!
//! A `Table` has the `Entry` of every pod and container. An entry has a lock for changes and a cell
//! for reads, so that a status never waits for a slow stop. `layout` stores each record in the
//! directory that contains everything else of the pod or container, so that the directory is enough
//! for a cleanup.

pub(crate) mod cpu_rate;
mod event_cursor;
pub(crate) mod intent;
pub(crate) mod layout;
pub(crate) mod names;
mod oom_kills;
pub(crate) mod record;
pub(crate) mod samples;
mod stop_waiters;
pub(crate) mod table;

pub(crate) use event_cursor::LifecycleStep;
pub(crate) use intent::{CgroupIntent, ContainerIntent, PodIntent};
pub use layout::Layout;
pub(crate) use names::{NameTaken, Names};
pub(crate) use record::{
    ContainerImage, ContainerRecord, ContainerUser, NetworkKind, PodCgroup, PodRecord, Unreadable, VERSION,
};
pub(crate) use stop_waiters::StopWaiters;
pub(crate) use table::{AmbiguousId, CONTAINER_FILE, CgroupRecord, Entry, POD_FILE, Record, Table};
