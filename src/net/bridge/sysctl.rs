//! Settings of the kernel that the network needs. Each is written only where it is not so already.

use std::path::PathBuf;
use std::{fs, io};

/// A setting that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("setting {} to {value}", path.display())]
pub struct SysctlError {
    pub path: PathBuf,
    pub value: &'static str,
    pub source: io::Error,
}

/// `/proc/sys/net` is that of the calling thread's network namespace.
const NET: &str = "/proc/sys/net";

/// Lets the host forward IPv4.
pub(super) fn forward_ipv4() -> Result<(), SysctlError> {
    set("ipv4/ip_forward", "1")
}

/// Lets the host forward IPv6.
///
/// A host that forwards no longer listens to routers, and might lose its own default route. So interfaces that did listen
/// are told to go on.
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

/// Prepares an interface on the bridge, the bridge itself, or in a new namespace all to come ("default").
///
/// Nobody there can make himself a router for the host or for other pods: these were CVE-2020-13401 and CVE-2020-10749. And no
/// address is looked for at others before it is used: they are all ours, and looking takes a second or two.
pub(super) fn disable_ra_and_dad(interface: &str) -> Result<(), SysctlError> {
    where_ipv6(set(&format!("ipv6/conf/{interface}/accept_ra"), "0"))?;
    where_ipv6(set(&format!("ipv6/conf/{interface}/accept_dad"), "0"))
}

/// IPv6 is on, also where it is off for new interfaces.
pub(super) fn enable_ipv6(interface: &str) -> Result<(), SysctlError> {
    set(&format!("ipv6/conf/{interface}/disable_ipv6"), "0")
}

/// No packet of IPv6 gets in or out, and no address is left: there would be a link-local one that reaches services of the host.
pub(super) fn disable_ipv6(interface: &str) -> Result<(), SysctlError> {
    where_ipv6(set(&format!("ipv6/conf/{interface}/disable_ipv6"), "1"))
}

/// Drops packets that come from addresses that are not behind the interface.
pub(super) fn check_sources(interface: &str) -> Result<(), SysctlError> {
    set(&format!("ipv4/conf/{interface}/rp_filter"), "1")
}

/// Gives an interface no link-local address. All that the host needs to know of pods it knows, and without one the kernel tells
/// no pod of a shorter way, for which it would look for a neighbour.
pub(super) fn no_link_local(interface: &str) -> Result<(), SysctlError> {
    set(&format!("ipv6/conf/{interface}/addr_gen_mode"), "1")
}

/// Lets the bridge carry what the host's loopback sends to pods. The table keeps pods from using it.
pub(super) fn route_localnet(bridge: &str) -> Result<(), SysctlError> {
    set(&format!("ipv4/conf/{bridge}/route_localnet"), "1")
}

/// A kernel without IPv6 has nobody to ignore.
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
