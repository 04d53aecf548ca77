//! The daemon: a container runtime behind the two services of CRI.
//!
//! ```text
//! grpc → convert → runtime → sandbox → shim → shim-protocol
//!                    └──▶ store, image, net, cgroup, oci, security → safe-fs, sync, sys, model
//! ```
//!
//! A request comes in through [`serve`], gets a span in `grpc`, is taken apart and checked in `convert`, which turns
//! wire messages into specs, and reaches a verb of `runtime`. Records of pods and containers are in `store`; what
//! runs is held by one shim for each pod, so that this process may end at any moment: the next one reads the records,
//! finds the shims and goes on. What clients stream goes past all that: `stream_server` takes their connections, and the runtime
//! joins them with processes and ports.
//!
//! `config_watch` reads the settings again when their file changes.
//!
//! Limits: the calls that answer UNIMPLEMENTED are those of `grpc` that say so.
#![forbid(unsafe_code)]

pub(crate) mod config_watch;
pub mod convert;
pub(crate) mod failpoint;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod grpc;
pub(crate) mod images;
pub mod logging;
pub(crate) mod metrics;
pub mod otel;
pub(crate) mod runtime;
pub(crate) mod sandbox;
pub(crate) mod sandbox_client;
pub mod serve;
pub mod shim;
pub(crate) mod socket;
pub mod store;
pub(crate) mod stream_server;
pub(crate) mod watchdog;
