//! Shared by the tests: a daemon with its environment, clients, images, a registry, and the
//! kernel's objects.

pub(crate) mod cgroup_fixture;
pub(crate) mod client;
pub(crate) mod env;
pub(crate) mod harness;
pub(crate) mod image_fixture;
pub(crate) mod kernel_state;
pub(crate) mod layer_fixture;
pub(crate) mod netns;
pub(crate) mod otlp_collector;
pub(crate) mod registry_fixture;
pub(crate) mod registry_proxy;
mod snapshot;
mod store_fixture;
