//! The files that a pod's containers share: who it is on the network, and where to ask for others.

use std::path::Path;

use model::{NsMode, PodSpec};

use crate::store::{DiskError, disk};

/// The name that a pod's containers know themselves by: the one asked for, else the host's.
pub(super) fn hostname(pod: &PodSpec) -> String {
    if pod.hostname.is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        pod.hostname.clone()
    }
}

/// Writes `resolv.conf`, `hostname` and `hosts` into the pod's directory.
pub(super) fn write(dir: &Path, pod: &PodSpec, hostname: &str) -> Result<(), DiskError> {
    let read = |path: &str| std::fs::read(path).unwrap_or_default();
    let resolv = match &pod.dns {
        Some(dns) if !(dns.servers.is_empty() && dns.searches.is_empty() && dns.options.is_empty()) => {
            let mut text = String::new();
            dns.servers.iter().for_each(|s| text.push_str(&format!("nameserver {s}\n")));
            if !dns.searches.is_empty() {
                text.push_str(&format!("search {}\n", dns.searches.join(" ")));
            }
            if !dns.options.is_empty() {
                text.push_str(&format!("options {}\n", dns.options.join(" ")));
            }
            text.into_bytes()
        }
        // One that says nothing is no wish either.
        Some(_) | None => read("/etc/resolv.conf"),
    };
    let hosts = if pod.security.namespaces.network == NsMode::Node {
        read("/etc/hosts")
    } else {
        let local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
        format!("{local}127.0.0.1\t{hostname}\n").into_bytes()
    };
    disk::write(&dir.join("resolv.conf"), &resolv)?;
    disk::write(&dir.join("hostname"), format!("{hostname}\n").as_bytes())?;
    disk::write(&dir.join("hosts"), &hosts)
}
