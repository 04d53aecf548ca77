//! Pods with user namespaces: their processes ([`processes`]), the owners of their files
//! ([`files`], [`volumes`]), their keys ([`keys`]), invalid requests and hosts ([`refusals`]), and
//! crashes ([`crash`]).

mod crash;
mod files;
mod keys;
mod processes;
mod refusals;
mod volumes;

use cri_api::v1;

use crate::support::client::{IDLE, Pod, container, namespaces, pod_namespaces, security};
use crate::support::harness::Daemon;

/// The host's id of root, as the kubelet requests it for the first pod of a node.
pub(crate) const FIRST: u32 = 65536;

fn line(container_id: u32, host_id: u32, length: u32) -> v1::IdMapping {
    v1::IdMapping { host_id, container_id, length }
}

fn ids() -> Vec<v1::IdMapping> {
    vec![line(0, FIRST, 65536)]
}

fn mapped(ids: Vec<v1::IdMapping>) -> v1::UserNamespace {
    v1::UserNamespace { mode: v1::NamespaceMode::Pod.into(), uids: ids.clone(), gids: ids }
}

/// Creates a pod with a user namespace from a changed request.
pub(crate) fn run_pod_with(daemon: &Daemon, name: &str, change: impl FnOnce(&mut v1::PodSandboxConfig)) -> Pod {
    daemon.run_pod_with(name, |config| {
        pod_namespaces(config).userns_options = Some(mapped(ids()));
        change(config);
    })
}

pub(crate) fn run_pod(daemon: &Daemon, name: &str) -> Pod {
    run_pod_with(daemon, name, |_| ())
}

/// A container for such a pod.
fn inside(name: &str, command: &[&str]) -> v1::ContainerConfig {
    let mut config = container(name, command);
    let spaces = namespaces(v1::NamespaceMode::Container);
    security(&mut config).namespace_options =
        Some(v1::NamespaceOption { userns_options: Some(mapped(ids())), ..spaces });
    config
}

pub(crate) fn script(name: &str, script: &str) -> v1::ContainerConfig {
    inside(name, &["sh", "-c", script])
}

pub(crate) fn idle(name: &str) -> v1::ContainerConfig {
    inside(name, &IDLE)
}

fn as_user(mut config: v1::ContainerConfig, user: i64) -> v1::ContainerConfig {
    security(&mut config).run_as_user = Some(v1::Int64Value { value: user });
    config
}

fn able(mut config: v1::ContainerConfig, capability: &str) -> v1::ContainerConfig {
    let add_capabilities = vec![capability.to_owned()];
    security(&mut config).capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
    config
}
