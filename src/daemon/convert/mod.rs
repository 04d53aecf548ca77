//! Converts between wire types and the model: with `grpc` the only place that uses wire types.
//!
//! Every message of a request is destructured without `..`, so that a new field does not compile
//! until it is handled. A field is stored in the model, refused with an `InvalidField` that has
//! its path, or, where CRI allows a runtime to ignore it, reported as a warning that the handler
//! logs:
//!
//! - `sandbox_config` of CreateContainer: checked; only its metadata and `privileged` are used. The
//!   rest, also `pod_resources`, was set by RunPodSandbox and does not change the pod
//! - `image.image_ref`, set by runtimes only: ignored
//! - `sandbox_config` of PullImage: its metadata names the pod in the log; the rest has no effect,
//!   because images are shared by all pods
//! - `annotations` and `user_specified_image` of an image: stored with a container; they do not
//!   select the image
//!
//! Environment values that are not UTF-8 are refused as unsupported, all Windows sections as
//! invalid.

pub mod admin;
pub(crate) mod bandwidth;
pub(crate) mod container;
pub(crate) mod event;
pub(crate) mod field_path;
pub(crate) mod filter;
pub(crate) mod history;
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

/// Fields that are understood but ignored, for the log.
pub(crate) type Warnings = Vec<String>;
