//! Checks a parsed file and converts it to a [`Spec`], or returns the first invalid field.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

use cgroup::Access;

use super::file_format::{RawDevice, RawEdits, RawHook, RawMount, RawNode, RawSpec};
use super::spec::{ContainerEdits, Hook, HookStage, Mount, MountKind, Node, NodeKind, Spec};
use super::version;

/// A field with an invalid value.
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

/// The kernel's major numbers have 12 bits, minor numbers 20.
const MAJOR_MAX: i64 = (1 << 12) - 1;
const MINOR_MAX: i64 = (1 << 20) - 1;
/// The permission bits of a mode. Bits of the file type are accepted and ignored.
const MODE_BITS: u32 = 0o7777;
const TYPE_BITS: u32 = 0o170_000;

pub(super) fn check(raw: RawSpec) -> Result<Spec, SpecError> {
    version::check(&raw)?;
    let RawSpec { cdi_version: _, kind, annotations: _, devices: list, container_edits } = raw;
    if !model::cdi_name::is_kind(&kind) {
        return Err(SpecError::new("kind", format_args!("must be like vendor.com/class, got {kind:?}")));
    }
    if list.is_empty() {
        return Err(SpecError::new("devices", "must not be empty"));
    }
    let edits = part(container_edits).map_err(|flaw| flaw.below("containerEdits"))?;
    let mut devices = BTreeMap::new();
    for (index, RawDevice { name, annotations: _, container_edits }) in list.into_iter().enumerate() {
        let flawed = |flaw: SpecError| flaw.in_entry("devices", index);
        if !model::cdi_name::is_device(&name) {
            return Err(flawed(SpecError::new("name", format_args!("invalid device name {name:?}"))));
        }
        let own = part(container_edits).map_err(|flaw| flawed(flaw.below("containerEdits")))?;
        if own == ContainerEdits::default() {
            return Err(flawed(SpecError::new("containerEdits", "must not be empty")));
        }
        if devices.contains_key(&name) {
            return Err(flawed(SpecError::new("name", format_args!("duplicate device name {name:?}"))));
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
            // The specification ignores 0.
            0 => {}
            u32::MAX => return Err(SpecError::new(&format!("additionalGids[{index}]"), "must not be 4294967295")),
            gid => part.groups.push(gid),
        }
    }
    Ok(part)
}

fn check_env(env: &[String]) -> Result<(), SpecError> {
    for (index, variable) in env.iter().enumerate() {
        let at = || format!("env[{index}]");
        if variable.find('=').is_none_or(|end| end == 0) {
            return Err(SpecError::new(&at(), format_args!("must be NAME=value, got {variable:?}")));
        }
        text(&at(), variable)?;
    }
    Ok(())
}

fn node(raw: RawNode) -> Result<Node, SpecError> {
    let RawNode { path, host_path, kind, major, minor, file_mode, permissions, uid, gid } = raw;
    let inside = clean("path", &path)?;
    // /dev is the container's own tmpfs; another directory could be a volume of a user.
    if !inside.starts_with("/dev") || inside == Path::new("/dev") {
        return Err(SpecError::new("path", format_args!("must be below /dev, got {path:?}")));
    }
    let host = if host_path.is_empty() { inside.clone() } else { clean("hostPath", &host_path)? };
    let kind = match kind.as_str() {
        "" => None,
        "b" => Some(NodeKind::Block),
        "c" | "u" => Some(NodeKind::Char),
        "p" => Some(NodeKind::Fifo),
        other => return Err(SpecError::new("type", format_args!("must be b, c, u or p, got {other:?}"))),
    };
    let number = |at: &str, value: i64, max: i64| {
        let number = u32::try_from(value).ok().filter(|_| value <= max);
        number.ok_or_else(|| SpecError::new(at, format_args!("must be 0 to {max}, got {value}")))
    };
    let numbers = (number("major", major, MAJOR_MAX)?, number("minor", minor, MINOR_MAX)?);
    let mode = match file_mode {
        Some(mode) if mode & !(MODE_BITS | TYPE_BITS) != 0 => {
            return Err(SpecError::new("fileMode", format_args!("invalid file mode {mode:#o}")));
        }
        mode => mode.map(|mode| mode & MODE_BITS),
    };
    let access = match permissions.as_str() {
        "" => Some(Access::ALL),
        "none" => None,
        letters => match Access::parse(letters) {
            None => {
                return Err(SpecError::new(
                    "permissions",
                    format_args!("must be \"none\" or letters of r, w and m, got {letters:?}"),
                ));
            }
            some => some,
        },
    };
    // No device has the major number 0: then both numbers are read from the host's node.
    let numbers = (numbers.0 != 0).then_some(numbers);
    let id = |at: &str, id: Option<u32>| match id {
        Some(u32::MAX) => Err(SpecError::new(at, "must not be 4294967295")),
        id => Ok(id),
    };
    Ok(Node { path: inside, host, kind, numbers, mode, uid: id("uid", uid)?, gid: id("gid", gid)?, access })
}

/// Returns `None` for a file system that crisp does not mount. The specification ignores the type of
/// a bind mount.
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
        return Err(SpecError::new("containerPath", format_args!("must not be / or /proc, got {container_path:?}")));
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
            return Err(SpecError::new(&at, "must not be empty"));
        }
        text(&at, option)?;
    }
    Ok(Mount { source, target, kind, options })
}

fn hook(raw: RawHook) -> Result<Hook, SpecError> {
    let RawHook { hook_name, path, args, env, timeout } = raw;
    let moment = HookStage::parse(&hook_name)
        .ok_or_else(|| SpecError::new("hookName", format_args!("unknown hook {hook_name:?}")))?;
    let path = clean("path", &path)?;
    for (index, arg) in args.iter().enumerate() {
        text(&format!("args[{index}]"), arg)?;
    }
    check_env(&env)?;
    if let Some(seconds) = timeout
        && seconds <= 0
    {
        return Err(SpecError::new("timeout", format_args!("must be greater than 0, got {seconds}")));
    }
    Ok(Hook { moment, path, args, env, timeout })
}

/// Checks that a text is valid for system calls.
fn text(at: &str, text: &str) -> Result<(), SpecError> {
    if text.contains('\0') { Err(SpecError::new(at, "must not contain a NUL byte")) } else { Ok(()) }
}

/// Checks that a path is absolute without `..`, and removes empty and `.` components.
fn clean(at: &str, path: &str) -> Result<PathBuf, SpecError> {
    text(at, path)?;
    let parts = Path::new(path).components();
    if !path.starts_with('/') || parts.clone().any(|part| part == Component::ParentDir) {
        return Err(SpecError::new(at, format_args!("must be an absolute path without \"..\", got {path:?}")));
    }
    Ok(parts.collect())
}
