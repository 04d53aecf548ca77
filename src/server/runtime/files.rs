//! The files that a pod's containers share: who it is on the network, and where to ask for others.

use std::path::Path;

use model::{NsMode, PodSpec};

use crate::store::{DiskError, disk};

/// Writes `resolv.conf`, `hostname` and `hosts` into the pod's directory.
pub(super) fn write(dir: &Path, pod: &PodSpec) -> Result<(), DiskError> {
    let read = |path: &str| std::fs::read(path).unwrap_or_default();
    let resolv = match &pod.dns {
        Some(dns) => {
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
        None => read("/etc/resolv.conf"),
    };
    let hosts = if pod.security.namespaces.network == NsMode::Node {
        read("/etc/hosts")
    } else {
        let own = if pod.hostname.is_empty() { String::new() } else { format!("127.0.0.1\t{}\n", pod.hostname) };
        format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{own}").into_bytes()
    };
    disk::write(&dir.join("resolv.conf"), &resolv)?;
    disk::write(&dir.join("hostname"), format!("{}\n", pod.hostname).as_bytes())?;
    disk::write(&dir.join("hosts"), &hosts)
}
