//! The files in `/etc` that a pod's containers share.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use model::{NsMode, PodSpec};
use nix::mount::{MsFlags, mount};
use safe_fs::FileError;
use security::{Labels, relabel};

/// Their directory in the pod's directory, with a separate file system: containers may write them,
/// and would fill the one with the records of all pods.
pub(crate) const DIR: &str = "etc";
/// The size of that file system.
const ROOM: usize = 1 << 20;
const NAMES: [&str; 3] = ["resolv.conf", "hostname", "hosts"];

/// Returns the host name of a pod's containers: the requested one, else the host's.
pub(crate) fn hostname(pod: &PodSpec) -> String {
    if pod.hostname.is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        pod.hostname.clone()
    }
}

/// Writes `resolv.conf`, `hostname` and `hosts` into [`DIR`] of the pod's directory.
pub(crate) fn write(
    dir: &Path,
    pod: &PodSpec,
    hostname: &str,
    ips: &[IpAddr],
    selinux: Option<&Labels>,
) -> Result<(), FileError> {
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
        // An empty configuration counts as none.
        Some(_) | None => read("/etc/resolv.conf"),
    };
    let hosts = if pod.security.namespaces.network == NsMode::Node {
        read("/etc/hosts")
    } else {
        let mut text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
        // With an address of the pod, if it has one.
        let own = if ips.is_empty() { &[IpAddr::V4(Ipv4Addr::LOCALHOST)] } else { ips };
        own.iter().for_each(|ip| text.push_str(&format!("{ip}\t{hostname}\n")));
        text.into_bytes()
    };
    let above = dir;
    let dir = dir.join(DIR);
    make_room(&dir, ROOM + resolv.len() + hosts.len())?;
    // Owned by the containers' root: tmpfs supports idmapped mounts only since Linux 6.3.
    let ids = pod.security.namespaces.user.as_ref();
    let owner = ids.and_then(|ids| ids.uid(0).zip(ids.gid(0)));
    for (name, bytes) in NAMES.into_iter().zip([&resolv[..], format!("{hostname}\n").as_bytes(), &hosts]) {
        let path = dir.join(name);
        safe_fs::write(&path, bytes)?;
        if let Some((uid, gid)) = owner {
            let owned = std::os::unix::fs::chown(&path, Some(uid), Some(gid));
            owned.map_err(|source| FileError::new("writing", path, source))?;
        }
    }
    selinux.map_or(Ok(()), |labels| label(above, &labels.mount))
}

/// Relabels the files in the pod's directory.
pub(crate) fn label(dir: &Path, label: &str) -> Result<(), FileError> {
    NAMES.into_iter().try_for_each(|name| {
        let path = dir.join(DIR).join(name);
        relabel(&path, label).map(drop).map_err(|e| FileError::new("writing", path, std::io::Error::other(e)))
    })
}

/// Unmounted by [`crate::runtime::cleanup::unmount_all`].
fn make_room(dir: &Path, size: usize) -> Result<(), FileError> {
    safe_fs::private_dir(dir)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let options = format!("mode=700,nr_inodes=16,size={size}");
    mount(Some("pod"), dir, Some("tmpfs"), flags, Some(options.as_str()))
        .map_err(|errno| FileError::new("mounting a file system at", dir, errno))
}
