//! Transfers of blobs from a registry into the store.

pub(crate) mod download;
pub(crate) mod pipe;
pub(crate) mod places;
pub(crate) mod resumable_download;
