//! Merges the answers of plugins, in their order. Pure.
//!
//! Each field has one owner per container: a second plugin that sets it is a conflict, which fails
//! the request. A plugin takes a field over by removing and setting it in one answer. Deviations
//! from containerd/nri v0.12.2 (`pkg/adaptation/result.go`): a removal without a new value is kept
//! for all kinds and no longer shown to later plugins, each key has one value, the `pids` limit of
//! an update counts, and evictions are returned.

mod allow;
mod check;
mod creation;
mod error;
mod keyed;
mod owners;
mod resources;
mod updates;

pub use allow::{Allow, Group, UnknownGroup};
pub use creation::{Created, Creation};
pub use error::MergeError;
pub use owners::{Owner, Owners};
pub use updates::{Eviction, Resize, Resized, Update, Updates};

#[cfg(test)]
#[path = "creation_tests.rs"]
mod creation_tests;
#[cfg(test)]
#[path = "updates_tests.rs"]
mod updates_tests;
