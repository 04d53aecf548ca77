//! A running daemon as a kubelet sees it, on the kernel of this machine.
//!
//! [`harness`] starts `crisp serve` in directories and cgroups of its own ([`ground`]) and clears all of it away, [`client`]
//! talks to it, [`image`] makes what its containers run, and [`kernel`] says what is really there: whether something
//! is gone is asked of the kernel, never of crisp. A daemon that a test is done with must leave nothing behind, so every
//! test is a test of that too.
//!
//! `CRISP_BIN_DIR` names the directory with `crisp` and `crisp-shim`, built with failpoints. `CRISP_TEST_SLOW` multiplies
//! every deadline and scales down what is only long.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod ground;
mod harness;
mod image;
mod kernel;
mod layer;
mod proxy;
mod registry;
mod shelf;
mod snapshot;

mod broken_transfers;
mod cgroups;
mod daemon;
mod declared_volumes;
mod disk_full;
mod examples;
mod exec;
mod failpoints;
mod failures;
mod hostile_documents;
mod hostile_images;
mod image_cli;
mod image_config;
mod image_formats;
mod image_service;
mod image_volumes;
mod images;
mod leak;
mod libcontainer_gaps;
mod lifecycle;
mod lists;
mod live_settings;
mod logs;
mod mirrors;
mod mounts;
mod namespaces;
mod pull_crash;
mod recover;
mod registries;
mod requests;
mod rights;
mod shared_pulls;
mod shims;
mod stop;
mod tls;
mod tokens;
