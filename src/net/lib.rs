//! Pod networks: with CNI plugins if the node has them configured ([`cni`]), else the built-in
//! bridge
//! ([`bridge`]).
//!
//! Both receive a [`Pod`], whose network namespace exists already, and return its addresses
//! ([`Attached`]). The caller records the pods and the network of each.
#![forbid(unsafe_code)]

mod attachment;
pub mod bridge;
pub mod cni;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

pub use attachment::{Attached, INTERFACE, Pod};
