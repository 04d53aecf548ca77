//! Names of systemd units, and their cgroups.

use model::{CgroupPath, InvalidCgroupPath};

/// The prefix of a container's scope. The kubelet finds the id after the last dash.
const PREFIX: &str = "crisp-";
/// systemd's limit for the length of a unit name.
const NAME_MAX: usize = 255;

/// A cgroup that systemd manages as a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A scope, with processes that systemd did not start: a container.
    Scope { name: String, slice: String },
    /// A slice, without processes of its own: a pod.
    Slice { name: String },
}

impl Unit {
    /// Returns the unit of this cgroup; `None` if its path cannot be that of a unit.
    pub(crate) fn of(path: &CgroupPath) -> Option<Self> {
        let (above, name) = path.as_str().rsplit_once('/')?;
        if name.ends_with(".slice") {
            return (slice_path(name)? == path.as_str()).then(|| Self::Slice { name: name.to_owned() });
        }
        let slice = above.rsplit('/').next()?;
        let in_slice = is_name(name) && name.ends_with(".scope") && slice_path(slice)? == above;
        in_slice.then(|| Self::Scope { name: name.to_owned(), slice: slice.to_owned() })
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Scope { name, .. } | Self::Slice { name } => name,
        }
    }

    /// The D-Bus object of the unit: characters other than letters and digits are written as `_` and their code.
    pub(super) fn object(&self) -> String {
        let mut path = "/org/freedesktop/systemd1/unit/".to_owned();
        for (at, byte) in self.name().bytes().enumerate() {
            // Not every object path may begin with a digit, so systemd encodes that one too.
            if byte.is_ascii_alphabetic() || (byte.is_ascii_digit() && at > 0) {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("_{byte:02x}"));
            }
        }
        path
    }
}

/// The slice at the end of `path`: given as a whole path, as the kubelet does, or by its name
/// alone.
pub fn slice(path: &CgroupPath) -> Result<CgroupPath, InvalidCgroupPath> {
    let refused = |fault| InvalidCgroupPath::new(path.as_str(), fault);
    let (above, name) = path.as_str().rsplit_once('/').unwrap_or_default();
    if !name.ends_with(".slice") {
        return Err(refused("does not end in the name of a slice, which the systemd driver needs"));
    }
    let whole = slice_path(name).ok_or_else(|| refused("ends in no name that systemd takes for a slice"))?;
    if !above.is_empty() && whole != path.as_str() {
        return Err(refused("is not where systemd puts a slice of this name"));
    }
    CgroupPath::new(&whole)
}

/// The slice of a pod in the slice `parent`.
pub(crate) fn pod(parent: &CgroupPath, id: &str) -> Result<CgroupPath, InvalidCgroupPath> {
    let parent = slice(parent)?;
    let name = parent.as_str().rsplit('/').next().unwrap_or_default();
    let stem = name.strip_suffix(".slice").unwrap_or(name);
    slice(&parent.join(&format!("{stem}-pod{id}.slice"))?)
}

/// The name of a container's cgroup in its pod's slice.
pub(crate) fn scope(id: &str) -> String {
    format!("{PREFIX}{id}.scope")
}

/// The path of a slice: each dash in its name is a level. `None` if the name is invalid; the root
/// slice `-.slice` is not accepted.
/// slice `-.slice` is not accepted.
fn slice_path(name: &str) -> Option<String> {
    let stem = name.strip_suffix(".slice")?;
    if !is_name(name) || stem.split('-').any(str::is_empty) {
        return None;
    }
    let steps = stem.match_indices('-').map(|(at, _)| &stem[..at]).chain([stem]);
    Some(steps.map(|step| format!("/{step}.slice")).collect())
}

/// Returns whether systemd accepts this as the name of a unit.
fn is_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\".contains(&byte);
    name.len() <= NAME_MAX && name.bytes().all(valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice";

    fn path(text: &str) -> CgroupPath {
        CgroupPath::new(text).unwrap()
    }

    #[test]
    fn the_kubelets_parent_is_its_last_slice() {
        assert_eq!(slice(&path(POD)).unwrap(), path(POD));
        assert_eq!(slice(&path("/kubepods-burstable-pod12_34.slice")).unwrap(), path(POD));
        assert_eq!(slice(&path("/a.slice")).unwrap(), path("/a.slice"));
    }

    #[test]
    fn invalid_or_foreign_slices_are_rejected_with_the_reason() {
        for (bad, fault) in [
            ("/kubepods/pod1", "does not end in the name of a slice"),
            ("/kubepods.slice/pod1", "does not end in the name of a slice"),
            ("/a.slice/x.scope", "does not end in the name of a slice"),
            ("/-.slice", "no name that systemd takes"),
            ("/a--b.slice", "no name that systemd takes"),
            ("/-a.slice", "no name that systemd takes"),
            ("/a-.slice", "no name that systemd takes"),
            ("/.slice", "no name that systemd takes"),
            ("/a b.slice", "no name that systemd takes"),
            ("/kubepods/kubepods-pod1.slice", "not where systemd puts"),
            ("/a.slice/b.slice", "not where systemd puts"),
        ] {
            let refusal = slice(&path(bad)).unwrap_err().to_string();
            assert!(refusal.contains(fault), "{bad}: {refusal}");
        }
        let long = format!("/{}.slice", "x".repeat(249));
        assert!(slice(&path(&long)).is_ok());
    }

    #[test]
    fn a_containers_scope_is_in_its_pods_slice() {
        let container = path(POD).join(&scope("0a1b")).unwrap();
        let unit = Unit::of(&container).unwrap();
        assert_eq!(
            unit,
            Unit::Scope { name: "crisp-0a1b.scope".into(), slice: "kubepods-burstable-pod12_34.slice".into() }
        );
        assert_eq!(unit.object(), "/org/freedesktop/systemd1/unit/crisp_2d0a1b_2escope");
    }

    #[test]
    fn a_pod_has_a_slice_in_the_slice_of_all_pods() {
        let pod = pod(&path("/crisp.slice"), "0a1b").unwrap();
        assert_eq!(pod, path("/crisp.slice/crisp-pod0a1b.slice"));
        assert_eq!(Unit::of(&pod), Some(Unit::Slice { name: "crisp-pod0a1b.slice".into() }));
        assert!(super::pod(&path("/crisp"), "0a1b").is_err());
    }

    #[test]
    fn a_cgroup_that_systemd_did_not_create_is_not_a_unit() {
        for other in
            ["/crisp/pod1/c1", "/kubepods/pod1/crisp-1.scope", "/crisp-1.scope", "/a.slice/b.slice", "/a.service"]
        {
            assert_eq!(Unit::of(&path(other)), None, "{other}");
        }
    }

    #[test]
    fn an_object_path_has_only_permitted_characters() {
        let unit = Unit::Slice { name: "1a\\x2d_b.slice".into() };
        assert_eq!(unit.object(), "/org/freedesktop/systemd1/unit/_31a_5cx2d_5fb_2eslice");
    }
}
