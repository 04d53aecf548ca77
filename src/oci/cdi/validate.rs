//! From what a file says to a [`Spec`], or to the field that is wrong.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

use cgroup::Access;

use super::file_format::{RawDevice, RawEdits, RawHook, RawMount, RawNode, RawSpec};
use super::spec::{ContainerEdits, Hook, HookStage, Mount, MountKind, Node, NodeKind, Spec};
use super::version;

/// A field that cannot be what it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub(super) struct SpecError {
    at: String,
    problem: String,
}

impl SpecError {
    pub(super) fn new(at: &str, problem: impl Display) -> Self {
        Self { at: at.to_owned(), problem: problem.to_string() }
    }

    fn in_entry(self, list: &str, index: usize) -> Self {
        Self { at: format!("{list}[{index}].{}", self.at), ..self }
    }

    fn below(self, above: &str) -> Self {
        Self { at: format!("{above}.{}", self.at), ..self }
    }
}

/// Major numbers have 12 bits in the kernel, minor ones 20.
const MAJOR_MAX: i64 = (1 << 12) - 1;
const MINOR_MAX: i64 = (1 << 20) - 1;
/// The permission bits of a file, and those of its type, which say nothing new.
const MODE_BITS: u32 = 0o7777;
const TYPE_BITS: u32 = 0o170_000;

pub(super) fn check(raw: RawSpec) -> Result<Spec, SpecError> {
    version::check(&raw)?;
    let RawSpec { cdi_version: _, kind, annotations: _, devices: list, container_edits } = raw;
    if !model::cdi_name::is_kind(&kind) {
        return Err(SpecError::new("kind", format_args!("{kind:?} is not like vendor.com/class")));
    }
    if list.is_empty() {
        return Err(SpecError::new("devices", "there is none"));
    }
    let edits = part(container_edits).map_err(|flaw| flaw.below("containerEdits"))?;
    let mut devices = BTreeMap::new();
    for (index, RawDevice { name, annotations: _, container_edits }) in list.into_iter().enumerate() {
        let flawed = |flaw: SpecError| flaw.in_entry("devices", index);
        if !model::cdi_name::is_device(&name) {
            return Err(flawed(SpecError::new("name", format_args!("{name:?} is no name of a device"))));
        }
        let own = part(container_edits).map_err(|flaw| flawed(flaw.below("containerEdits")))?;
        if own == ContainerEdits::default() {
            return Err(flawed(SpecError::new("containerEdits", "there is none")));
        }
        if devices.contains_key(&name) {
            return Err(flawed(SpecError::new("name", format_args!("{name:?} is there twice"))));
        }
        devices.insert(name, own);
    }
    Ok(Spec { kind, edits, devices })
}

fn part(raw: RawEdits) -> Result<ContainerEdits, SpecError> {
    let RawEdits { env, device_nodes, net_devices, hooks, mounts, intel_rdt, additional_gids } = raw;
    check_env(&env)?;
    let beyond = match (&intel_rdt, net_devices.is_empty()) {
        (Some(_), _) => Some("intelRdt".to_owned()),
        (None, false) => Some("netDevices".to_owned()),
        (None, true) => None,
    };
    let mut part = ContainerEdits { env, beyond, ..ContainerEdits::default() };
    for (index, raw) in device_nodes.into_iter().enumerate() {
        part.nodes.push(node(raw).map_err(|flaw| flaw.in_entry("deviceNodes", index))?);
    }
    for (index, raw) in mounts.into_iter().enumerate() {
        match mount_kind(&raw) {
            Some(kind) => part.mounts.push(mount(raw, kind).map_err(|flaw| flaw.in_entry("mounts", index))?),
            None => part.beyond = Some(format!("a mount of type {:?}", raw.kind)),
        }
    }
    for (index, raw) in hooks.into_iter().enumerate() {
        part.hooks.push(hook(raw).map_err(|flaw| flaw.in_entry("hooks", index))?);
    }
    for (index, gid) in additional_gids.into_iter().enumerate() {
        match gid {
            // By the specification's word it is ignored.
            0 => {}
            u32::MAX => return Err(SpecError::new(&format!("additionalGids[{index}]"), "is no group")),
            gid => part.groups.push(gid),
        }
    }
    Ok(part)
}

fn check_env(env: &[String]) -> Result<(), SpecError> {
    for (index, variable) in env.iter().enumerate() {
        let at = || format!("env[{index}]");
        if variable.find('=').is_none_or(|end| end == 0) {
            return Err(SpecError::new(&at(), format_args!("{variable:?} is not like NAME=value")));
        }
        text(&at(), variable)?;
    }
    Ok(())
}

fn node(raw: RawNode) -> Result<Node, SpecError> {
    let RawNode { path, host_path, kind, major, minor, file_mode, permissions, uid, gid } = raw;
    let inside = clean("path", &path)?;
    // The kernel's file system there is the container's own; what lies elsewhere could be anybody's.
    if !inside.starts_with("/dev") || inside == Path::new("/dev") {
        return Err(SpecError::new("path", format_args!("{path:?} is not below /dev")));
    }
    let host = if host_path.is_empty() { inside.clone() } else { clean("hostPath", &host_path)? };
    let kind = match kind.as_str() {
        "" => None,
        "b" => Some(NodeKind::Block),
        "c" | "u" => Some(NodeKind::Char),
        "p" => Some(NodeKind::Fifo),
        other => return Err(SpecError::new("type", format_args!("{other:?} is not b, c, u or p"))),
    };
    let number = |at: &str, value: i64, max: i64| {
        let number = u32::try_from(value).ok().filter(|_| value <= max);
        number.ok_or_else(|| SpecError::new(at, format_args!("{value} is not 0 to {max}")))
    };
    let numbers = (number("major", major, MAJOR_MAX)?, number("minor", minor, MINOR_MAX)?);
    let mode = match file_mode {
        Some(mode) if mode & !(MODE_BITS | TYPE_BITS) != 0 => {
            return Err(SpecError::new("fileMode", format_args!("{mode:#o} is no mode of a file")));
        }
        mode => mode.map(|mode| mode & MODE_BITS),
    };
    let access = match permissions.as_str() {
        "" => Some(Access::ALL),
        "none" => None,
        letters => match Access::parse(letters) {
            None => return Err(SpecError::new("permissions", format_args!("{letters:?} is not some of r, w and m"))),
            some => some,
        },
    };
    // A major number of 0 is no device's: then the host is asked, and the minor number says nothing.
    let numbers = (numbers.0 != 0).then_some(numbers);
    let id = |at: &str, id: Option<u32>| match id {
        Some(u32::MAX) => Err(SpecError::new(at, "is no id")),
        id => Ok(id),
    };
    Ok(Node { path: inside, host, kind, numbers, mode, uid: id("uid", uid)?, gid: id("gid", gid)?, access })
}

/// None where it is a file system that crisp does not mount. A bind mount's type is a dummy, by the specification.
fn mount_kind(raw: &RawMount) -> Option<MountKind> {
    let binds = raw.options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"));
    match raw.kind.as_str() {
        "" | "none" | "bind" => Some(MountKind::Bind),
        _ if binds => Some(MountKind::Bind),
        "tmpfs" => Some(MountKind::Tmpfs),
        _ => None,
    }
}

fn mount(raw: RawMount, kind: MountKind) -> Result<Mount, SpecError> {
    let RawMount { host_path, container_path, kind: _, options } = raw;
    let target = clean("containerPath", &container_path)?;
    if target == Path::new("/") || target == Path::new("/proc") {
        return Err(SpecError::new("containerPath", format_args!("nothing may be mounted over {container_path}")));
    }
    let source = match kind {
        MountKind::Bind => clean("hostPath", &host_path)?,
        MountKind::Tmpfs => {
            text("hostPath", &host_path)?;
            PathBuf::from("tmpfs")
        }
    };
    for (index, option) in options.iter().enumerate() {
        let at = format!("options[{index}]");
        if option.is_empty() {
            return Err(SpecError::new(&at, "empty"));
        }
        text(&at, option)?;
    }
    Ok(Mount { source, target, kind, options })
}

fn hook(raw: RawHook) -> Result<Hook, SpecError> {
    let RawHook { hook_name, path, args, env, timeout } = raw;
    let moment = HookStage::parse(&hook_name)
        .ok_or_else(|| SpecError::new("hookName", format_args!("{hook_name:?} is no moment for a hook")))?;
    let path = clean("path", &path)?;
    for (index, arg) in args.iter().enumerate() {
        text(&format!("args[{index}]"), arg)?;
    }
    check_env(&env)?;
    if let Some(seconds) = timeout
        && seconds <= 0
    {
        return Err(SpecError::new("timeout", format_args!("{seconds} is not greater than 0")));
    }
    Ok(Hook { moment, path, args, env, timeout })
}

/// A text that the kernel can take.
fn text(at: &str, text: &str) -> Result<(), SpecError> {
    if text.contains('\0') { Err(SpecError::new(at, "contains a zero byte")) } else { Ok(()) }
}

/// A path from the root that leads nowhere but down. Without what says nothing, such as `//` and `/.`.
fn clean(at: &str, path: &str) -> Result<PathBuf, SpecError> {
    text(at, path)?;
    let parts = Path::new(path).components();
    if !path.starts_with('/') || parts.clone().any(|part| part == Component::ParentDir) {
        return Err(SpecError::new(at, format_args!("{path:?} is no absolute path without \"..\"")));
    }
    Ok(parts.collect())
}
