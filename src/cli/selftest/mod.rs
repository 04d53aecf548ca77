//! A pod to try crisp with: made of this very program, so that it needs no registry, and gone afterwards whatever happens.
//!
//! [`Selftest`] has the steps of its life. All that it makes carries the name of its run, which names the process that began it:
//! so whoever comes after a process that was killed can tell what is nobody's any more. Beside each trial runs a process that
//! clears away when the trial's own is gone before its time ([`selftest-cleanup`]).

mod cleanup;
mod elf;
mod image;
mod lifecycle;
mod run_id;
mod steps;

pub use cleanup::{SelftestCleanupArgs, selftest_cleanup};
pub(super) use lifecycle::{PodSize, Selftest, SelftestContainer, SelftestError, SelftestPod, observed};
pub(super) use steps::{Failed, Record, Steps};
