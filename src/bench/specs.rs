//! Configuration of the benchmark's pods and containers, as a kubelet sends it.

use cri_api::v1;

use super::processes::PROGRAM;

const MIB: i64 = 1 << 20;

/// Common settings of all pods of a runtime.
#[derive(Debug, Clone)]
pub(super) struct Specs {
    /// Part of the pod names, since two sockets may belong to the same runtime.
    pub(super) number: usize,
    pub(super) image: String,
    pub(super) cgroup_parent: String,
    pub(super) host_network: bool,
}

impl Specs {
    fn namespaces(&self) -> v1::NamespaceOption {
        let network = if self.host_network { v1::NamespaceMode::Node } else { v1::NamespaceMode::Pod };
        v1::NamespaceOption { network: network.into(), pid: v1::NamespaceMode::Container.into(), ..Default::default() }
    }

    pub(super) fn pod(&self, name: &str) -> v1::PodSandboxConfig {
        let name = format!("bench-{}-{}-{name}", std::process::id(), self.number);
        let security =
            v1::LinuxSandboxSecurityContext { namespace_options: Some(self.namespaces()), ..Default::default() };
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                uid: name.clone(),
                name,
                namespace: "bench".to_owned(),
                attempt: 0,
            }),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup_parent.clone(),
                security_context: Some(security),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// Returns a container that only sleeps, with typical limits.
    pub(super) fn idle(&self, name: &str) -> v1::ContainerConfig {
        let mut config = self.unlimited(name, &PROGRAM);
        if let Some(linux) = config.linux.as_mut() {
            linux.resources = Some(limits(200, 64));
        }
        config
    }

    /// Returns a container without limits.
    pub(super) fn unlimited(&self, name: &str, command: &[&str]) -> v1::ContainerConfig {
        let security =
            v1::LinuxContainerSecurityContext { namespace_options: Some(self.namespaces()), ..Default::default() };
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(image_spec(&self.image)),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            linux: Some(v1::LinuxContainerConfig { resources: None, security_context: Some(security) }),
            ..Default::default()
        }
    }
}

/// Returns the image as the kubelet names it: also as the pod's manifest does.
pub(super) fn image_spec(image: &str) -> v1::ImageSpec {
    let image = image.to_owned();
    v1::ImageSpec { user_specified_image: image.clone(), image, ..Default::default() }
}

/// Returns the complete set of limits that the kubelet sends with each update.
pub(super) fn limits(millis: i64, mib: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: millis * 100,
        cpu_shares: millis * 1024 / 1000,
        memory_limit_in_bytes: mib * MIB,
        ..Default::default()
    }
}

pub(super) fn update(id: &str, limits: v1::LinuxContainerResources) -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest { container_id: id.to_owned(), linux: Some(limits), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_name_of_the_manifest_too() {
        let shape = Specs { number: 0, image: "a/b:1".into(), cgroup_parent: "/x".into(), host_network: false };
        let spec = shape.idle("main").image.unwrap();
        assert_eq!((spec.image.as_str(), spec.user_specified_image.as_str()), ("a/b:1", "a/b:1"));
    }
}
