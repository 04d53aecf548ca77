//! Mounts. The launcher prepares them on the host as detached mounts; the container's first process
//! attaches them inside its root, and finds each target by descriptor.

pub(crate) mod device_nodes;
pub(crate) mod idmap;
pub(crate) mod image_mount;
pub(crate) mod locked_mounts;
pub mod lowerdirs;
pub(crate) mod masked_paths;
mod mount_options;
pub(crate) mod mount_propagation;
pub(crate) mod mount_target;
pub(crate) mod mounts;
