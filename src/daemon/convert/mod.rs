//! Between the wire and the model: the only place, with `grpc`, that knows wire types.
//!
//! Inwards every message is taken apart field by field, without `..`, so that a field added to the wire does not
//! compile until someone decides about it. A field is honoured (it is in the model), refused with a `InvalidField` that
//! gives its full path, or, where CRI lets a runtime ignore it, noted as a warning that the handler logs:
//!
//! - `sandbox_config` of CreateContainer: checked, and its metadata compared; it tells whether the pod is privileged by now. The
//!   rest, `pod_resources` too, was said when the pod was made, and does not change it
//! - `image.image_ref`, set by runtimes only: ignored
//! - `sandbox_config` of PullImage: its metadata names the pod in the log; the rest has no effect, as images are the same for
//!   all pods
//! - `annotations` and `user_specified_image` of an image: kept with a container; they say nothing about which image it is
//!
//! Refused as not supported yet: environment values that are not UTF-8. All Windows sections are refused as invalid.

pub mod admin;
pub(crate) mod bandwidth;
pub(crate) mod container;
pub(crate) mod event;
pub(crate) mod field_path;
pub(crate) mod filter;
pub mod image;
pub(crate) mod metrics;
pub(crate) mod mount;
pub(crate) mod pod;
pub mod pod_resources;
pub(crate) mod request_field;
pub(crate) mod resources;
pub(crate) mod security;
pub(crate) mod signal;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod stream;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use field_path::{FieldPath, InvalidField};

/// Wishes that were understood but are not fulfilled, for the log.
pub(crate) type Warnings = Vec<String>;
