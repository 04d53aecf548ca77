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
mod golden;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use cgroup::Version;
use config::Handler;
use model::{ContainerSpec, ErrorClass, ErrorKind, NsMode, PodSpec, RequestField};
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
    #[error("neither the container nor its image {image} has a command")]
    NoCommand { image: String },
    #[error("unknown capability {0:?} in the request: expected a name such as NET_ADMIN")]
    UnknownCapability(String),
    #[error("the container does not have {0}: an ambient capability must also be in add_capabilities")]
    AmbientAlone(String),
    #[error("the container's namespace mode must not be NODE: the pod has its own namespace of this type")]
    NotThePods(RequestField),
    #[error("the container's user namespace mappings must equal those of the pod")]
    NotThePodsIds,
    #[error("the PID namespace must not be NODE in a pod with a user namespace")]
    HostPids,
    #[error("user or group ID {id} is not mapped in the pod's user namespace")]
    NoSuchId { field: RequestField, id: u32 },
    #[error("user or group ID {0} of the image is not mapped in the pod's user namespace")]
    NoSuchImageId(u32),
    #[error("bidirectional mount propagation is not allowed in pods with a user namespace")]
    Bidirectional(usize),
    #[error("CDI mount at {0}: shared propagation is not allowed in pods with a user namespace")]
    CdiShared(PathBuf),
    #[error("the target container of the PID namespace not found in the pod")]
    NoTarget,
    #[error("container_path: mounts over {0} are not allowed")]
    MountOver(String),
    #[error("the image's working directory {0:?} must be an absolute path")]
    WorkingDir(String),
    #[error("building the config.json of the container to create")]
    Build(#[from] OciSpecError),
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
            | Self::NoSuchImageId(_)
            | Self::Bidirectional(_)
            | Self::CdiShared(_) => ErrorKind::Invalid,
            Self::NoTarget => ErrorKind::Precondition,
            Self::Build(_) => ErrorKind::Internal,
        }
    }

    fn field(&self) -> Option<RequestField> {
        Some(match self {
            Self::NoCommand { .. } => RequestField::Command,
            Self::UnknownCapability(_) => RequestField::Capabilities,
            Self::AmbientAlone(_) => RequestField::AmbientCapabilities,
            Self::NotThePods(field) | Self::NoSuchId { field, .. } => field.clone(),
            Self::NotThePodsIds => RequestField::UserNamespace,
            Self::HostPids => RequestField::PidMode,
            Self::Bidirectional(index) => RequestField::MountPropagation(*index),
            Self::CdiShared(_) => RequestField::CdiDevices,
            Self::NoTarget => RequestField::PidTarget,
            Self::MountOver(_) => RequestField::Mounts,
            Self::NoSuchImageId(_) | Self::WorkingDir(_) | Self::Build(_) => return None,
        })
    }
}

/// The inputs of a configuration.
#[derive(Debug)]
pub struct SpecInputs<'a> {
    pub handler: &'a Handler,
    pub pod: PodInputs<'a>,
    pub container: &'a ContainerSpec,
    pub image: &'a image::Config,
    pub process: &'a ProcessUser,
    pub security: &'a SecurityProfiles,
    pub mounts: &'a MountInputs,
    pub devices: &'a DeviceInputs,
    pub cgroup: CgroupInputs<'a>,
    /// The first process of the container whose PID namespace this container joins.
    pub target: Option<u32>,
}

/// The pod of the container.
#[derive(Debug, Clone, Copy)]
pub struct PodInputs<'a> {
    pub spec: &'a PodSpec,
    pub hostname: &'a str,
    pub sandbox: &'a Sandbox,
    /// The directory with the pod's files that are mounted in each container's `/etc`.
    pub files: &'a Path,
}

/// The user of the container's processes.
#[derive(Debug)]
pub struct ProcessUser {
    pub user: image::User,
    /// All supplementary groups, sorted.
    pub groups: Vec<u32>,
}

/// The confinement of the container's processes.
#[derive(Debug)]
pub struct SecurityProfiles {
    /// The compiled seccomp filter, which is not part of `config.json`.
    pub seccomp: Option<PathBuf>,
    /// The AppArmor profile.
    pub apparmor: Option<String>,
    pub selinux: Option<Labels>,
}

/// The mounts that depend on more than the request.
#[derive(Debug)]
pub struct MountInputs {
    /// Mount sources, in the order of the container's mounts: a path on the host, or an image's id and a path in it.
    pub sources: Vec<PathBuf>,
    /// Volumes declared by the image, without those at the path of another mount.
    pub volumes: Vec<image::Volume>,
    /// The directory on the host with the file about resizes, if the container has one.
    pub resize_notice: Option<PathBuf>,
}

/// The device nodes, and all that CDI devices change besides.
#[derive(Debug)]
pub struct DeviceInputs {
    /// Includes the nodes of CDI devices.
    pub nodes: Vec<LinuxDevice>,
    /// The groups of `edits` are also in [`ProcessUser::groups`].
    pub edits: Edits,
}

/// The container's cgroup.
#[derive(Debug, Clone, Copy)]
pub struct CgroupInputs<'a> {
    pub path: &'a str,
    pub version: Version,
}

/// Where a container finds the file about its resizes.
pub const RESIZE_NOTICE: &str = "/run/crisp-resize";

/// Returns the capabilities of a container by name, for decisions of other crates.
pub use capabilities::effective as capabilities_of;

pub fn build(given: &SpecInputs<'_>) -> Result<Spec, OciError> {
    let security = &given.container.security;
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces(given)?)
        .cgroups_path(given.cgroup.path)
        .devices(given.devices.nodes.clone())
        .masked_paths(if security.privileged { Vec::new() } else { security.masked_paths.clone() })
        .readonly_paths(if security.privileged { Vec::new() } else { security.readonly_paths.clone() })
        .build()?;
    linux.set_resources(None);
    linux.set_mount_label(given.security.selinux.as_ref().map(|labels| labels.mount.clone()));
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
        .hostname(given.pod.hostname)
        .linux(linux)
        .build()?;
    spec.set_hooks(given.devices.edits.hooks.clone());
    let mut annotations = given.container.annotations.clone().into_iter().collect();
    let of_container = given.container.kubernetes_resources.as_ref();
    pod_resources_json::add_annotations(&mut annotations, given.pod.spec.pod_resources.as_ref(), of_container);
    spec.set_annotations(Some(annotations));
    Ok(spec)
}

/// Returns the namespaces: network, IPC and UTS are those of the pod, the PID namespace is as the
/// container requests.
fn namespaces(given: &SpecInputs<'_>) -> Result<Vec<LinuxNamespace>, OciError> {
    let asked = &given.container.security.namespaces;
    let mut all = vec![namespace(LinuxNamespaceType::Mount, None)?];
    if let Some(path) = &given.pod.sandbox.user {
        all.push(namespace(LinuxNamespaceType::User, Some(path))?);
    }
    for (kind, field, mode, held) in [
        (LinuxNamespaceType::Network, RequestField::NetworkMode, asked.network, &given.pod.sandbox.network),
        (LinuxNamespaceType::Ipc, RequestField::IpcMode, asked.ipc, &given.pod.sandbox.ipc),
        (LinuxNamespaceType::Uts, RequestField::NetworkMode, NsMode::Pod, &given.pod.sandbox.uts),
    ] {
        match (mode, held) {
            (NsMode::Node, Some(_)) => return Err(OciError::NotThePods(field)),
            (_, Some(path)) => all.push(namespace(kind, Some(path))?),
            (_, None) => {}
        }
    }
    match asked.pid {
        NsMode::Container => all.push(namespace(LinuxNamespaceType::Pid, None)?),
        NsMode::Node => {}
        // POD is also the default of CRI, so in a pod without a shared PID namespace it means CONTAINER.
        NsMode::Pod => match (&given.pod.sandbox.pid, given.pod.spec.security.namespaces.pid) {
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
    if given.cgroup.version == Version::V2 {
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
