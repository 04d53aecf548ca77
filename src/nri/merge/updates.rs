//! Changes of existing containers: of others, and of the one whose update the client requests.

use std::collections::BTreeMap;

use super::{Allow, Group, MergeError, Owners, resources};
use crate::api::{ContainerEviction, ContainerUpdate, LinuxResources, UpdateContainerResponse};

/// A change of one container. Only the limits that plugins set are present.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Update {
    pub container_id: String,
    pub resources: LinuxResources,
    pub owners: Owners,
    /// A failure is not reported to the plugins.
    pub ignore_failure: bool,
}

/// A container that a plugin wants to be stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    pub container_id: String,
    pub reason: String,
    pub plugin: String,
}

/// Merges the updates of several answers.
#[derive(Debug, Default)]
pub struct Updates {
    /// The container that cannot be updated, since it is being created.
    created: Option<String>,
    order: Vec<String>,
    by_container: BTreeMap<String, Update>,
    evictions: Vec<Eviction>,
}

impl Updates {
    pub(super) fn of_others(created: String) -> Self {
        Self { created: Some(created), ..Self::default() }
    }

    /// Adds the updates of one plugin. A conflict in an update with `ignore_failure` drops that
    /// update.
    pub fn add(&mut self, plugin: &str, allow: &Allow, updates: Vec<ContainerUpdate>) -> Result<(), MergeError> {
        if !updates.is_empty() && !allow.has(Group::Updates) {
            return Err(MergeError::NotAllowed { plugin: plugin.to_owned(), group: Group::Updates });
        }
        for update in updates {
            let is_optional = update.ignore_failure;
            match self.add_one(plugin, update) {
                Err(_) if is_optional => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn add_one(&mut self, plugin: &str, update: ContainerUpdate) -> Result<(), MergeError> {
        if self.created.as_ref() == Some(&update.container_id) {
            return Err(MergeError::OwnUpdate { plugin: plugin.to_owned() });
        }
        let mut limits = update.linux.and_then(|linux| linux.resources).map_or_else(Default::default, |limits| *limits);
        resources::drop_unset(&mut limits);
        if !limits.devices.is_empty() {
            let field = "linux.resources.devices in an update";
            return Err(MergeError::NotSupported { plugin: plugin.to_owned(), field });
        }
        resources::check(&limits, plugin)?;
        let id = &update.container_id;
        if !self.by_container.contains_key(id) {
            self.order.push(id.clone());
        }
        let merged = self.by_container.entry(id.clone()).or_insert_with(|| Update {
            container_id: id.clone(),
            ignore_failure: true,
            ..Update::default()
        });
        resources::claim(&limits, &mut merged.owners, plugin)?;
        resources::overlay(&mut merged.resources, &limits);
        merged.ignore_failure &= update.ignore_failure;
        Ok(())
    }

    /// Adds the evictions of one plugin.
    pub fn evict(&mut self, plugin: &str, allow: &Allow, evict: Vec<ContainerEviction>) -> Result<(), MergeError> {
        if !evict.is_empty() && !allow.has(Group::Evictions) {
            return Err(MergeError::NotAllowed { plugin: plugin.to_owned(), group: Group::Evictions });
        }
        let plugin = plugin.to_owned();
        self.evictions.extend(evict.into_iter().map(|eviction| Eviction {
            container_id: eviction.container_id,
            reason: eviction.reason,
            plugin: plugin.clone(),
        }));
        Ok(())
    }

    /// Returns the updates in the order in which their containers were first named. Updates without
    /// any limit are left out.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Update>, Vec<Eviction>) {
        let updates = self.order.iter().filter_map(|id| self.by_container.remove(id));
        let updates = updates.filter(|update| update.resources != LinuxResources::default()).collect();
        (updates, self.evictions)
    }
}

/// Merges the answers of plugins to UpdateContainer.
#[derive(Debug)]
pub struct Resize {
    container_id: String,
    requested: LinuxResources,
    updates: Updates,
}

/// The merged answers to UpdateContainer.
#[derive(Debug, Clone, PartialEq)]
pub struct Resized {
    /// The request with the changes of all plugins: it replaces the request.
    pub resources: LinuxResources,
    /// The changes of plugins alone, and their owners.
    pub adjusted: LinuxResources,
    pub owners: Owners,
    /// Changes of other containers, to be made first.
    pub updates: Vec<Update>,
    pub evictions: Vec<Eviction>,
}

impl Resize {
    /// Starts with the limits that the client requests; absent ones stay as they are.
    #[must_use]
    pub fn new(container_id: String, requested: LinuxResources) -> Self {
        Self { container_id, requested, updates: Updates::default() }
    }

    /// Returns the limits as the next plugin sees them.
    #[must_use]
    pub fn resources(&self) -> LinuxResources {
        let mut resources = self.requested.clone();
        if let Some(update) = self.updates.by_container.get(&self.container_id) {
            resources::overlay(&mut resources, &update.resources);
        }
        resources
    }

    /// Adds the answer of the next plugin.
    pub fn add(&mut self, plugin: &str, allow: &Allow, answer: UpdateContainerResponse) -> Result<(), MergeError> {
        self.updates.add(plugin, allow, answer.update)?;
        self.updates.evict(plugin, allow, answer.evict)
    }

    /// Returns the merged answers.
    #[must_use]
    pub fn finish(self) -> Resized {
        let resources = self.resources();
        let (mut updates, evictions) = self.updates.finish();
        let own = updates.iter().position(|update| update.container_id == self.container_id);
        let own = own.map(|position| updates.remove(position)).unwrap_or_default();
        Resized { resources, adjusted: own.resources, owners: own.owners, updates, evictions }
    }
}
