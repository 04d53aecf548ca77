//! Converts security contexts of pods and containers: users, namespaces, capabilities, profiles,
//! masked paths.

pub(crate) mod id_mapping;
mod selinux;

use cri_api::v1;
use model::{
    CAPABILITIES, Capabilities, ContainerSecurity, GroupsPolicy, Namespaces, NsMode, PodSecurity, Profile, UserNs,
    UserRef,
};

use super::{FieldPath, InvalidField};

#[expect(deprecated, reason = "the older seccomp field is still understood")]
pub(super) fn pod(
    at: FieldPath<'_>,
    asked: Option<v1::LinuxSandboxSecurityContext>,
) -> Result<PodSecurity, InvalidField> {
    let v1::LinuxSandboxSecurityContext {
        namespace_options,
        selinux_options,
        run_as_user,
        run_as_group,
        readonly_rootfs,
        supplemental_groups,
        supplemental_groups_policy,
        privileged,
        seccomp,
        apparmor,
        seccomp_profile_path,
    } = asked.unwrap_or_default();
    let namespaces = namespaces(at.at("namespace_options"), namespace_options)?;
    if namespaces.pid == NsMode::Target {
        return Err(at.at("namespace_options").at("pid").invalid("TARGET is for containers only"));
    }
    let run_as_user = optional_id(at.at("run_as_user"), run_as_user)?;
    let run_as_group = optional_id(at.at("run_as_group"), run_as_group)?;
    if run_as_group.is_some() && run_as_user.is_none() {
        return Err(at.at("run_as_group").invalid("set without run_as_user"));
    }
    Ok(PodSecurity {
        namespaces,
        selinux: selinux::options(at.at("selinux_options"), selinux_options)?,
        run_as_user,
        run_as_group,
        supplemental_groups: groups(at.at("supplemental_groups"), supplemental_groups)?,
        groups_policy: policy(at.at("supplemental_groups_policy"), supplemental_groups_policy)?,
        readonly_rootfs,
        privileged,
        seccomp: seccomp_profile(at, seccomp, &seccomp_profile_path)?,
        apparmor: apparmor_profile(at, apparmor, "")?,
    })
}

/// The defaults of a request without a security context: the kernel's sensitive files are masked.
/// With a security context, as the kubelet always sends, the lists in the request are used, also if
/// empty.
fn default_namespaces() -> v1::LinuxContainerSecurityContext {
    let owned = |paths: &[&str]| paths.iter().map(|p| (*p).to_owned()).collect();
    v1::LinuxContainerSecurityContext {
        masked_paths: owned(&MASKED),
        readonly_paths: owned(&READONLY),
        ..v1::LinuxContainerSecurityContext::default()
    }
}

const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
const READONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

#[expect(deprecated, reason = "the older profile fields are still understood")]
pub(super) fn container(
    at: FieldPath<'_>,
    asked: Option<v1::LinuxContainerSecurityContext>,
) -> Result<ContainerSecurity, InvalidField> {
    let v1::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options,
        selinux_options,
        run_as_user,
        run_as_group,
        run_as_username,
        readonly_rootfs,
        supplemental_groups,
        supplemental_groups_policy,
        no_new_privs,
        masked_paths,
        readonly_paths,
        seccomp,
        apparmor,
        apparmor_profile: old_apparmor,
        seccomp_profile_path,
    } = asked.unwrap_or_else(default_namespaces);
    let run_as = match optional_id(at.at("run_as_user"), run_as_user)? {
        Some(_) if !run_as_username.is_empty() => {
            return Err(at.at("run_as_username").invalid("set together with run_as_user"));
        }
        Some(id) => Some(UserRef::Id(id)),
        None if run_as_username.is_empty() => None,
        None => Some(UserRef::Name(at.at("run_as_username").text(run_as_username)?)),
    };
    let run_as_group = optional_id(at.at("run_as_group"), run_as_group)?;
    if run_as_group.is_some() && run_as.is_none() {
        return Err(at.at("run_as_group").invalid("set without run_as_user or run_as_username"));
    }
    Ok(ContainerSecurity {
        capabilities: capability_changes(at.at("capabilities"), capabilities)?,
        privileged,
        namespaces: namespaces(at.at("namespace_options"), namespace_options)?,
        selinux: selinux::options(at.at("selinux_options"), selinux_options)?,
        run_as,
        run_as_group,
        supplemental_groups: groups(at.at("supplemental_groups"), supplemental_groups)?,
        groups_policy: policy(at.at("supplemental_groups_policy"), supplemental_groups_policy)?,
        readonly_rootfs,
        no_new_privs,
        masked_paths: paths(at.at("masked_paths"), masked_paths)?,
        readonly_paths: paths(at.at("readonly_paths"), readonly_paths)?,
        seccomp: seccomp_profile(at, seccomp, &seccomp_profile_path)?,
        apparmor: apparmor_profile(at, apparmor, &old_apparmor)?,
    })
}

fn namespaces(at: FieldPath<'_>, asked: Option<v1::NamespaceOption>) -> Result<Namespaces, InvalidField> {
    let v1::NamespaceOption { network, pid, ipc, target_id, userns_options } = asked.unwrap_or_default();
    let user = match userns_options {
        Some(userns) => user_namespace(at.at("userns_options"), userns)?,
        None => None,
    };
    let shared = |name, value| match mode(at.at(name), value)? {
        shared @ (NsMode::Pod | NsMode::Node) => Ok(shared),
        NsMode::Container | NsMode::Target => Err(at.at(name).invalid("must be POD or NODE")),
    };
    let pid = mode(at.at("pid"), pid)?;
    let target = match (pid == NsMode::Target, target_id.is_empty()) {
        (true, false) => Some(target_id),
        (true, true) => return Err(at.at("target_id").invalid("empty, but pid is TARGET")),
        (false, false) => return Err(at.at("target_id").invalid("set, but pid is not TARGET")),
        (false, true) => None,
    };
    Ok(Namespaces { network: shared("network", network)?, pid, ipc: shared("ipc", ipc)?, target, user })
}

fn mode(at: FieldPath<'_>, value: i32) -> Result<NsMode, InvalidField> {
    Ok(match at.known(value)? {
        v1::NamespaceMode::Pod => NsMode::Pod,
        v1::NamespaceMode::Container => NsMode::Container,
        v1::NamespaceMode::Node => NsMode::Node,
        v1::NamespaceMode::Target => NsMode::Target,
    })
}

/// `None`: the host's user namespace.
fn user_namespace(at: FieldPath<'_>, asked: v1::UserNamespace) -> Result<Option<UserNs>, InvalidField> {
    let v1::UserNamespace { mode: asked_mode, uids, gids } = asked;
    match mode(at.at("mode"), asked_mode)? {
        NsMode::Pod => Ok(Some(UserNs {
            uids: id_mapping::namespace(at.at("uids"), uids)?,
            gids: id_mapping::namespace(at.at("gids"), gids)?,
        })),
        NsMode::Container | NsMode::Target => Err(at.at("mode").invalid("must be POD or NODE")),
        NsMode::Node if uids.is_empty() && gids.is_empty() => Ok(None),
        NsMode::Node => Err(at.invalid("has mappings, but mode is NODE")),
    }
}

fn optional_id(at: FieldPath<'_>, asked: Option<v1::Int64Value>) -> Result<Option<u32>, InvalidField> {
    asked.map(|v1::Int64Value { value }| at.id(value)).transpose()
}

fn groups(at: FieldPath<'_>, asked: Vec<i64>) -> Result<Vec<u32>, InvalidField> {
    asked.into_iter().enumerate().map(|(index, id)| at.entry(index).id(id)).collect()
}

fn paths(at: FieldPath<'_>, asked: Vec<String>) -> Result<Vec<String>, InvalidField> {
    asked.into_iter().enumerate().map(|(index, path)| at.entry(index).absolute(path)).collect()
}

fn policy(at: FieldPath<'_>, value: i32) -> Result<GroupsPolicy, InvalidField> {
    Ok(match at.known(value)? {
        v1::SupplementalGroupsPolicy::Merge => GroupsPolicy::Merge,
        v1::SupplementalGroupsPolicy::Strict => GroupsPolicy::Strict,
    })
}

fn capability_changes(at: FieldPath<'_>, asked: Option<v1::Capability>) -> Result<Capabilities, InvalidField> {
    let v1::Capability { add_capabilities, drop_capabilities, add_ambient_capabilities } = asked.unwrap_or_default();
    let names = |name, list: Vec<String>| -> Result<Vec<String>, InvalidField> {
        list.into_iter().enumerate().map(|(index, text)| capability(at.at(name).entry(index), &text)).collect()
    };
    Ok(Capabilities {
        add: names("add_capabilities", add_capabilities)?,
        drop: names("drop_capabilities", drop_capabilities)?,
        add_ambient: names("add_ambient_capabilities", add_ambient_capabilities)?,
    })
}

/// Returns the name of a capability in upper case, with or without `CAP_`.
fn capability(at: FieldPath<'_>, text: &str) -> Result<String, InvalidField> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if name == "ALL" || CAPABILITIES.contains(&name) {
        Ok(name.to_owned())
    } else {
        Err(at.invalid(format_args!("{text:?} is not a known capability")))
    }
}

/// Returns the profile, or that of the deprecated field.
fn seccomp_profile(
    at: FieldPath<'_>,
    asked: Option<v1::SecurityProfile>,
    older: &str,
) -> Result<Option<Profile>, InvalidField> {
    let profile = profile(at, "seccomp", asked, "seccomp_profile_path", older)?;
    match profile {
        Some(Profile::Localhost(path)) if !path.starts_with('/') => {
            Err(at.at("seccomp").invalid(format_args!("{path:?} is not the absolute path of a profile")))
        }
        other => Ok(other),
    }
}

fn apparmor_profile(
    at: FieldPath<'_>,
    asked: Option<v1::SecurityProfile>,
    older: &str,
) -> Result<Option<Profile>, InvalidField> {
    // Some clients keep the prefix of the deprecated field.
    let bare = |name: String| name.strip_prefix("localhost/").map(str::to_owned).unwrap_or(name);
    Ok(match profile(at, "apparmor", asked, "apparmor_profile", older)? {
        Some(Profile::Localhost(name)) => Some(Profile::Localhost(bare(name))),
        other => other,
    })
}

fn profile(
    at: FieldPath<'_>,
    name: &str,
    asked: Option<v1::SecurityProfile>,
    older_name: &str,
    older: &str,
) -> Result<Option<Profile>, InvalidField> {
    let Some(v1::SecurityProfile { profile_type, localhost_ref }) = asked else {
        return older_profile(at.at(older_name), older);
    };
    let at = at.at(name);
    let kind: v1::security_profile::ProfileType = at.at("profile_type").known(profile_type)?;
    let localhost = kind == v1::security_profile::ProfileType::Localhost;
    if localhost == localhost_ref.is_empty() {
        let problem = if localhost { "empty, but the profile is Localhost" } else { "set, but not with Localhost" };
        return Err(at.at("localhost_ref").invalid(problem));
    }
    Ok(Some(match kind {
        v1::security_profile::ProfileType::RuntimeDefault => Profile::RuntimeDefault,
        v1::security_profile::ProfileType::Unconfined => Profile::Unconfined,
        v1::security_profile::ProfileType::Localhost => Profile::Localhost(at.at("localhost_ref").text(localhost_ref)?),
    }))
}

fn older_profile(at: FieldPath<'_>, text: &str) -> Result<Option<Profile>, InvalidField> {
    match (text, text.strip_prefix("localhost/")) {
        ("", _) => Ok(None),
        ("runtime/default" | "docker/default", _) => Ok(Some(Profile::RuntimeDefault)),
        ("unconfined", _) => Ok(Some(Profile::Unconfined)),
        (_, Some(name)) if !name.is_empty() => Ok(Some(Profile::Localhost(at.text(name.to_owned())?))),
        (_, Some(_) | None) => Err(at.invalid(format_args!(
            "{text:?} is not a profile: expected runtime/default, unconfined or localhost/NAME"
        ))),
    }
}

pub(super) fn namespaces_to_wire(namespaces: &Namespaces) -> v1::NamespaceOption {
    let Namespaces { network, pid, ipc, target, user } = namespaces;
    let mode = |mode: &NsMode| match mode {
        NsMode::Pod => v1::NamespaceMode::Pod.into(),
        NsMode::Container => v1::NamespaceMode::Container.into(),
        NsMode::Node => v1::NamespaceMode::Node.into(),
        NsMode::Target => v1::NamespaceMode::Target.into(),
    };
    let userns = match user {
        None => v1::UserNamespace { mode: v1::NamespaceMode::Node.into(), uids: Vec::new(), gids: Vec::new() },
        Some(UserNs { uids, gids }) => v1::UserNamespace {
            mode: v1::NamespaceMode::Pod.into(),
            uids: uids.iter().map(id_mapping::to_wire).collect(),
            gids: gids.iter().map(id_mapping::to_wire).collect(),
        },
    };
    v1::NamespaceOption {
        network: mode(network),
        pid: mode(pid),
        ipc: mode(ipc),
        target_id: target.clone().unwrap_or_default(),
        userns_options: Some(userns),
    }
}

#[cfg(test)]
mod tests;
