//! RunPodSandbox, and the metadata of pods.

use std::net::IpAddr;
use std::path::PathBuf;

use cri_api::v1;
use model::CgroupPath;
use model::pod_resources::QualifiedName;
use model::{Dns, PodMeta, PodSpec, PortMapping, Protocol};

use super::pod_resources::annotation;
use super::{FieldPath, InvalidField, Warnings, bandwidth, pod_resources, resources, security};

/// The kernel's maximum length of a host name.
const HOSTNAME_MAX: usize = 64;

/// Converts a RunPodSandbox request.
///
/// The annotation `by` may declare the pod's resources instead of the field.
pub(crate) fn run(
    asked: v1::RunPodSandboxRequest,
    by: Option<&QualifiedName>,
) -> Result<(PodSpec, Warnings), InvalidField> {
    let v1::RunPodSandboxRequest { config, runtime_handler } = asked;
    let at = FieldPath::top("config");
    let mut warnings = Warnings::new();
    let mut spec = spec(at, at.required(config)?, runtime_handler, &mut warnings)?;
    if let Some(name) = by {
        annotation::apply_annotation(at, name, &mut spec, &mut warnings)?;
    }
    Ok((spec, warnings))
}

pub(super) fn spec(
    at: FieldPath<'_>,
    config: v1::PodSandboxConfig,
    handler: String,
    warnings: &mut Warnings,
) -> Result<PodSpec, InvalidField> {
    let v1::PodSandboxConfig {
        metadata,
        hostname,
        log_directory,
        dns_config,
        port_mappings,
        labels,
        annotations,
        linux,
        windows,
        pod_resources,
    } = config;
    at.at("windows").absent(windows)?;
    let meta = meta(at.at("metadata"), metadata)?;
    let above = at.at("linux");
    let v1::LinuxPodSandboxConfig { cgroup_parent, security_context, sysctls, overhead, resources } =
        linux.unwrap_or_default();
    let security = security::pod(above.at("security_context"), security_context)?;
    Ok(PodSpec {
        meta,
        hostname: host_name(at.at("hostname"), hostname)?,
        log_directory: log_dir(at.at("log_directory"), log_directory)?,
        dns: dns_config.map(|dns| resolver(at.at("dns_config"), dns)).transpose()?,
        port_mappings: port_mappings
            .into_iter()
            .enumerate()
            .map(|(index, mapping)| port_mapping(at.at("port_mappings").entry(index), mapping))
            .collect::<Result<_, _>>()?,
        labels,
        bandwidth: bandwidth::of_annotations(at, &annotations)?,
        annotations,
        cgroup_parent: cgroup_path(above.at("cgroup_parent"), &cgroup_parent)?,
        // The runtime checks sysctls, because the allowed ones depend on the pod's namespaces.
        sysctls,
        overhead: resources::pod_limits(above.at("overhead"), overhead)?,
        resources: resources::pod_limits(above.at("resources"), resources)?,
        pod_resources: pod_resources::pod_resource_config(at.at("pod_resources"), pod_resources, warnings)?,
        security,
        handler,
    })
}

pub(super) fn meta(at: FieldPath<'_>, metadata: Option<v1::PodSandboxMetadata>) -> Result<PodMeta, InvalidField> {
    let v1::PodSandboxMetadata { name, uid, namespace, attempt } = at.required(metadata)?;
    Ok(PodMeta {
        name: at.at("name").filled(name)?,
        uid: at.at("uid").filled(uid)?,
        namespace: at.at("namespace").filled(namespace)?,
        attempt,
    })
}

fn host_name(at: FieldPath<'_>, name: String) -> Result<String, InvalidField> {
    if name.len() > HOSTNAME_MAX {
        Err(at.invalid(format_args!("{} bytes: must be at most {HOSTNAME_MAX}", name.len())))
    } else if !name.bytes().all(|b| b.is_ascii_graphic() && b != b'/') {
        Err(at.invalid(format_args!("{name:?} is not a valid host name")))
    } else {
        Ok(name)
    }
}

fn log_dir(at: FieldPath<'_>, dir: String) -> Result<Option<PathBuf>, InvalidField> {
    if dir.is_empty() {
        return Ok(None);
    }
    if dir.split('/').any(|part| part == "..") {
        return Err(at.invalid(format_args!("{dir:?} must not contain \"..\"")));
    }
    Ok(Some(PathBuf::from(at.absolute(dir)?)))
}

/// The values become lines of resolv.conf, where a blank or line break would start another value.
fn resolver(at: FieldPath<'_>, dns: v1::DnsConfig) -> Result<Dns, InvalidField> {
    let v1::DnsConfig { servers, searches, options } = dns;
    let words = |name, list: Vec<String>| -> Result<Vec<String>, InvalidField> {
        match list.iter().position(|word| word.is_empty() || !word.bytes().all(|b| b.is_ascii_graphic())) {
            Some(index) => Err(at
                .at(name)
                .entry(index)
                .invalid(format_args!("{:?} must not be empty or contain blanks", list[index]))),
            None => Ok(list),
        }
    };
    Ok(Dns {
        servers: words("servers", servers)?,
        searches: words("searches", searches)?,
        options: words("options", options)?,
    })
}

fn port_mapping(at: FieldPath<'_>, mapping: v1::PortMapping) -> Result<PortMapping, InvalidField> {
    let v1::PortMapping { protocol, container_port, host_port, host_ip } = mapping;
    let port = |name, value: i32, least: u16| match u16::try_from(value) {
        Ok(port) if port >= least => Ok(port),
        Ok(_) | Err(_) => Err(at.at(name).invalid(format_args!("{value} must be {least} to 65535"))),
    };
    if !host_ip.is_empty() && host_ip.parse::<IpAddr>().is_err() {
        return Err(at.at("host_ip").invalid(format_args!("{host_ip:?} is not an IP address")));
    }
    Ok(PortMapping {
        protocol: match at.at("protocol").known(protocol)? {
            v1::Protocol::Tcp => Protocol::Tcp,
            v1::Protocol::Udp => Protocol::Udp,
            v1::Protocol::Sctp => Protocol::Sctp,
        },
        container_port: port("container_port", container_port, 1)?,
        host_port: port("host_port", host_port, 0)?,
        host_ip,
    })
}

fn cgroup_path(at: FieldPath<'_>, path: &str) -> Result<Option<CgroupPath>, InvalidField> {
    if path.is_empty() {
        return Ok(None);
    }
    let path = CgroupPath::new(path).and_then(CgroupPath::refuse_kernel_files);
    Ok(Some(path.map_err(|problem| at.invalid(problem))?))
}

pub(super) fn meta_to_wire(meta: &PodMeta) -> v1::PodSandboxMetadata {
    let PodMeta { name, uid, namespace, attempt } = meta.clone();
    v1::PodSandboxMetadata { name, uid, namespace, attempt }
}

#[cfg(test)]
#[path = "tests/pod.rs"]
mod tests;
