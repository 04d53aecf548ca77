//! Looking into an image: its accounts, its files, copies of a part of it.

pub(crate) mod accounts;
pub(crate) mod copy;
pub(crate) mod overlay;
pub(crate) mod user;
pub(crate) mod volume;
