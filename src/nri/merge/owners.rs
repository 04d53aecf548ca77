//! Which plugin set which field of a container.

use std::collections::BTreeMap;

use super::MergeError;
use crate::api::{CompoundFieldOwners, Field, FieldOwners};

/// The plugins that set fields of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners(BTreeMap<(Field, String), String>);

/// A field, its key if it has several, and the plugin that set it; for hooks, all that added some,
/// joined by commas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    pub field: Field,
    /// The destination of a mount, the name of a variable, and so on; empty for single fields.
    pub key: &'a str,
    pub plugin: &'a str,
}

impl Owners {
    /// Makes `plugin` the owner, unless another plugin is.
    pub(super) fn claim(&mut self, field: Field, key: &str, plugin: &str) -> Result<(), MergeError> {
        self.check(field, key, plugin)?;
        self.take(field, key, plugin);
        Ok(())
    }

    /// Fails if another plugin is the owner.
    pub(super) fn check(&self, field: Field, key: &str, plugin: &str) -> Result<(), MergeError> {
        match self.get(field, key) {
            Some(first) if first != plugin => Err(MergeError::Conflict {
                field,
                key: key.to_owned(),
                first: first.to_owned(),
                second: plugin.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Makes `plugin` the owner, also if another plugin is.
    pub(super) fn take(&mut self, field: Field, key: &str, plugin: &str) {
        self.0.insert((field, key.to_owned()), plugin.to_owned());
    }

    /// Adds `plugin` to the owners of a field that all may extend.
    pub(super) fn join(&mut self, field: Field, plugin: &str) {
        let owners = self.0.entry((field, String::new())).or_default();
        if !owners.is_empty() {
            owners.push(',');
        }
        owners.push_str(plugin);
    }

    /// Returns the owner of a field.
    #[must_use]
    pub fn get(&self, field: Field, key: &str) -> Option<&str> {
        self.0.get(&(field, key.to_owned())).map(String::as_str)
    }

    /// Lists all owners, by field and key.
    pub fn iter(&self) -> impl Iterator<Item = Owner<'_>> {
        self.0.iter().map(|((field, key), plugin)| Owner { field: *field, key, plugin })
    }

    /// Returns the message for validators.
    #[must_use]
    pub fn to_api(&self) -> FieldOwners {
        let mut message = FieldOwners::default();
        for owner in self.iter() {
            let number = i32::from(owner.field);
            if is_compound(owner.field) {
                let CompoundFieldOwners { owners } = message.compound.entry(number).or_default();
                owners.insert(owner.key.to_owned(), owner.plugin.to_owned());
            } else {
                message.simple.insert(number, owner.plugin.to_owned());
            }
        }
        message
    }
}

fn is_compound(field: Field) -> bool {
    matches!(
        field,
        Field::Annotations
            | Field::Mounts
            | Field::Devices
            | Field::CdiDevices
            | Field::Env
            | Field::HugepageLimits
            | Field::CgroupsUnified
            | Field::Rlimits
            | Field::Namespace
            | Field::Sysctl
            | Field::LinuxNetDevices
    )
}
