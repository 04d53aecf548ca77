//! What the daemon and a pod's shim say to each other.
//!
//! The shim listens on a socket of sequenced packets in the pod's state directory; each packet is one JSON
//! [`ShimRequest`] or [`ShimMessage`], with file descriptors beside it where an [`Request`] says so. The daemon asks, the shim
//! answers under the same number, and tells of exits in between as an [`Event`]. What can be long (the OCI
//! configuration) goes through files in the container's directory: [`LaunchConfig`].
//!
//! The two are replaced at different times: a shim lives as long as its pod. So a message is only ever added to,
//! unknown fields are skipped, an unknown ask is answered with [`ShimError`] of kind unsupported, and the first ask is
//! always [`Request::Hello`], whose answer tells the daemon which [`PROTOCOL`] the shim was built with.
#![forbid(unsafe_code)]

mod codec;
mod launch_config;
mod message;

pub use codec::{FrameError, decode, encode};
pub use launch_config::{CgroupMount, CgroupPaths, LaunchConfig, Overlay};
pub use message::{
    AttachFrame, AttachRequest, ContainerReport, CreateRequest, Event, ExecRequest, ExecStreamRequest, PodNamespaces,
    Request, Response, Sandbox, SandboxRequest, ShimError, ShimErrorKind, ShimMessage, ShimRequest, Stdio,
};

/// Grows with every change that an older side would misunderstand.
pub const PROTOCOL: u32 = 1;
/// The oldest shims that this daemon still drives.
pub const OLDEST: u32 = 1;
