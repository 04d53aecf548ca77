//! The daemon: a container runtime behind the two services of CRI.
//!
//! ```text
//! grpc → convert → runtime → sandbox → shim → shim-protocol
//!                    └──▶ store, image, net, cgroup, oci, security → safe-fs, sync, sys, model
//! ```
//!
//! A request arrives in [`serve`], gets a span in `grpc`, is checked and converted to the model in
//! `convert`, and is executed by `runtime`. Records of pods and containers are in `store`. One shim
//! per pod holds its processes, so that the daemon can exit at any time: the next one reads the
//! records and reconnects to the shims. Streams of clients do not pass these layers:
//! `stream_server` accepts their connections, and the runtime connects them to processes and ports.
//!
//! `config_watch` reloads the settings when their file changes.
//!
//! Limits: the RPCs that return UNIMPLEMENTED are listed in `grpc`.
#![forbid(unsafe_code)]

pub(crate) mod config_watch;
pub mod convert;
pub(crate) mod failpoint;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod grpc;
pub(crate) mod images;
pub(crate) mod log_names;
pub mod logging;
pub(crate) mod metrics;
pub mod otel;
pub(crate) mod peer;
pub(crate) mod runtime;
pub(crate) mod sandbox;
pub(crate) mod sandbox_client;
pub mod serve;
pub mod shim;
pub(crate) mod socket;
pub mod store;
pub(crate) mod stream_server;
pub(crate) mod watchdog;
