//! Crashes, failures and full disks: nothing is lost, nothing is left behind.

pub(crate) mod failpoints;
mod failures;
mod frozen_disk;
mod full_disk;
mod leak;
mod no_threads;
mod records;
mod recover;
mod shims;
