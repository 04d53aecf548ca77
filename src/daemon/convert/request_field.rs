//! The path of a request's field on the wire.

use std::fmt::{self, Display};

use model::RequestField;

/// Displays the path of a field, as the message of a status begins with it.
pub(crate) struct WirePath<'a>(pub(crate) &'a RequestField);

impl Display for WirePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// CRI's name of this error (k8s.io/cri-api/pkg/errors); clients compare the start of the
        /// message with it.
        const IMAGE_MOUNT: &str = "ImageVolumeMountFailed";
        match self.0 {
            RequestField::Annotation(key) => write!(f, "config.annotations[{key}]"),
            RequestField::MountPropagation(index) => write!(f, "config.mounts[{index}].propagation"),
            RequestField::MountRelabel(index) => write!(f, "config.mounts[{index}].selinux_relabel"),
            RequestField::MountImage(index) => write!(f, "{IMAGE_MOUNT}: config.mounts[{index}].image.image"),
            RequestField::MountImageSubPath(index) => write!(f, "{IMAGE_MOUNT}: config.mounts[{index}].image_sub_path"),
            RequestField::MountImageHandler(index) => write!(f, "config.mounts[{index}].image.runtime_handler"),
            field => f.write_str(fixed(field)),
        }
    }
}

/// Returns the path of a field without an index or a key; the path of its list for any other.
fn fixed(field: &RequestField) -> &'static str {
    match field {
        RequestField::RuntimeHandler => "runtime_handler",
        RequestField::PodMetadata => "sandbox_config.metadata",
        RequestField::CgroupParent => "config.linux.cgroup_parent",
        RequestField::Sysctls => "config.linux.sysctls",
        RequestField::PortMappings => "config.port_mappings",
        RequestField::Annotation(_) => "config.annotations",
        RequestField::Image => "config.image.image",
        RequestField::ImageHandler => "config.image.runtime_handler",
        RequestField::Command => "config.command",
        RequestField::Devices => "config.devices",
        RequestField::CdiDevices => "config.CDI_devices",
        RequestField::Mounts
        | RequestField::MountPropagation(_)
        | RequestField::MountRelabel(_)
        | RequestField::MountImage(_)
        | RequestField::MountImageSubPath(_)
        | RequestField::MountImageHandler(_) => "config.mounts",
        RequestField::Resources => "config.linux.resources",
        RequestField::OomScoreAdj => "config.linux.resources.oom_score_adj",
        RequestField::Privileged => "config.linux.security_context.privileged",
        RequestField::Seccomp => "config.linux.security_context.seccomp",
        RequestField::Apparmor => "config.linux.security_context.apparmor",
        RequestField::SelinuxOptions => "config.linux.security_context.selinux_options",
        RequestField::Capabilities => "config.linux.security_context.capabilities",
        RequestField::AmbientCapabilities => "config.linux.security_context.capabilities.add_ambient_capabilities",
        RequestField::RunAsUser => "config.linux.security_context.run_as_user",
        RequestField::RunAsUsername => "config.linux.security_context.run_as_username",
        RequestField::RunAsGroup => "config.linux.security_context.run_as_group",
        RequestField::SupplementalGroups => "config.linux.security_context.supplemental_groups",
        RequestField::NetworkMode => "config.linux.security_context.namespace_options.network",
        RequestField::PidMode => "config.linux.security_context.namespace_options.pid",
        RequestField::IpcMode => "config.linux.security_context.namespace_options.ipc",
        RequestField::PidTarget => "config.linux.security_context.namespace_options.target_id",
        RequestField::UserNamespace => "config.linux.security_context.namespace_options.userns_options",
        RequestField::PodCidr => "runtime_config.network_config.pod_cidr",
    }
}
