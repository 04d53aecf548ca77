//! The adjustments of a container that is being created.

use super::keyed::{Keyed, replace};
use super::updates::{Eviction, Update, Updates};
use super::{Allow, Group, MergeError, Owners, check, resources};
use crate::api::{
    CdiDevice, Container, ContainerAdjustment, CreateContainerResponse, Field, Hooks, KeyValue,
    LinuxContainerAdjustment, LinuxDevice, LinuxNamespace, LinuxResources, LinuxSeccomp, Mount, OptionalInt,
    PosixRlimit,
};

/// Merges the answers of plugins to CreateContainer.
#[derive(Debug)]
pub struct Creation {
    /// The container with the changes so far.
    container: Container,
    owners: Owners,
    updates: Updates,
    annotations: Keyed<String>,
    mounts: Keyed<Mount>,
    env: Keyed<String>,
    args: Vec<String>,
    hooks: Hooks,
    rlimits: Keyed<PosixRlimit>,
    cdi_devices: Keyed<CdiDevice>,
    devices: Keyed<LinuxDevice>,
    namespaces: Keyed<LinuxNamespace>,
    sysctl: Keyed<String>,
    resources: LinuxResources,
    cgroups_path: String,
    oom_score_adj: Option<OptionalInt>,
    seccomp_policy: Option<LinuxSeccomp>,
}

/// The merged answers. In the lists of the adjustment a key with a leading `-` is a removal; a key
/// is there once, either removed or with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    pub adjust: ContainerAdjustment,
    pub owners: Owners,
    /// Changes of other containers, to be made before this container is created.
    pub updates: Vec<Update>,
    pub evictions: Vec<Eviction>,
}

impl Creation {
    /// Starts with the container as the client requests it.
    #[must_use]
    pub fn new(mut container: Container) -> Self {
        container.linux.get_or_insert_default();
        Self {
            updates: Updates::of_others(container.id.clone()),
            container,
            owners: Owners::default(),
            annotations: Keyed::default(),
            mounts: Keyed::default(),
            env: Keyed::default(),
            args: Vec::new(),
            hooks: Hooks::default(),
            rlimits: Keyed::default(),
            cdi_devices: Keyed::default(),
            devices: Keyed::default(),
            namespaces: Keyed::default(),
            sysctl: Keyed::default(),
            resources: LinuxResources::default(),
            cgroups_path: String::new(),
            oom_score_adj: None,
            seccomp_policy: None,
        }
    }

    /// Returns the container as the next plugin sees it.
    #[must_use]
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// Adds the answer of the next plugin. After an error the creation fails, and the value is not
    /// used any more.
    pub fn add(&mut self, plugin: &str, allow: &Allow, answer: CreateContainerResponse) -> Result<(), MergeError> {
        if let Some(adjust) = answer.adjust {
            self.adjust(plugin, allow, adjust)?;
        }
        self.updates.add(plugin, allow, answer.update)?;
        self.updates.evict(plugin, allow, answer.evict)
    }

    fn adjust(&mut self, plugin: &str, allow: &Allow, adjust: ContainerAdjustment) -> Result<(), MergeError> {
        permitted(plugin, allow, &adjust)?;
        check::adjustment(plugin, &adjust)?;
        let Self { container, owners, .. } = self;

        let changes = merge(Field::Annotations, plugin, owners, &mut self.annotations, adjust.annotations)?;
        for (key, value) in changes.in_order() {
            match value {
                Some(value) => container.annotations.insert(key.to_owned(), value.clone()),
                None => container.annotations.remove(key),
            };
        }

        let mounts = adjust.mounts.into_iter().map(|mount| (key_of_path(&mount.destination), mount));
        let mounts = mounts.map(|(key, mount)| (key.clone(), Mount { destination: key, ..mount }));
        let changes = merge(Field::Mounts, plugin, owners, &mut self.mounts, mounts)?;
        replace(&mut container.mounts, &changes, |mount| key_of_path(&mount.destination));

        let env = adjust.env.into_iter().map(|variable| (variable.key, variable.value));
        let changes = merge(Field::Env, plugin, owners, &mut self.env, env)?;
        container.env.retain(|variable| !changes.has(variable.split('=').next().unwrap_or_default()));
        let set = changes.in_order().into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        container.env.extend(set);

        if let Some(first) = adjust.args.first() {
            let args = if first.is_empty() { &adjust.args[1..] } else { &adjust.args[..] };
            if first.is_empty() {
                owners.take(Field::Args, "", plugin);
            }
            owners.claim(Field::Args, "", plugin)?;
            self.args = args.to_vec();
            container.args = args.to_vec();
        }
        if let Some(hooks) = adjust.hooks.filter(has_hooks) {
            owners.join(Field::OciHooks, plugin);
            append(&mut self.hooks, &hooks);
            append(container.hooks.get_or_insert_default(), &hooks);
        }

        let rlimits = adjust.rlimits.into_iter().map(|limit| (limit.r#type.clone(), limit));
        let changes = merge(Field::Rlimits, plugin, owners, &mut self.rlimits, rlimits)?;
        replace(&mut container.rlimits, &changes, |limit| limit.r#type.clone());

        let devices = adjust.cdi_devices.into_iter().map(|device| (device.name.clone(), device));
        merge(Field::CdiDevices, plugin, owners, &mut self.cdi_devices, devices)?;

        adjust.linux.map_or(Ok(()), |linux| self.linux(plugin, linux))
    }

    fn linux(&mut self, plugin: &str, adjust: LinuxContainerAdjustment) -> Result<(), MergeError> {
        let owners = &mut self.owners;
        let container = self.container.linux.get_or_insert_default();

        let devices = adjust.devices.into_iter().map(|device| (key_of_path(&device.path), device));
        let devices = devices.map(|(key, device)| (key.clone(), LinuxDevice { path: key, ..device }));
        let changes = merge(Field::Devices, plugin, owners, &mut self.devices, devices)?;
        replace(&mut container.devices, &changes, |device| key_of_path(&device.path));

        let namespaces = adjust.namespaces.into_iter().map(|namespace| (namespace.r#type.clone(), namespace));
        let changes = merge(Field::Namespace, plugin, owners, &mut self.namespaces, namespaces)?;
        replace(&mut container.namespaces, &changes, |namespace| namespace.r#type.clone());

        let changes = merge(Field::Sysctl, plugin, owners, &mut self.sysctl, adjust.sysctl)?;
        for (key, value) in changes.in_order() {
            match value {
                Some(value) => container.sysctl.insert(key.to_owned(), value.clone()),
                None => container.sysctl.remove(key),
            };
        }

        if let Some(mut limits) = adjust.resources {
            resources::drop_unset(&mut limits);
            resources::check(&limits, plugin)?;
            resources::claim(&limits, owners, plugin)?;
            resources::overlay(&mut self.resources, &limits);
            resources::overlay(container.resources.get_or_insert_default(), &limits);
        }
        if !adjust.cgroups_path.is_empty() {
            owners.claim(Field::CgroupsPath, "", plugin)?;
            container.cgroups_path.clone_from(&adjust.cgroups_path);
            self.cgroups_path = adjust.cgroups_path;
        }
        if let Some(score) = adjust.oom_score_adj {
            owners.claim(Field::OomScoreAdj, "", plugin)?;
            container.oom_score_adj = Some(score);
            self.oom_score_adj = Some(score);
        }
        if let Some(policy) = adjust.seccomp_policy {
            owners.claim(Field::SeccompPolicy, "", plugin)?;
            container.seccomp_policy = Some(policy.clone());
            self.seccomp_policy = Some(policy);
        }
        Ok(())
    }

    /// Returns the merged answers.
    #[must_use]
    pub fn finish(self) -> Created {
        let linux = LinuxContainerAdjustment {
            devices: listed(&self.devices, |path| LinuxDevice { path, ..LinuxDevice::default() }),
            resources: Some(self.resources),
            cgroups_path: self.cgroups_path,
            oom_score_adj: self.oom_score_adj,
            seccomp_policy: self.seccomp_policy,
            namespaces: listed(&self.namespaces, |kind| LinuxNamespace { r#type: kind, path: String::new() }),
            sysctl: pairs(&self.sysctl).collect(),
            ..LinuxContainerAdjustment::default()
        };
        let adjust = ContainerAdjustment {
            annotations: pairs(&self.annotations).collect(),
            mounts: listed(&self.mounts, |destination| Mount { destination, ..Mount::default() }),
            env: pairs(&self.env).map(|(key, value)| KeyValue { key, value }).collect(),
            hooks: Some(self.hooks).filter(has_hooks),
            linux: Some(linux),
            rlimits: listed(&self.rlimits, |kind| PosixRlimit { r#type: kind, ..PosixRlimit::default() }),
            cdi_devices: listed(&self.cdi_devices, |name| CdiDevice { name }),
            args: self.args,
        };
        let (updates, evictions) = self.updates.finish();
        Created { adjust, owners: self.owners, updates, evictions }
    }
}

/// Adds the changes of one answer to those of earlier ones, and returns them.
fn merge<T: Clone>(
    field: Field,
    plugin: &str,
    owners: &mut Owners,
    merged: &mut Keyed<T>,
    items: impl IntoIterator<Item = (String, T)>,
) -> Result<Keyed<T>, MergeError> {
    let answer = Keyed::of_answer(items);
    let mut changes = Keyed::default();
    for key in answer.removed {
        owners.take(field, &key, plugin);
        merged.put(key.clone(), None);
        changes.put(key, None);
    }
    for (key, value) in answer.set.in_order() {
        owners.claim(field, key, plugin)?;
        merged.put(key.to_owned(), value.cloned());
        changes.put(key.to_owned(), value.cloned());
    }
    Ok(changes)
}

/// Refuses the fields of groups that the plugin may not change, and those that crisp does not have.
fn permitted(plugin: &str, allow: &Allow, adjust: &ContainerAdjustment) -> Result<(), MergeError> {
    let none = LinuxContainerAdjustment::default();
    let linux = adjust.linux.as_ref().unwrap_or(&none);
    let unsupported = [
        (linux.io_priority.is_some(), "linux.io_priority"),
        (linux.scheduler.is_some(), "linux.scheduler"),
        (linux.rdt.is_some(), "linux.rdt"),
        (linux.memory_policy.is_some(), "linux.memory_policy"),
        (!linux.net_devices.is_empty(), "linux.net_devices"),
    ];
    if let Some((_, field)) = unsupported.iter().find(|(is_set, _)| *is_set) {
        return Err(MergeError::NotSupported { plugin: plugin.to_owned(), field });
    }
    let rules = linux.resources.as_ref().is_some_and(|resources| !resources.devices.is_empty());
    let groups = [
        (!adjust.annotations.is_empty(), Group::Annotations),
        (!adjust.mounts.is_empty(), Group::Mounts),
        (!adjust.env.is_empty(), Group::Env),
        (!adjust.args.is_empty(), Group::Args),
        (adjust.hooks.as_ref().is_some_and(has_hooks), Group::Hooks),
        (!adjust.cdi_devices.is_empty(), Group::CdiDevices),
        (!adjust.rlimits.is_empty(), Group::Rlimits),
        (!linux.devices.is_empty() || rules, Group::Devices),
        (linux.resources.is_some(), Group::Resources),
        (!linux.cgroups_path.is_empty(), Group::CgroupsPath),
        (linux.oom_score_adj.is_some(), Group::OomScoreAdj),
        (linux.seccomp_policy.is_some(), Group::Seccomp),
        (!linux.namespaces.is_empty(), Group::Namespaces),
        (!linux.sysctl.is_empty(), Group::Sysctl),
    ];
    match groups.iter().find(|(is_set, group)| *is_set && !allow.has(*group)) {
        Some((_, group)) => Err(MergeError::NotAllowed { plugin: plugin.to_owned(), group: *group }),
        None => Ok(()),
    }
}

/// Returns a path without redundant parts, with the marker of a removal.
fn key_of_path(path: &str) -> String {
    let (marker, path) = path.strip_prefix('-').map_or(("", path), |path| ("-", path));
    format!("{marker}{}", check::clean(path).as_deref().unwrap_or(path))
}

fn has_hooks(hooks: &Hooks) -> bool {
    *hooks != Hooks::default()
}

fn append(to: &mut Hooks, hooks: &Hooks) {
    to.prestart.extend_from_slice(&hooks.prestart);
    to.create_runtime.extend_from_slice(&hooks.create_runtime);
    to.create_container.extend_from_slice(&hooks.create_container);
    to.start_container.extend_from_slice(&hooks.start_container);
    to.poststart.extend_from_slice(&hooks.poststart);
    to.poststop.extend_from_slice(&hooks.poststop);
}

/// Returns the values, and elements with marked keys for removals.
fn listed<T: Clone>(keyed: &Keyed<T>, removal: impl Fn(String) -> T) -> Vec<T> {
    let all = keyed.in_order().into_iter();
    all.map(|(key, value)| value.cloned().unwrap_or_else(|| removal(format!("-{key}")))).collect()
}

fn pairs(keyed: &Keyed<String>) -> impl Iterator<Item = (String, String)> {
    keyed.in_order().into_iter().map(|(key, value)| match value {
        Some(value) => (key.to_owned(), value.clone()),
        None => (format!("-{key}"), String::new()),
    })
}
