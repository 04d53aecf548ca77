//! End-to-end tests: a running daemon as a kubelet uses it, on the kernel of this machine.
//!
//! [`support`] starts `crisp serve` in directories and cgroups of its own and removes them, has clients and images, and
//! reads the kernel's state: whether something is gone is read from the kernel, never from crisp. A daemon must leave
//! nothing behind when its test ends, so every test checks that too.
//!
//! `CRISP_BIN_DIR` is the directory with `crisp`, `crisp-shim` and `dra-driver`, built with failpoints.
//! `CRISP_TEST_SLOW` multiplies every deadline and reduces the rounds of repeated tests.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod apparmor;
mod attacks;
mod bench;
mod cdi;
mod cli;
mod container;
mod daemon;
mod docs;
mod dra;
mod examples;
mod images;
mod network;
mod recovery;
mod resize;
mod selinux;
mod stats;
mod stream;
mod support;
mod systemd;
mod update;
mod userns;
