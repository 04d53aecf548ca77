//! Access to the content of an image: accounts, files, copies of a part of it.

pub(crate) mod copy_up;
pub(crate) mod passwd;
pub(crate) mod read_files;
pub(crate) mod user;
pub(crate) mod volume;
