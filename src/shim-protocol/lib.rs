//! The protocol between the daemon and a pod's shim.
//!
//! The shim listens on a seqpacket socket in the pod's state directory. Each packet is one JSON
//! [`ShimRequest`] or [`ShimMessage`], with file descriptors if the [`Request`] documents them. A
//! response repeats the number of its request; an [`Event`] reports an exit at any time. The OCI
//! configuration and [`LaunchConfig`] are files in the container's directory.
//!
//! Daemon and shim are upgraded at different times: a shim lives as long as its pod. So messages
//! are only extended, unknown fields are ignored, the response to an unknown request is a
//! [`ShimError`] of kind unsupported, and the first request is always [`Request::Hello`], whose
//! response has the [`PROTOCOL`] of the shim.
#![forbid(unsafe_code)]

mod codec;
mod launch_config;
mod message;

pub use codec::{FrameError, decode, encode};
pub use launch_config::{CgroupMount, CgroupPaths, LaunchConfig, LogPath, Overlay};
pub use message::{
    AttachFrame, AttachRequest, ContainerReport, CreateRequest, Event, ExecRequest, ExecStreamRequest, LaunchWarning,
    LaunchWarningKind, PodNamespaces, Request, Response, Sandbox, SandboxRequest, ShimError, ShimErrorKind,
    ShimMessage, ShimRequest, Stdio,
};

/// The version of the protocol. It is incremented with every change that an older side would
/// misinterpret.
pub const PROTOCOL: u32 = 2;
/// The oldest shim version that this daemon supports.
pub const OLDEST: u32 = 2;
