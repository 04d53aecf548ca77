//! The OCI configuration (`config.json`) of a container: a pure function of the request, the image and the pod.
//!
//! The configuration is complete, as hooks and people expect it. The shim decides which parts libcontainer gets and
//! which parts crisp applies itself. [`cdi`] resolves CDI devices. No async code, no wire types.
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
    #[error("config.command: neither the container nor its image {image} says what to run")]
    NoCommand { image: String },
    #[error("config.linux.security_context.capabilities: there is no capability {0:?}")]
    UnknownCapability(String),
    #[error("config.linux.security_context.capabilities.add_ambient_capabilities: the container has no {0}")]
    AmbientAlone(String),
    #[error("config.linux.security_context.namespace_options.{0}: the host's was asked for, but the pod has its own")]
    NotThePods(&'static str),
    #[error("config.linux.security_context.namespace_options.userns_options: not those of the pod")]
    NotThePodsIds,
    #[error("config.linux.security_context.namespace_options.pid: a user namespace cannot have the host's")]
    HostPids,
    #[error("{field}: {id} is no id in the pod's user namespace")]
    NoSuchId { field: &'static str, id: u32 },
    #[error("config.mounts[{0}].propagation: nothing that is mounted in a user namespace may reach the host")]
    Bidirectional(usize),
    #[error("config.CDI_devices: mount at {0}: nothing that is mounted in a user namespace may reach the host")]
    CdiShared(PathBuf),
    #[error("config.linux.security_context.namespace_options.target_id: there is no such container")]
    NoTarget,
    #[error("config.mounts: container_path: nothing may be mounted over {0}")]
    MountOver(String),
    #[error("the image's working directory {0:?} is not absolute")]
    WorkingDir(String),
    #[error("building the OCI configuration")]
    Build(#[from] OciSpecError),
    #[error("writing down what was announced of the pod")]
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

/// Everything that decides a configuration.
#[derive(Debug)]
pub struct SpecInputs<'a> {
    pub handler: &'a Handler,
    pub pod: &'a PodSpec,
    pub hostname: &'a str,
    pub held: &'a Sandbox,
    /// The directory of the files that all containers of the pod have in `/etc`.
    pub pod_files: &'a Path,
    pub container: &'a ContainerSpec,
    pub image: &'a image::Config,
    pub user: &'a image::User,
    /// All groups beside the primary one.
    pub groups: &'a [u32],
    pub cgroup: &'a str,
    pub cgroups: Version,
    /// Mount sources, in the order of the container's mounts: a path on the host, or an image's id and a path in it.
    pub sources: &'a [PathBuf],
    /// What the image declares; none of them where a mount of the container's or one of ours is.
    pub volumes: &'a [image::Volume],
    pub devices: &'a [LinuxDevice],
    /// What CDI devices change; their nodes are among `devices`, their groups among `groups`.
    pub edits: &'a Edits,
    /// The first process of the container whose PID namespace is to be joined.
    pub target: Option<u32>,
    /// The AppArmor profile to run under.
    pub apparmor: Option<&'a str>,
    pub selinux: Option<&'a Labels>,
}

/// The capabilities a container has, by name, for whoever has to decide by them.
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

/// Network, IPC and UTS are the pod's, whatever those are; the PID namespace is as the container asks.
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
        // A pod that shares none gives each container its own; that is also what a client that is silent asks for.
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
