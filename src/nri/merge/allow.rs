//! The groups of fields that a plugin may change.

use std::collections::BTreeSet;
use std::str::FromStr;

/// A group of fields, as settings name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Annotations,
    Mounts,
    Env,
    Args,
    Hooks,
    Devices,
    CdiDevices,
    Resources,
    Rlimits,
    OomScoreAdj,
    CgroupsPath,
    Namespaces,
    Seccomp,
    Sysctl,
    /// Changes of other containers.
    Updates,
    Evictions,
}

impl Group {
    const ALL: [(Self, &'static str); 16] = [
        (Self::Annotations, "annotations"),
        (Self::Mounts, "mounts"),
        (Self::Env, "env"),
        (Self::Args, "args"),
        (Self::Hooks, "hooks"),
        (Self::Devices, "devices"),
        (Self::CdiDevices, "cdi_devices"),
        (Self::Resources, "resources"),
        (Self::Rlimits, "rlimits"),
        (Self::OomScoreAdj, "oom_score_adj"),
        (Self::CgroupsPath, "cgroups_path"),
        (Self::Namespaces, "namespaces"),
        (Self::Seccomp, "seccomp"),
        (Self::Sysctl, "sysctl"),
        (Self::Updates, "updates"),
        (Self::Evictions, "evictions"),
    ];

    /// Returns the name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(group, _)| *group == self).map_or("", |(_, name)| name)
    }

    /// Returns whether the group gives a plugin powers beyond those of a pod spec.
    fn is_restricted(self) -> bool {
        matches!(self, Self::Hooks | Self::CgroupsPath | Self::Namespaces | Self::Seccomp | Self::Sysctl)
    }
}

/// A name that is not a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?}: expected one of {known}", known = Group::ALL.map(|(_, name)| name).join(", "))]
pub struct UnknownGroup {
    name: String,
}

impl FromStr for Group {
    type Err = UnknownGroup;

    fn from_str(name: &str) -> Result<Self, UnknownGroup> {
        let known = Self::ALL.iter().find(|(_, known)| *known == name);
        known.map(|(group, _)| *group).ok_or_else(|| UnknownGroup { name: name.to_owned() })
    }
}

/// The groups that a plugin may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow(BTreeSet<Group>);

impl Default for Allow {
    /// All groups but hooks, cgroup paths, namespaces, seccomp and sysctls.
    fn default() -> Self {
        Self(Group::ALL.iter().map(|(group, _)| *group).filter(|group| !group.is_restricted()).collect())
    }
}

impl FromIterator<Group> for Allow {
    fn from_iter<T: IntoIterator<Item = Group>>(groups: T) -> Self {
        Self(groups.into_iter().collect())
    }
}

impl Allow {
    /// Returns whether the group may be changed.
    #[must_use]
    pub fn has(&self, group: Group) -> bool {
        self.0.contains(&group)
    }

    /// Adds groups.
    #[must_use]
    pub fn with(mut self, groups: impl IntoIterator<Item = Group>) -> Self {
        self.0.extend(groups);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_beyond_a_pod_spec_are_off_by_default() {
        let default = Allow::default();
        let off: Vec<_> = Group::ALL.iter().filter(|(group, _)| !default.has(*group)).map(|(_, name)| *name).collect();
        assert_eq!(off, ["hooks", "cgroups_path", "namespaces", "seccomp", "sysctl"]);
        assert!(default.with([Group::Hooks]).has(Group::Hooks));
    }

    #[test]
    fn each_group_has_a_name() {
        for (group, name) in Group::ALL {
            assert_eq!((name.parse(), group.name()), (Ok(group), name));
        }
        assert!("hook".parse::<Group>().unwrap_err().to_string().starts_with("\"hook\": expected one of annotations,"));
    }
}
