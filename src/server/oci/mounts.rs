//! What a container finds mounted.

use std::path::Path;

use model::{MountSource, Propagation};
use oci_spec::runtime::{Mount, MountBuilder};

use super::{Given, OciError};

/// The kernel's file systems, which are always there, then all else from the top down: what is mounted in a volume is
/// not hidden by it. A mount of the container's replaces one of ours at the same place.
pub(super) fn mounts(given: &Given<'_>) -> Result<Vec<Mount>, OciError> {
    let mut ours = of_pod(given)?;
    let mut own = Vec::new();
    for (asked, source) in given.container.mounts.iter().zip(given.sources) {
        let destination = Path::new(&asked.container_path);
        if destination == Path::new("/") || destination == Path::new("/proc") {
            return Err(OciError::MountOver(asked.container_path.clone()));
        }
        ours.retain(|m| m.destination() != destination);
        own.push(match asked.source {
            MountSource::Host(_) => bind(asked, source)?,
            // Programs may be run from it, as Kubernetes has it.
            MountSource::Image { .. } => mount(destination, "image", source, &["ro", "nosuid", "nodev"])?,
        });
    }
    for volume in given.volumes {
        ours.push(mount(&volume.path, "bind", &volume.directory, &["rbind", "rw", "rprivate"])?);
    }
    // Stable: among mounts of the same depth the order asked for stays.
    ours.extend(own);
    ours.sort_by_key(|m| m.destination().components().count());
    let mut all = kernel(given)?;
    all.extend(ours);
    Ok(all)
}

fn bind(asked: &model::Mount, source: &Path) -> Result<Mount, OciError> {
    let access = match (asked.readonly, asked.recursive_read_only) {
        (true, true) => "rro",
        (true, false) => "ro",
        (false, _) => "rw",
    };
    let propagation = match asked.propagation {
        Propagation::Private => "rprivate",
        Propagation::HostToContainer => "rslave",
        Propagation::Bidirectional => "rshared",
    };
    mount(Path::new(&asked.container_path), "bind", source, &["rbind", access, propagation])
}

fn kernel(given: &Given<'_>) -> Result<Vec<Mount>, OciError> {
    let devpts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
    Ok(vec![
        simple("/proc", "proc", &["nosuid", "noexec", "nodev"])?,
        simple("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"])?,
        simple("/dev/pts", "devpts", &devpts)?,
        simple("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"])?,
        simple("/sys", "sysfs", &["nosuid", "noexec", "nodev", kernel_access(given)])?,
    ])
}

fn kernel_access(given: &Given<'_>) -> &'static str {
    if given.container.security.privileged { "rw" } else { "ro" }
}

/// The container's cgroups and the pod's files.
fn of_pod(given: &Given<'_>) -> Result<Vec<Mount>, OciError> {
    let cgroup = ["nosuid", "noexec", "nodev", "relatime", kernel_access(given)];
    let mut all = vec![simple("/sys/fs/cgroup", "cgroup", &cgroup)?];
    // With the host's IPC namespace goes the host's shared memory.
    let shm = given.held.shm.as_deref().unwrap_or(Path::new("/dev/shm"));
    all.push(mount(Path::new("/dev/shm"), "bind", shm, &["rbind", "rw", "rprivate", "nosuid", "nodev", "noexec"])?);
    let access = if given.container.security.readonly_rootfs { "ro" } else { "rw" };
    for name in ["resolv.conf", "hostname", "hosts"] {
        let file = given.pod_dir.join(name);
        all.push(mount(&Path::new("/etc").join(name), "bind", &file, &["rbind", "rprivate", access])?);
    }
    Ok(all)
}

fn simple(path: &str, kind: &str, options: &[&str]) -> Result<Mount, OciError> {
    mount(Path::new(path), kind, Path::new(kind), options)
}

fn mount(destination: &Path, kind: &str, source: &Path, options: &[&str]) -> Result<Mount, OciError> {
    Ok(MountBuilder::default()
        .destination(destination)
        .typ(kind)
        .source(source)
        .options(options.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>())
        .build()?)
}
