//! Tar streams: a reader with limited memory, a writer, and tar-split.
//!
//! [`tar_split`] records everything of a tar stream except the contents of files; [`tar_assemble`]
//! combines it with an unpacked layer to the same stream, so that an exported layer has its
//! original digest.

pub(crate) mod entry;
pub(crate) mod header;
pub(crate) mod pax;
pub(crate) mod reader;
pub(crate) mod sparse;
pub(crate) mod tar_assemble;
pub(crate) mod tar_split;
pub(crate) mod writer;
