//! Looking into an image: its accounts, its files, copies of a part of it.

pub(crate) mod copy_up;
pub(crate) mod passwd;
pub(crate) mod read_files;
pub(crate) mod user;
pub(crate) mod volume;
