//! What the daemon and a pod's shim say to each other.
//!
//! The shim listens on a socket of sequenced packets in the pod's state directory; each packet is one JSON
//! [`ToShim`] or [`ToDaemon`], with file descriptors beside it where an [`Ask`] says so. The daemon asks, the shim
//! answers under the same number, and tells of exits in between as an [`Event`]. What can be long (the OCI
//! configuration) goes through files in the container's directory: [`Launch`].
//!
//! The two are replaced at different times: a shim lives as long as its pod. So a message is only ever added to,
//! unknown fields are skipped, an unknown ask is answered with [`Failure`] of kind unsupported, and the first ask is
//! always [`Ask::Hello`], whose answer tells the daemon which [`PROTOCOL`] the shim was built with.
#![forbid(unsafe_code)]

mod codec;
mod launch_config;
mod message;

pub use codec::{FrameError, decode, encode};
pub use launch_config::{CgroupView, Launch, Overlay, ShownController};
pub use message::{
    Answer, Ask, AttachAsk, AttachWord, ContainerReport, CreateAsk, Event, ExecAsk, ExecStreamAsk, Failure,
    FailureKind, Held, HoldAsk, PodNamespaces, Stdio, ToDaemon, ToShim,
};

/// Grows with every change that an older side would misunderstand.
pub const PROTOCOL: u32 = 1;
/// The oldest shims that this daemon still drives.
pub const OLDEST: u32 = 1;
