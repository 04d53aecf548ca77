//! What the daemon knows: in memory for looking, on disk for the next daemon.
//!
//! A `Table` holds the `Entry` of every pod or container. An entry has one lock for doing and one cell for looking,
//! so a status never waits behind a slow stop. `layout` keeps each record in a file of its own, in a directory that
//! holds all that belongs to the pod or container: whoever finds the directory can clear it all away.

pub(crate) mod cpu_rate;
mod event_cursor;
pub(crate) mod intent;
pub(crate) mod layout;
pub(crate) mod names;
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
pub(crate) use table::{AmbiguousId, CONTAINER_FILE, Entry, POD_FILE, Record, Table};
