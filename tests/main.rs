//! A running daemon as a kubelet sees it, on the kernel of this machine.
//!
//! [`harness`] starts `crisp serve` in directories and cgroups of its own ([`ground`]) and clears all of it away, [`client`]
//! talks to it, [`image`] makes what its containers run, and [`kernel`] says what is really there: whether something
//! is gone is asked of the kernel, never of crisp. A daemon that a test is done with must leave nothing behind, so every
//! test is a test of that too.
//!
//! `CRISP_BIN_DIR` names the directory with `crisp`, `crisp-shim` and `dra-driver`, built with failpoints. `CRISP_TEST_SLOW` multiplies
//! every deadline and scales down what is only long.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod collector;
mod ground;
mod harness;
mod host;
mod image;
mod kernel;
mod layer;
mod proxy;
mod registry;
mod shelf;
mod snapshot;
mod tree;

mod announced;
mod apparmor;
mod attacks;
mod authority;
mod bench;
mod cdi;
mod cgroups;
mod daemon;
mod declared_volumes;
mod dra;
mod events;
mod examples;
mod exec;
mod failpoints;
mod failures;
mod full_disk;
mod handlers;
mod health;
mod image_config;
mod image_volumes;
mod images;
mod leak;
mod libcontainer_gaps;
mod lifecycle;
mod lists;
mod logs;
mod metrics;
mod mount_options;
mod mounts;
mod namespaces;
mod network;
mod operator;
mod recover;
mod reload;
mod requests;
mod resize;
mod rights;
mod secrets;
mod selinux;
mod shims;
mod soak;
mod spans;
mod stats;
mod stop;
mod stream;
mod systemd;
mod update;
mod userns;
