//! Checks of values that hold whatever the container is.

use super::MergeError;
use crate::api::{ContainerAdjustment, Hook, Hooks};

/// Annotations with these prefixes belong to crisp and to CDI.
const RESERVED: [&str; 2] = ["io.crisp.", "cdi.k8s.io/"];

/// The resource engine parses the set.
const CPU_SET: usize = 4096;
const QUOTED: usize = 80;

/// Returns an error for a value, which it shows shortened.
fn invalid(plugin: &str, field: &'static str, value: &str, reason: &'static str) -> MergeError {
    let value = value.chars().take(QUOTED).collect();
    MergeError::Invalid { plugin: plugin.to_owned(), field, value, reason }
}

type Checked = Result<(), MergeError>;

/// Checks the values of an adjustment, except its limits.
pub(super) fn adjustment(plugin: &str, adjust: &ContainerAdjustment) -> Checked {
    for (key, value) in &adjust.annotations {
        text(plugin, "annotation", key)?;
        text(plugin, "annotation", value)?;
        let name = key.trim_start_matches('-');
        if name.is_empty() || RESERVED.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(invalid(plugin, "annotation", key, "expected a name that crisp and CDI do not use"));
        }
    }
    for mount in &adjust.mounts {
        for value in [&mount.destination, &mount.source, &mount.r#type].into_iter().chain(&mount.options) {
            text(plugin, "mount", value)?;
        }
        if clean(mount.destination.strip_prefix('-').unwrap_or(&mount.destination)).is_none_or(|path| path == "/") {
            return Err(invalid(plugin, "mount", &mount.destination, "expected an absolute path below / without .."));
        }
    }
    for variable in &adjust.env {
        text(plugin, "env", &variable.key)?;
        // The value may be a secret, so that an error does not show it.
        if variable.value.contains('\0') {
            return Err(invalid(plugin, "env", &variable.key, "its value has a NUL byte"));
        }
        if variable.key.trim_start_matches('-').is_empty() || variable.key.contains('=') {
            return Err(invalid(plugin, "env", &variable.key, "expected a name without ="));
        }
    }
    for argument in &adjust.args {
        if argument.contains('\0') {
            return Err(invalid(plugin, "args", "", "an argument has a NUL byte"));
        }
    }
    if adjust.args.len() == 1 && adjust.args[0].is_empty() {
        return Err(invalid(plugin, "args", "", "expected a program"));
    }
    for hook in adjust.hooks.iter().flat_map(all_hooks) {
        hook_values(plugin, hook)?;
    }
    for device in &adjust.cdi_devices {
        text(plugin, "CDI device", &device.name)?;
    }
    for limit in &adjust.rlimits {
        text(plugin, "rlimit", &limit.r#type)?;
    }
    linux(plugin, adjust)
}

fn linux(plugin: &str, adjust: &ContainerAdjustment) -> Checked {
    let Some(linux) = &adjust.linux else { return Ok(()) };
    for device in &linux.devices {
        text(plugin, "device", &device.path)?;
        if clean(device.path.strip_prefix('-').unwrap_or(&device.path)).is_none_or(|path| path == "/") {
            return Err(invalid(plugin, "device", &device.path, "expected an absolute path without .."));
        }
    }
    for namespace in &linux.namespaces {
        text(plugin, "namespace", &namespace.r#type)?;
        text(plugin, "namespace", &namespace.path)?;
    }
    for (key, value) in &linux.sysctl {
        text(plugin, "sysctl", key)?;
        text(plugin, "sysctl", value)?;
        if key.contains("..") {
            return Err(invalid(plugin, "sysctl", key, "expected a name without .."));
        }
    }
    text(plugin, "cgroups_path", &linux.cgroups_path)
}

fn hook_values(plugin: &str, hook: &Hook) -> Checked {
    for value in hook.args.iter().chain(&hook.env).chain([&hook.path]) {
        text(plugin, "hook", value)?;
    }
    if clean(&hook.path).is_none_or(|path| path == "/") {
        return Err(invalid(plugin, "hook", &hook.path, "expected an absolute path without .."));
    }
    Ok(())
}

fn all_hooks(hooks: &Hooks) -> impl Iterator<Item = &Hook> {
    let Hooks { prestart, create_runtime, create_container, start_container, poststart, poststop } = hooks;
    [prestart, create_runtime, create_container, start_container, poststart, poststop].into_iter().flatten()
}

fn text(plugin: &str, field: &'static str, value: &str) -> Checked {
    if value.contains('\0') { Err(invalid(plugin, field, value, "it has a NUL byte")) } else { Ok(()) }
}

/// Checks a file of `unified`: `memory.high`, but not a path, nor a file that moves processes.
pub(super) fn cgroup_file(plugin: &str, file: &str, value: &str) -> Checked {
    let is_name = file.contains('.')
        && !file.starts_with('.')
        && file.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if !is_name || file.starts_with("cgroup.") {
        return Err(invalid(plugin, "unified", file, "expected a file of a cgroup controller"));
    }
    if value.trim_end_matches('\n').contains(['\n', '\0']) {
        return Err(invalid(plugin, "unified", file, "expected a value of one line"));
    }
    Ok(())
}

pub(super) fn cpu_set(plugin: &str, set: &str) -> Checked {
    let is_list = set.len() <= CPU_SET && set.bytes().all(|byte| byte.is_ascii_digit() || b",-".contains(&byte));
    if is_list { Ok(()) } else { Err(invalid(plugin, "cpuset", set, "expected a list such as 0-3,8")) }
}

pub(super) fn page_size(plugin: &str, size: &str) -> Checked {
    // Few enough sizes that a list has no more than that many.
    let number = ["KB", "MB", "GB"].iter().find_map(|unit| size.strip_suffix(unit));
    let number = number.filter(|digits| !digits.starts_with('+')).and_then(|digits| digits.parse::<u16>().ok());
    if number.is_some_and(|number| number.is_power_of_two() && number <= 1024) {
        Ok(())
    } else {
        Err(invalid(plugin, "hugepage size", size, "expected a size such as 2MB"))
    }
}

/// Returns an absolute path without empty and `.` components; `None` if it has `..`.
pub(super) fn clean(path: &str) -> Option<String> {
    let inside = path.strip_prefix('/')?;
    let parts: Vec<_> = inside.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") { None } else { Some(format!("/{}", parts.join("/"))) }
}
