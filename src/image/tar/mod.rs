//! Tar streams: a reader with bounded memory, a writer, and tar-split.
//!
//! [`tar_split`] records everything of a tar stream but the contents of files; [`tar_assemble`] joins it with an unpacked
//! layer into the same stream again, so that an exported layer has the digest it came with.

pub(crate) mod entry;
pub(crate) mod header;
pub(crate) mod pax;
pub(crate) mod reader;
pub(crate) mod sparse;
pub(crate) mod tar_assemble;
pub(crate) mod tar_split;
pub(crate) mod writer;
