//! Writes the sysctls of the network, each only if its value differs.

use std::path::PathBuf;
use std::{fs, io};

/// A setting that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("setting sysctl {} to {value}", path.display())]
pub struct SysctlError {
    pub path: PathBuf,
    pub value: &'static str,
    pub source: io::Error,
}

/// `/proc/sys/net` belongs to the calling thread's network namespace.
const NET: &str = "/proc/sys/net";

/// Enables IPv4 forwarding on the host.
pub(super) fn forward_ipv4() -> Result<(), SysctlError> {
    set("ipv4/ip_forward", "1")
}

/// Enables IPv6 forwarding on the host.
///
/// With forwarding the kernel ignores router advertisements and may lose the default route. So
/// interfaces that accepted them continue to accept them.
pub(super) fn forward_ipv6() -> Result<(), SysctlError> {
    const ALL: &str = "ipv6/conf/all/forwarding";
    if has(ALL, "1") {
        return Ok(());
    }
    let interfaces = fs::read_dir(format!("{NET}/ipv6/conf")).into_iter().flatten().flatten();
    for interface in interfaces.filter_map(|entry| entry.file_name().into_string().ok()) {
        let listens = format!("ipv6/conf/{interface}/accept_ra");
        if !matches!(interface.as_str(), "all" | "default") && has(&listens, "1") {
            set(&listens, "2")?;
        }
    }
    set(ALL, "1")
}

/// Prepares an interface on the bridge, the bridge itself, or ("default") all later interfaces of a
/// new namespace. Router advertisements of pods are ignored (CVE-2020-13401, CVE-2020-10749).
/// Duplicate address detection, which takes 1 to 2 s, is off: the bridge allocates all addresses.
pub(super) fn disable_ra_and_dad(interface: &str) -> Result<(), SysctlError> {
    where_ipv6(set(&format!("ipv6/conf/{interface}/accept_ra"), "0"))?;
    where_ipv6(set(&format!("ipv6/conf/{interface}/accept_dad"), "0"))
}

/// Enables IPv6, also if it is disabled for new interfaces.
pub(super) fn enable_ipv6(interface: &str) -> Result<(), SysctlError> {
    set(&format!("ipv6/conf/{interface}/disable_ipv6"), "0")
}

/// Disables IPv6 and so removes the link-local address, which would reach services of the host.
pub(super) fn disable_ipv6(interface: &str) -> Result<(), SysctlError> {
    where_ipv6(set(&format!("ipv6/conf/{interface}/disable_ipv6"), "1"))
}

/// Enables strict reverse path filtering.
pub(super) fn check_sources(interface: &str) -> Result<(), SysctlError> {
    set(&format!("ipv4/conf/{interface}/rp_filter"), "1")
}

/// Disables the link-local address of an interface. The host needs none for pods with permanent
/// neighbours, and without one the kernel sends pods no redirects.
pub(super) fn no_link_local(interface: &str) -> Result<(), SysctlError> {
    set(&format!("ipv6/conf/{interface}/addr_gen_mode"), "1")
}

/// Allows packets between the host's loopback and pods. The guard chain keeps pods from using it.
pub(super) fn route_localnet(bridge: &str) -> Result<(), SysctlError> {
    set(&format!("ipv4/conf/{bridge}/route_localnet"), "1")
}

/// Ignores a missing sysctl on kernels without IPv6.
fn where_ipv6(outcome: Result<(), SysctlError>) -> Result<(), SysctlError> {
    match outcome {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn has(name: &str, value: &str) -> bool {
    fs::read_to_string(format!("{NET}/{name}")).is_ok_and(|now| now.trim_end() == value)
}

fn set(name: &str, value: &'static str) -> Result<(), SysctlError> {
    if has(name, value) {
        return Ok(());
    }
    let path = PathBuf::from(format!("{NET}/{name}"));
    fs::write(&path, value).map_err(|source| SysctlError { path, value, source })
}
