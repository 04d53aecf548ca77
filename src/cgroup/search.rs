//! Finds cgroups by an id alone.

use std::collections::{BTreeSet, VecDeque};

use crate::cgroupfs::children;
use crate::layout::Layout;
use model::CgroupPath;

/// Maximum cgroups read in one hierarchy: a container may create any number.
const SEEN_MAX: usize = 100_000;

impl Layout {
    /// Returns every cgroup with `id` in its name, in any tree, without their descendants. Reads
    /// all cgroups of the host, up to a maximum.
    pub fn find(&self, id: &str) -> Vec<CgroupPath> {
        let mut found = BTreeSet::new();
        for mount in self.mounts() {
            let mut left = VecDeque::from([mount.to_owned()]);
            let mut seen = 0;
            // Level by level: cgroups that containers create are deeper than those of pods and
            // containers.
            while let Some(dir) = left.pop_front()
                && seen < SEEN_MAX
            {
                seen += 1;
                // The cgroup was removed meanwhile.
                for child in children(&dir).unwrap_or_default() {
                    let named = child.file_name().is_some_and(|name| name.to_string_lossy().contains(id));
                    match child.strip_prefix(mount) {
                        Ok(path) if named => found.extend(CgroupPath::new(&format!("/{}", path.display())).ok()),
                        Ok(_) | Err(_) => left.push_back(child),
                    }
                }
            }
        }
        found.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_cgroup_is_found_by_the_id_in_its_name_in_any_tree() {
        let dir = tempfile::tempdir().unwrap();
        let id = "ab".repeat(32);
        let below = |tree: &str, path: &str| fs::create_dir_all(dir.path().join(tree).join(path)).unwrap();
        below("v1", &format!("kubepods/pod1/{id}/deeper-{id}"));
        below("v1", "kubepods/pod1/other");
        below("v2", &format!("system.slice/crisp-{id}.scope"));
        let kind = crate::HierarchyKind::Controllers(vec!["cpu".to_owned()]);
        let hierarchies = vec![crate::Hierarchy { kind, mount: dir.path().join("v1") }];
        let layout = Layout::V1 { hierarchies, unified: Some(dir.path().join("v2")) };
        let found: Vec<_> = layout.find(&id).iter().map(|path| PathBuf::from(path.as_str())).collect();
        let wanted = [format!("/kubepods/pod1/{id}"), format!("/system.slice/crisp-{id}.scope")].map(PathBuf::from);
        assert_eq!(found, wanted);
        assert!(layout.find(&"cd".repeat(32)).is_empty());
    }
}
