//! Images as files: archives and layouts, in and out.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod progress;
pub(crate) mod reader;
