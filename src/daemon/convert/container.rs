//! Requests about containers: creation, stop, exec.

use std::path::PathBuf;
use std::time::Duration;

use cri_api::v1;
use model::{ContainerMeta, ContainerSpec, RepeatedPod};
use oci::pod_resources_json;

use super::{FieldPath, InvalidField, Warnings, image, mount, pod, pod_resources, resources, security, signal};

/// A CreateContainer request.
#[derive(Debug)]
pub(crate) struct Create {
    pub(crate) pod: String,
    pub(crate) spec: ContainerSpec,
    /// The parts of the repeated pod configuration that are used, if the client sent it.
    pub(crate) repeated: Option<RepeatedPod>,
    pub(crate) warnings: Warnings,
}

/// An ExecSync request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exec {
    pub(crate) container: String,
    pub(crate) command: Vec<String>,
    /// `None`: unlimited.
    pub(crate) timeout: Option<Duration>,
}

pub(crate) fn create(asked: v1::CreateContainerRequest) -> Result<Create, InvalidField> {
    let v1::CreateContainerRequest { pod_sandbox_id, config, sandbox_config } = asked;
    let pod = id("pod_sandbox_id", pod_sandbox_id)?;
    let at = FieldPath::top("config");
    let mut warnings = Warnings::new();
    let spec = spec(at, at.required(config)?, &mut warnings)?;
    let repeated = sandbox_config.map(repeated_pod).transpose()?;
    Ok(Create { pod, spec, repeated, warnings })
}

/// Checks all fields, and returns those that CreateContainer uses. Warnings were logged by RunPodSandbox.
fn repeated_pod(config: v1::PodSandboxConfig) -> Result<RepeatedPod, InvalidField> {
    let spec = pod::spec(FieldPath::top("sandbox_config"), config, String::new(), &mut Warnings::new())?;
    Ok(RepeatedPod { meta: spec.meta, privileged: spec.security.privileged })
}

/// Returns an ID or ID prefix; the runtime resolves it.
pub(crate) fn id(field: &str, text: String) -> Result<String, InvalidField> {
    FieldPath::top(field).filled(text)
}

/// Returns the container and its grace period.
pub(crate) fn stop(asked: v1::StopContainerRequest) -> Result<(String, Duration), InvalidField> {
    let v1::StopContainerRequest { container_id, timeout } = asked;
    Ok((id("container_id", container_id)?, seconds("timeout", timeout)?))
}

pub(crate) fn exec(asked: v1::ExecSyncRequest) -> Result<Exec, InvalidField> {
    let v1::ExecSyncRequest { container_id, cmd, timeout } = asked;
    let timeout = seconds("timeout", timeout)?;
    Ok(Exec {
        container: id("container_id", container_id)?,
        command: command(cmd)?,
        timeout: Some(timeout).filter(|timeout| !timeout.is_zero()),
    })
}

/// Returns the command, which must not be empty.
pub(super) fn command(cmd: Vec<String>) -> Result<Vec<String>, InvalidField> {
    let at = FieldPath::top("cmd");
    if cmd.first().is_none_or(String::is_empty) {
        return Err(at.invalid("empty"));
    }
    words(at, cmd)
}

fn seconds(field: &str, value: i64) -> Result<Duration, InvalidField> {
    let seconds = u64::try_from(value)
        .map_err(|_| FieldPath::top(field).invalid(format_args!("{value} must not be negative")))?;
    Ok(Duration::from_secs(seconds))
}

fn spec(
    at: FieldPath<'_>,
    config: v1::ContainerConfig,
    warnings: &mut Warnings,
) -> Result<ContainerSpec, InvalidField> {
    let v1::ContainerConfig {
        metadata,
        image: image_spec,
        command,
        args,
        working_dir,
        envs,
        mounts,
        devices,
        labels,
        annotations,
        log_path,
        stdin,
        stdin_once,
        tty,
        linux,
        windows,
        cdi_devices,
        stop_signal,
        kubernetes_resources,
    } = config;
    at.at("windows").absent(windows)?;
    for name in pod_resources_json::OURS.iter().filter(|name| annotations.contains_key(**name)) {
        let field = pod_resources::entry("annotations", name);
        warnings.push(format!("{}: not passed to hooks, because crisp reserves the name", at.at(&field)));
    }
    let v1::LinuxContainerConfig { resources: limits, security_context } = linux.unwrap_or_default();
    let above = at.at("linux");
    Ok(ContainerSpec {
        meta: meta(at.at("metadata"), metadata)?,
        image: image::required_name(at.at("image"), image_spec, warnings)?,
        command: words(at.at("command"), command)?,
        args: words(at.at("args"), args)?,
        working_dir: match working_dir {
            empty if empty.is_empty() => empty,
            dir => at.at("working_dir").absolute(dir)?,
        },
        envs: each(at.at("envs"), envs, env)?,
        mounts: each(at.at("mounts"), mounts, |at, mount| mount::mount(at, mount, warnings))?,
        devices: each(at.at("devices"), devices, mount::device)?,
        cdi_devices: each(at.at("CDI_devices"), cdi_devices, mount::cdi_device)?,
        labels,
        annotations,
        log_path: log_file(at.at("log_path"), log_path)?,
        stdin,
        stdin_once,
        tty,
        resources: resources::limits(above.at("resources"), limits)?,
        kubernetes_resources: pod_resources::resources(at.at("kubernetes_resources"), kubernetes_resources)?,
        security: security::container(above.at("security_context"), security_context)?,
        stop_signal: signal::signal(at.at("stop_signal"), stop_signal)?,
    })
}

pub(super) fn each<T, U>(
    at: FieldPath<'_>,
    list: Vec<T>,
    mut convert: impl FnMut(FieldPath<'_>, T) -> Result<U, InvalidField>,
) -> Result<Vec<U>, InvalidField> {
    list.into_iter().enumerate().map(|(index, item)| convert(at.entry(index), item)).collect()
}

fn words(at: FieldPath<'_>, list: Vec<String>) -> Result<Vec<String>, InvalidField> {
    each(at, list, |at, word| at.text(word))
}

fn meta(at: FieldPath<'_>, metadata: Option<v1::ContainerMetadata>) -> Result<ContainerMeta, InvalidField> {
    let v1::ContainerMetadata { name, attempt } = at.required(metadata)?;
    Ok(ContainerMeta { name: at.at("name").filled(name)?, attempt })
}

fn env(at: FieldPath<'_>, pair: v1::KeyValue) -> Result<(String, String), InvalidField> {
    let v1::KeyValue { key, value } = pair;
    let key = at.at("key").filled(key)?;
    if key.contains('=') {
        return Err(at.at("key").invalid(format_args!("{key:?} must not contain \"=\"")));
    }
    // The value may be a secret, so the error does not contain it.
    let value = String::from_utf8(value).map_err(|_| at.at("value").unsupported("must be UTF-8"))?;
    Ok((key, at.at("value").text(value)?))
}

fn log_file(at: FieldPath<'_>, path: String) -> Result<Option<PathBuf>, InvalidField> {
    if path.is_empty() {
        return Ok(None);
    }
    if path.starts_with('/') {
        return Err(at.invalid(format_args!("{path:?} must be relative to the pod's log_directory")));
    }
    if path.ends_with('/') || path.split('/').any(|part| part == "..") {
        return Err(at.invalid(format_args!("{path:?} must be the path of a file below the pod's log_directory")));
    }
    Ok(Some(PathBuf::from(at.text(path)?)))
}

pub(super) fn meta_to_wire(meta: &ContainerMeta) -> v1::ContainerMetadata {
    let ContainerMeta { name, attempt } = meta.clone();
    v1::ContainerMetadata { name, attempt }
}

#[cfg(test)]
#[path = "tests/container.rs"]
mod tests;
