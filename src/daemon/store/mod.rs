//! What the daemon knows: in memory for looking, on disk for the next daemon.
//!
//! A [`Table`] holds the [`Entry`] of every pod or container. An entry has one lock for doing and one cell for looking,
//! so a status never waits behind a slow stop. [`disk`] keeps each record in a file of its own, in a directory that
//! holds all that belongs to the pod or container: whoever finds the directory can clear it all away.

pub(crate) mod disk;
mod ends;
pub(crate) mod gauge;
pub(crate) mod names;
pub(crate) mod record;
pub(crate) mod table;
mod told;

pub use disk::Layout;
pub(crate) use ends::Ends;
pub(crate) use names::{NameTaken, Names};
pub(crate) use record::{Connection, ContainerRecord, ImageUsed, PodCgroup, PodRecord, UserUsed, VERSION};
pub(crate) use table::{Ambiguous, Entry, Record, Table};
pub(crate) use told::Moment;
