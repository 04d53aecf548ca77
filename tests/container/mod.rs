//! Containers: lifecycle, exec, logs, mounts, namespaces, privileges, cgroups.

mod cgroups;
mod declared_volumes;
mod exec;
mod image_config;
pub(crate) mod image_volumes;
mod libcontainer_gaps;
mod lifecycle;
mod logs;
mod mount_options;
mod mounts;
mod namespaces;
pub(crate) mod privileges;
mod stop;
