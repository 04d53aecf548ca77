//! How a layer's tar stream becomes files, and those the same stream again.

pub(crate) mod adopt;
pub(crate) mod archive;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(feature = "fuzzing"), expect(unreachable_pub, reason = "public for the fuzzer alone"))]
pub(crate) mod canary;
pub(crate) mod decompress;
pub(crate) mod entry;
pub(crate) mod header;
pub(crate) mod link;
pub(crate) mod looks;
pub(crate) mod lost;
pub(crate) mod pax;
pub(crate) mod replay;
pub(crate) mod root;
pub(crate) mod site;
pub(crate) mod sparse;
pub(crate) mod stack;
pub(crate) mod staged;
pub(crate) mod tape;
pub(crate) mod unpack;
pub(crate) mod untar;
pub(crate) mod whiteout;
