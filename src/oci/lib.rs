//! Builds the OCI configuration (`config.json`) of a container from the request, the image and the pod.
//!
//! The configuration is complete, as hooks and administrators expect. The shim decides which parts
//! are passed to libcontainer and which parts crisp applies itself. [`cdi`] resolves CDI devices.
//! No async code, no wire types.
#![forbid(unsafe_code)]

mod capabilities;
pub mod cdi;
mod id_mapping;
mod mounts;
pub mod pod_resources_json;
mod process;

#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use cgroup::Version;
use config::Handler;
use model::{ContainerSpec, ErrorClass, ErrorKind, NsMode, PodSpec};
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxBuilder, LinuxDevice, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, RootBuilder, Spec,
    SpecBuilder,
};
use security::Labels;
use shim_protocol::Sandbox;

use crate::cdi::Edits;

#[derive(Debug, thiserror::Error)]
pub enum OciError {
    #[error("config.command: neither the container nor its image {image} has a command")]
    NoCommand { image: String },
    #[error("config.linux.security_context.capabilities: unknown capability {0:?}")]
    UnknownCapability(String),
    #[error("config.linux.security_context.capabilities.add_ambient_capabilities: the container does not have {0}")]
    AmbientAlone(String),
    #[error("config.linux.security_context.namespace_options.{0}: must not be NODE: the pod has its own namespace")]
    NotThePods(&'static str),
    #[error("config.linux.security_context.namespace_options.userns_options: must equal those of the pod")]
    NotThePodsIds,
    #[error("config.linux.security_context.namespace_options.pid: must not be NODE in a pod with a user namespace")]
    HostPids,
    #[error("{field}: {id} is not mapped in the pod's user namespace")]
    NoSuchId { field: &'static str, id: u32 },
    #[error(
        "config.mounts[{0}].propagation: bidirectional mount propagation is not allowed in pods with a user namespace"
    )]
    Bidirectional(usize),
    #[error("config.CDI_devices: mount at {0}: shared propagation is not allowed in pods with a user namespace")]
    CdiShared(PathBuf),
    #[error("config.linux.security_context.namespace_options.target_id: container not found")]
    NoTarget,
    #[error("config.mounts: container_path: mounts over {0} are not allowed")]
    MountOver(String),
    #[error("the image's working directory {0:?} must be an absolute path")]
    WorkingDir(String),
    #[error("building the OCI configuration")]
    Build(#[from] OciSpecError),
    #[error("serializing the declared pod resources")]
    Announced(#[from] serde_json::Error),
}

impl ErrorClass for OciError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoCommand { .. }
            | Self::UnknownCapability(_)
            | Self::AmbientAlone(_)
            | Self::WorkingDir(_)
            | Self::MountOver(_) => ErrorKind::Invalid,
            Self::NotThePods(_)
            | Self::NotThePodsIds
            | Self::HostPids
            | Self::NoSuchId { .. }
            | Self::Bidirectional(_)
            | Self::CdiShared(_) => ErrorKind::Invalid,
            Self::NoTarget => ErrorKind::Precondition,
            Self::Build(_) | Self::Announced(_) => ErrorKind::Internal,
        }
    }
}

/// The inputs of a configuration.
#[derive(Debug)]
pub struct SpecInputs<'a> {
    pub handler: &'a Handler,
    pub pod: &'a PodSpec,
    pub hostname: &'a str,
    pub held: &'a Sandbox,
    /// The directory with the pod's files that are mounted in each container's `/etc`.
    pub pod_files: &'a Path,
    pub container: &'a ContainerSpec,
    pub image: &'a image::Config,
    pub user: &'a image::User,
    /// All supplementary groups.
    pub groups: &'a [u32],
    pub cgroup: &'a str,
    pub cgroups: Version,
    /// Mount sources, in the order of the container's mounts: a path on the host, or an image's id and a path in it.
    pub sources: &'a [PathBuf],
    /// Volumes declared by the image, without those at the path of another mount.
    pub volumes: &'a [image::Volume],
    pub devices: &'a [LinuxDevice],
    /// Edits of CDI devices; `devices` already has their nodes, and `groups` their groups.
    pub edits: &'a Edits,
    /// The first process of the container whose PID namespace this container joins.
    pub target: Option<u32>,
    /// The AppArmor profile of the container's processes.
    pub apparmor: Option<&'a str>,
    pub selinux: Option<&'a Labels>,
}

/// Returns the capabilities of a container by name, for decisions of other crates.
pub use capabilities::effective as capabilities_of;

pub fn build(given: &SpecInputs<'_>) -> Result<Spec, OciError> {
    let security = &given.container.security;
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces(given)?)
        .cgroups_path(given.cgroup)
        .devices(given.devices.to_vec())
        .masked_paths(if security.privileged { Vec::new() } else { security.masked_paths.clone() })
        .readonly_paths(if security.privileged { Vec::new() } else { security.readonly_paths.clone() })
        .build()?;
    linux.set_resources(None);
    linux.set_mount_label(given.selinux.map(|labels| labels.mount.clone()));
    if let Some(ids) = id_mapping::of(given)? {
        linux
            .set_uid_mappings(Some(id_mapping::lines(&ids.uids)?))
            .set_gid_mappings(Some(id_mapping::lines(&ids.gids)?));
    }
    let mut spec = SpecBuilder::default()
        .version("1.2.0")
        .root(RootBuilder::default().path("rootfs").readonly(security.readonly_rootfs).build()?)
        .process(process::process(given)?)
        .mounts(mounts::mounts(given)?)
        .hostname(given.hostname)
        .linux(linux)
        .build()?;
    spec.set_hooks(given.edits.hooks.clone());
    let mut annotations = given.container.annotations.clone().into_iter().collect();
    let of_container = given.container.kubernetes_resources.as_ref();
    pod_resources_json::add_annotations(&mut annotations, given.pod.pod_resources.as_ref(), of_container)?;
    spec.set_annotations(Some(annotations));
    Ok(spec)
}

/// Returns the namespaces: network, IPC and UTS are those of the pod, the PID namespace is as the
/// container requests.
fn namespaces(given: &SpecInputs<'_>) -> Result<Vec<LinuxNamespace>, OciError> {
    let asked = &given.container.security.namespaces;
    let mut all = vec![namespace(LinuxNamespaceType::Mount, None)?];
    if let Some(path) = &given.held.user {
        all.push(namespace(LinuxNamespaceType::User, Some(path))?);
    }
    for (kind, name, mode, held) in [
        (LinuxNamespaceType::Network, "network", asked.network, &given.held.network),
        (LinuxNamespaceType::Ipc, "ipc", asked.ipc, &given.held.ipc),
        (LinuxNamespaceType::Uts, "uts", NsMode::Pod, &given.held.uts),
    ] {
        match (mode, held) {
            (NsMode::Node, Some(_)) => return Err(OciError::NotThePods(name)),
            (_, Some(path)) => all.push(namespace(kind, Some(path))?),
            (_, None) => {}
        }
    }
    match asked.pid {
        NsMode::Container => all.push(namespace(LinuxNamespaceType::Pid, None)?),
        NsMode::Node => {}
        // POD is also the default of CRI, so in a pod without a shared PID namespace it means CONTAINER.
        NsMode::Pod => match (&given.held.pid, given.pod.security.namespaces.pid) {
            (Some(path), _) => all.push(namespace(LinuxNamespaceType::Pid, Some(path))?),
            (None, NsMode::Node) => {}
            (None, NsMode::Pod | NsMode::Container | NsMode::Target) => {
                all.push(namespace(LinuxNamespaceType::Pid, None)?);
            }
        },
        NsMode::Target => {
            let pid = given.target.ok_or(OciError::NoTarget)?;
            all.push(namespace(LinuxNamespaceType::Pid, Some(Path::new(&format!("/proc/{pid}/ns/pid"))))?);
        }
    }
    if given.cgroups == Version::V2 {
        all.push(namespace(LinuxNamespaceType::Cgroup, None)?);
    }
    Ok(all)
}

fn namespace(kind: LinuxNamespaceType, path: Option<&Path>) -> Result<LinuxNamespace, OciSpecError> {
    let builder = LinuxNamespaceBuilder::default().typ(kind);
    match path {
        Some(path) => builder.path(path).build(),
        None => builder.build(),
    }
}
