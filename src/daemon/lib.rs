//! The daemon: a container runtime behind the two services of CRI.
//!
//! ```text
//! grpc → convert → runtime → { image, net, cgroup, store, shim, cdi, oci, seccomp, lsm } → sys, link → model
//! ```
//!
//! A request comes in through [`serve`], gets a span in `grpc`, is taken apart and checked in `convert`, which turns
//! wire messages into specs, and reaches a verb of `runtime`. Records of pods and containers are in `store`; what
//! runs is held by one shim for each pod, so that this process may end at any moment: the next one reads the records,
//! finds the shims and goes on. What clients stream goes past all that: `streaming` takes their connections, and the runtime
//! joins them with processes and ports.
//!
//! [`config`] is read again when it changes, as far as that can be in force at once. [`cli`] has what an
//! operator does beside the daemon.
//!
//! Limits: the calls that answer UNIMPLEMENTED are those of `grpc` that say so.
#![forbid(unsafe_code)]

pub(crate) mod config_watch;
pub mod convert;
pub(crate) mod failpoint;
pub mod grpc;
pub mod logging;
pub(crate) mod metrics;
pub mod otel;
pub(crate) mod runtime;
pub(crate) mod sandbox;
pub mod serve;
pub mod shim;
pub(crate) mod socket;
pub mod store;
pub(crate) mod stream_server;
pub(crate) mod watchdog;
