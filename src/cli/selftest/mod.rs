//! The test pod of `crisp check --live` and `crisp demo`. Its image is built from this program and needs no registry.
//!
//! [`Selftest`] has the steps of the pod's life. Pod, image and log directory are labelled with the
//! run ID, which names the process that created them: so a later selftest can find and remove the
//! objects of a killed one. A watcher process (`crisp selftest-cleanup`) removes them as soon as
//! the selftest is killed.

mod cleanup;
mod elf;
mod image;
mod lifecycle;
mod run_id;
mod steps;

pub use cleanup::{SelftestCleanupArgs, selftest_cleanup};
pub(super) use lifecycle::{PodSize, Selftest, SelftestContainer, SelftestError, SelftestPod, observed};
pub(super) use steps::{Failed, Record, Steps};
