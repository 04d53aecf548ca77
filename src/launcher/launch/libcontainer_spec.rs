//! Divides an OCI configuration between libcontainer and the stages of crisp.
//!
//! libcontainer creates the namespaces, joins the cgroups, mounts `proc`, `sysfs`, `/dev` and
//! similar, creates the device nodes and enters the root. Everything that it does wrongly or not at
//! all is removed from its configuration and done by crisp: mounts ([`crate::rootfs::mounts`]),
//! masked and read-only paths ([`crate::rootfs::masked_paths`]), user, groups, capabilities, limits
//! and seccomp ([`crate::process::execve`]). Until then the process is root with all capabilities
//! of the shim.

use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capabilities, Linux, LinuxBuilder, LinuxCapabilitiesBuilder, Mount, ProcessBuilder, RootBuilder, Spec, SpecBuilder,
    UserBuilder,
};

/// A configuration without a part that crisp always writes.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("the container's config.json, which crisp wrote, has no {0}; please report this bug")]
    Lacks(&'static str),
    #[error("building the container's configuration for libcontainer")]
    Build(#[from] OciSpecError),
}

/// The HOME of libcontainer's own process. Without it, libcontainer queries the C library for the
/// user's, in the container and with all rights: that reads the image's `nsswitch.conf` and loads
/// the library it names. No program gets this value.
const HOME: &str = "HOME=/";

/// The mounts that libcontainer creates correctly: those that need the container's own namespaces.
fn is_made_by_libcontainer(mount: &Mount) -> bool {
    match mount.typ().as_deref() {
        Some("proc" | "sysfs" | "devpts" | "mqueue") => true,
        Some("tmpfs") => mount.destination() == Path::new("/dev"),
        _ => false,
    }
}

/// Returns the mounts for [`crate::rootfs::mounts`], in their order.
pub(crate) fn own_mounts(spec: &Spec) -> Vec<Mount> {
    spec.mounts().iter().flatten().filter(|m| !is_made_by_libcontainer(m)).cloned().collect()
}

/// Returns the configuration for libcontainer. `held` are the capabilities of this process.
pub(crate) fn for_libcontainer(spec: &Spec, rootfs: PathBuf, held: Capabilities) -> Result<Spec, SpecError> {
    let linux = spec.linux().as_ref().ok_or(SpecError::Lacks("linux section"))?;
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(held.clone())
        .effective(held.clone())
        .permitted(held)
        .inheritable(Capabilities::new())
        .ambient(Capabilities::new())
        .build()?;
    let process = ProcessBuilder::default()
        .cwd("/")
        .args(vec!["crisp".to_owned()])
        .env(vec![HOME.to_owned()])
        .user(UserBuilder::default().uid(0u32).gid(0u32).build()?)
        .capabilities(capabilities)
        .no_new_privileges(false)
        .build()?;
    let mut process = process;
    process.set_rlimits(None);
    let label = linux.mount_label().as_deref();
    let mounts = spec.mounts().iter().flatten().filter(|m| is_made_by_libcontainer(m));
    let mounts: Vec<Mount> = mounts.map(|mount| labelled(mount.clone(), label)).collect();
    let mut slim = SpecBuilder::default()
        .version(spec.version().clone())
        .root(RootBuilder::default().path(rootfs).readonly(false).build()?)
        .process(process)
        .mounts(mounts)
        .linux(slim_linux(linux)?)
        .build()?;
    slim.set_hostname(None);
    slim.set_annotations(spec.annotations().clone());
    Ok(slim)
}

/// As a mount option: libcontainer would also label message queues, whose file system all
/// containers of a pod share.
fn labelled(mut mount: Mount, label: Option<&str>) -> Mount {
    if let (Some("tmpfs" | "devpts"), Some(label)) = (mount.typ().as_deref(), label) {
        let mut options = mount.options().clone().unwrap_or_default();
        options.push(format!("context={label}"));
        mount.set_options(Some(options));
    }
    mount
}

/// Keeps namespaces, the cgroup to join and devices; removes limits, seccomp, labels and masked
/// paths.
fn slim_linux(linux: &Linux) -> Result<Linux, SpecError> {
    let mut slim = LinuxBuilder::default().build()?;
    slim.set_namespaces(linux.namespaces().clone());
    slim.set_cgroups_path(linux.cgroups_path().clone());
    slim.set_devices(linux.devices().clone());
    slim.set_masked_paths(None);
    slim.set_readonly_paths(None);
    slim.set_uid_mappings(linux.uid_mappings().clone());
    slim.set_gid_mappings(linux.gid_mappings().clone());
    slim.set_resources(None);
    slim.set_seccomp(None);
    Ok(slim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libcontainer_gets_only_what_it_does_correctly() {
        let spec: Spec = serde_json::from_str(
            r#"{"ociVersion":"1.2.0","hostname":"pod","root":{"path":"rootfs","readonly":true},
            "process":{"cwd":"/app","args":["a"],"env":["A=b"],"user":{"uid":1000,"gid":1000,"additionalGids":[5]},
              "noNewPrivileges":true,"oomScoreAdj":-997,"selinuxLabel":"l","rlimits":[{"type":"RLIMIT_NOFILE","hard":9,"soft":9}]},
            "mounts":[{"destination":"/proc","type":"proc"},{"destination":"/dev","type":"tmpfs","options":["nosuid"]},
              {"destination":"/sys/fs/cgroup","type":"cgroup"},{"destination":"/data","type":"bind","source":"/srv"},
              {"destination":"/cache","type":"tmpfs"}],
            "linux":{"resources":{"memory":{"limit":1}},"rootfsPropagation":"rslave","maskedPaths":["/proc/kcore"],
              "mountLabel":"u:o:f:s0:c1,c2","cgroupsPath":"/pod/c","namespaces":[{"type":"mount"}]}}"#,
        )
        .unwrap();
        let slim = for_libcontainer(&spec, "/r".into(), Capabilities::new()).unwrap();
        let process = slim.process().as_ref().unwrap();
        assert_eq!((process.user().uid(), process.oom_score_adj(), process.selinux_label()), (0, None, &None));
        assert_eq!(process.env().as_deref(), Some(&[HOME.to_owned()][..]), "libcontainer looks for no home");
        assert!(process.rlimits().is_none() && process.no_new_privileges() == Some(false));
        let linux = slim.linux().as_ref().unwrap();
        assert!(linux.resources().is_none() && linux.rootfs_propagation().is_none());
        assert_eq!((linux.masked_paths(), linux.readonly_paths()), (&None, &None));
        let kept: Vec<_> = slim.mounts().iter().flatten().map(|m| m.destination().clone()).collect();
        assert_eq!(kept, [Path::new("/proc"), Path::new("/dev")]);
        assert_eq!(linux.mount_label(), &None);
        let options: Vec<_> = slim.mounts().iter().flatten().map(|m| m.options().clone().unwrap_or_default()).collect();
        assert_eq!(options[1], ["nosuid", "context=u:o:f:s0:c1,c2"]);
        assert!(!options[0].iter().any(|option| option.starts_with("context")));
        let ours: Vec<_> = own_mounts(&spec).iter().map(|m| m.destination().clone()).collect();
        assert_eq!(ours, [Path::new("/sys/fs/cgroup"), Path::new("/data"), Path::new("/cache")]);
        assert_eq!(slim.root().as_ref().unwrap().readonly(), Some(false));
    }
}
