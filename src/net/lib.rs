//! Networks of pods: by CNI plugins where the node has them configured ([`cni`]), else by a bridge of crisp's own
//! ([`bridge`]).
//!
//! Both are told of a [`Pod`], whose network namespace exists already, and say what addresses it got ([`Attached`]). Neither
//! keeps a list of pods: whoever calls knows them, and which of the two each was attached by.
#![forbid(unsafe_code)]

mod attachment;
pub mod bridge;
pub mod cni;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

pub use attachment::{Attached, INTERFACE, Pod};
