//! Builds the list of mounts of a container.

use std::path::Path;

use model::{MountSource, Propagation, UserNs};
use oci_spec::runtime::{Mount, MountBuilder};

use super::{OciError, RESIZE_NOTICE, SpecInputs, id_mapping};

/// Returns the kernel's file systems, then all other mounts by depth, so that a volume does not hide
/// a mount below it. A mount of the request replaces a default mount at the same path.
pub(super) fn mounts(given: &SpecInputs<'_>) -> Result<Vec<Mount>, OciError> {
    let mut ours = of_pod(given)?;
    let mut own: Vec<Mount> = Vec::new();
    let ids = given.pod.spec.security.namespaces.user.as_ref();
    for (index, (asked, source)) in given.container.mounts.iter().zip(&given.mounts.sources).enumerate() {
        let destination = Path::new(&asked.container_path);
        if destination == Path::new("/") || destination == Path::new("/proc") {
            return Err(OciError::MountOver(asked.container_path.clone()));
        }
        if ids.is_some() && asked.propagation == Propagation::Bidirectional {
            return Err(OciError::Bidirectional(index));
        }
        let of_mount = (!asked.uid_mappings.is_empty())
            .then(|| UserNs { uids: asked.uid_mappings.clone(), gids: asked.gid_mappings.clone() });
        ours.retain(|m| m.destination() != destination);
        own.push(match asked.source {
            MountSource::Host(_) => id_mapping::shown(bind(asked, source)?, of_mount.as_ref())?,
            // Without noexec, as Kubernetes specifies. Its files have the container's ids.
            MountSource::Image { .. } => {
                let shown = mount(destination, "image", source, &with_options(asked, &["ro", "nosuid", "nodev"]))?;
                id_mapping::shown(shown, of_mount.as_ref().or(ids))?
            }
        });
    }
    for volume in &given.mounts.volumes {
        let volume = mount(&volume.path, "bind", &volume.directory, &["rbind", "rw", "rprivate"])?;
        ours.push(id_mapping::shown(volume, ids)?);
    }
    // A mount of a CDI device replaces any other at its path, as in containerd and CRI-O.
    for edit in &given.devices.edits.mounts {
        ours.retain(|m| m.destination() != edit.destination());
        own.retain(|m| m.destination() != edit.destination());
        let is_shared = |option: &String| matches!(option.as_str(), "shared" | "rshared");
        if ids.is_some() && edit.options().iter().flatten().any(is_shared) {
            return Err(OciError::CdiShared(edit.destination().clone()));
        }
        let binds = edit.typ().as_deref() == Some("bind");
        own.push(id_mapping::shown(edit.clone(), ids.filter(|_| binds))?);
    }
    // A stable sort keeps the requested order among mounts of the same depth.
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
    let options = with_options(asked, &["rbind", access, propagation]);
    mount(Path::new(&asked.container_path), "bind", source, &options)
}

/// Adds the requested options in their recursive form, since plain `noexec` would not apply to mounts
/// below the volume.
fn with_options<'a>(asked: &model::Mount, ours: &[&'a str]) -> Vec<&'a str> {
    const DEEP: [&str; 7] = ["rnoexec", "rnodev", "rnosuid", "rnoatime", "rnodiratime", "rrelatime", "rstrictatime"];
    let deep = |option: &String| DEEP.iter().find(|deep| deep[1..] == **option);
    ours.iter().chain(asked.options.iter().filter_map(deep)).copied().collect()
}

/// The maximum number of open pseudo terminals of a container. By default the kernel allows 3072 for
/// all containers of a node (`kernel.pty.max` minus `kernel.pty.reserve`): this is a sixth of them.
const DEVPTS_MAX: &str = "max=512";

fn kernel(given: &SpecInputs<'_>) -> Result<Vec<Mount>, OciError> {
    let mut devpts = vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", DEVPTS_MAX];
    if given.pod.spec.security.namespaces.user.as_ref().is_none_or(|ids| ids.gid(5).is_some()) {
        devpts.push("gid=5");
    }
    Ok(vec![
        simple("/proc", "proc", &["nosuid", "noexec", "nodev"])?,
        simple("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"])?,
        simple("/dev/pts", "devpts", &devpts)?,
        simple("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"])?,
        simple("/sys", "sysfs", &["nosuid", "noexec", "nodev", kernel_access(given)])?,
    ])
}

fn kernel_access(given: &SpecInputs<'_>) -> &'static str {
    if given.container.security.privileged { "rw" } else { "ro" }
}

/// Returns the mounts of the container's cgroups and of the pod's files.
fn of_pod(given: &SpecInputs<'_>) -> Result<Vec<Mount>, OciError> {
    let cgroup = ["nosuid", "noexec", "nodev", "relatime", kernel_access(given)];
    let mut all = vec![simple("/sys/fs/cgroup", "cgroup", &cgroup)?];
    // A pod in the host's IPC namespace uses the host's /dev/shm.
    let shm = given.pod.sandbox.shm.as_deref().unwrap_or(Path::new("/dev/shm"));
    all.push(mount(Path::new("/dev/shm"), "bind", shm, &["rbind", "rw", "rprivate", "nosuid", "nodev", "noexec"])?);
    let access = if given.container.security.readonly_rootfs { "ro" } else { "rw" };
    for name in ["resolv.conf", "hostname", "hosts"] {
        let file = given.pod.files.join(name);
        // The container may write these files of the host, so nosuid, nodev and noexec.
        let options = ["rbind", "rprivate", "nosuid", "nodev", "noexec", access];
        all.push(mount(&Path::new("/etc").join(name), "bind", &file, &options)?);
    }
    if let Some(directory) = &given.mounts.resize_notice {
        let options = ["bind", "rprivate", "nosuid", "nodev", "noexec", "ro"];
        all.push(mount(Path::new(RESIZE_NOTICE), "bind", directory, &options)?);
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
