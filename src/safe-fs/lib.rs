//! File operations for state directories and for trees that containers control.
//!
//! [`atomic_write`] replaces small files atomically, [`dir`] creates and lists directories,
//! [`file_stamp`] detects changed files, [`log_file`] opens the logs of containers,
//! [`process_lock`] locks a directory for one process. [`remove_tree`] and [`tree_walk`] handle
//! trees of any depth that a container may change at the same time: they never recurse and never
//! follow a symbolic link.
#![forbid(unsafe_code)]

pub mod atomic_write;
pub mod dir;
mod error;
pub mod file_stamp;
pub mod log_file;
pub mod process_lock;
pub mod remove_tree;
pub mod tree_walk;

pub use atomic_write::{
    overwrite_json, read_json, sync_dir, write, write_durable, write_json, write_readable_json, write_shared_json,
};
pub use dir::{chown, list_names, private_dir, public_dir, remove_dir, remove_file};
pub use error::{FileError, at, io_kind};
pub use file_stamp::FileStamp;
