//! Converts a layer's tar stream to files, and these to the same stream again.

pub(crate) mod confined_root;
pub(crate) mod cross_layer;
pub(crate) mod decompress;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(feature = "fuzzing"), expect(unreachable_pub, reason = "public for the fuzzer alone"))]
pub(crate) mod escape_canary;
pub(crate) mod free_space;
pub(crate) mod hard_link;
pub(crate) mod layer_dir;
pub(crate) mod merged_layers;
pub(crate) mod metadata;
pub(crate) mod replaced_files;
pub(crate) mod staged_layer;
pub(crate) mod unpack;
pub(crate) mod untar;
mod verify;
pub(crate) mod whiteout;
