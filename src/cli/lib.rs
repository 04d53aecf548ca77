//! The commands of `crisp` for operators, except `crisp serve`.
//!
//! - [`image`](fn@image): manages images. If a daemon has the store open, `remote` calls the daemon; otherwise `local`
//!   opens the store. Both have the same effect.
//! - [`check`](fn@check): checks this host; with `--live`, runs a test pod through a daemon.
//! - [`explain`](fn@explain): shows requested, applied and actual limits side by side.
//! - [`history`](fn@history): lists the resizes of pods and containers.
//! - [`resize`](fn@resize): resizes several containers and their pod in order; rolls back if a step fails.
//! - [`demo`](fn@demo): resizes a running pod.
//!
//! Results go to stdout, everything else to stderr; a closed pipe is not an error (`output`). Pods
//! are read and changed over the daemon's socket. cgroup files are read directly, so that the output
//! does not depend on the daemon alone.
#![forbid(unsafe_code)]

mod cgroup_files;
mod check;
mod client;
mod color;
mod command;
mod common_args;
mod completions;
mod demo;
mod effective_limits;
mod explain;
mod history;
mod image;
mod output;
mod progress_bar;
mod resize;
mod selftest;
mod settings;
mod signals;
mod target;
mod units;
mod verbose_info;

pub use check::{CheckArgs, CheckError, check};
pub use command::CommandError;
pub use common_args::CommonArgs;
pub use completions::{CompletionsArgs, ManArgs, ManError, completions, man};
pub use demo::{DemoArgs, DemoError, WorkloadArgs, demo, run_workload};
pub use explain::{ExplainArgs, explain};
pub use history::{HistoryArgs, history};
pub use image::{ImageArgs, ImageError, image};
pub use output::{Output, stdout};
pub use resize::{ResizeArgs, ResizeError, resize};
pub use selftest::{SelftestCleanupArgs, selftest_cleanup};
pub use settings::{ConfigArgs, VersionArgs, config, version};
