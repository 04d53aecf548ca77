//! Joining the processes of another container of the pod.
//!
//! The daemon names them by the number of that container's first process. Should that end meanwhile, the number may become
//! another's, of another pod or of the host: so the namespace is opened first, and only then it is asked whose it was.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{LinuxNamespaceType, Spec};

/// Lets `spec` name the PID namespace of another container by a descriptor, which is to be held until it is joined. All first
/// processes are children of `shim`, and nobody else's are.
pub(crate) fn join(spec: &mut Spec, shim: i32) -> io::Result<Option<OwnedFd>> {
    let namespaces = spec.linux_mut().as_mut().and_then(|linux| linux.namespaces_mut().as_mut());
    let mut pids = namespaces.into_iter().flatten().filter(|one| one.typ() == LinuxNamespaceType::Pid);
    let Some((namespace, pid)) = pids.find_map(|one| {
        let pid = process(one.path().as_deref()?)?;
        Some((one, pid))
    }) else {
        return Ok(None);
    };
    let held = File::open(namespace.path().as_deref().unwrap_or(Path::new("")))?;
    if crate::process::process_tree::parent(pid) != Some(shim) {
        return Err(io::Error::other("its first process has ended"));
    }
    namespace.set_path(Some(PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()))));
    Ok(Some(held.into()))
}

/// The process that a path such as `/proc/7/ns/pid` names.
fn process(path: &Path) -> Option<i32> {
    path.to_str()?.strip_prefix("/proc/")?.strip_suffix("/ns/pid")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joining(path: &str) -> Spec {
        let text = format!(
            r#"{{"ociVersion":"1.2.0","linux":{{"namespaces":[{{"type":"mount"}},{{"type":"pid","path":"{path}"}}]}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn path(spec: &Spec) -> PathBuf {
        spec.linux().as_ref().unwrap().namespaces().as_ref().unwrap()[1].path().clone().unwrap()
    }

    #[test]
    fn only_a_child_of_the_shim_is_joined() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let named = format!("/proc/{}/ns/pid", child.id());
        let mut spec = joining(&named);
        let held = join(&mut spec, own).unwrap().unwrap();
        assert_eq!(path(&spec), Path::new(&format!("/proc/self/fd/{}", held.as_raw_fd())));
        assert!(join(&mut joining(&format!("/proc/{own}/ns/pid")), own).is_err(), "not a child of its own");
        assert!(join(&mut joining(&named), own + 1).is_err(), "another's child");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(join(&mut joining(&named), own).is_err(), "it has ended");
        let mut pods = joining("/proc/7/fd/9");
        assert!(join(&mut pods, own).unwrap().is_none(), "the pod's is held by the shim itself");
        assert_eq!(path(&pods), Path::new("/proc/7/fd/9"));
    }
}
