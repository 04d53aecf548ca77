//! Import and export of images as archives and OCI layouts.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod progress;
pub(crate) mod reader;
