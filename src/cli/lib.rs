//! What an operator does, beside `crisp serve`.
//!
//! - `image`: a store that a daemon has open is worked on through that daemon, over its socket; a store that nobody has open is
//!   opened here. Both ways do the same: `remote` calls the daemon, `local` opens the store.
//! - [`check`](fn@check): what this host can do; with `--live`, whether a daemon does all of it.
//! - [`explain`](fn@explain): asked, applied and actual side by side.
//! - [`resize`](fn@resize): several containers and their pod at once, in the right order, or not at all.
//! - [`demo`](fn@demo): a pod that is resized while it runs.
//!
//! What is asked for goes to stdout, everything else to stderr. Pods are looked at and changed over the daemon's socket; the
//! kernel's files are read here, so that what is shown is not the daemon's word alone.
#![forbid(unsafe_code)]

mod cgroup_files;
mod check;
mod client;
mod color;
mod common_args;
mod completions;
mod demo;
mod explain;
mod image;
mod progress_bar;
mod resize;
mod selftest;
mod signals;
mod target;
mod units;
mod verbose_info;

pub use check::{CheckArgs, CheckError, check};
pub use common_args::CommonArgs;
pub use completions::{CompletionsArgs, ManArgs, completions, man};
pub use demo::{DemoArgs, DemoError, WorkloadArgs, demo, run_workload};
pub use explain::{ExplainArgs, ExplainError, explain};
pub use image::{ImageArgs, ImageError, image};
pub use resize::{ResizeArgs, ResizeError, resize};
pub use selftest::{SelftestCleanupArgs, selftest_cleanup};
