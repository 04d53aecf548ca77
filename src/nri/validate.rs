//! The built-in validator of adjustments, as `plugins/default-validator` of containerd/nri. Pure.
//!
//! Its required plugins are those of [`required`](crate::required): they also hold for pods and
//! updates, and a plugin that fails during the request is missing.

use crate::api::{Container, Field, SecurityProfile, security_profile::ProfileType};
use crate::merge::Owners;

/// The settings of the validator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultValidator {
    pub enable: bool,
    pub reject_oci_hook_adjustment: bool,
    pub reject_runtime_default_seccomp_adjustment: bool,
    pub reject_unconfined_seccomp_adjustment: bool,
    pub reject_custom_seccomp_adjustment: bool,
    pub reject_namespace_adjustment: bool,
    pub reject_sysctl_adjustment: bool,
    pub required_plugins: Vec<String>,
    pub tolerate_missing_plugins_annotation: Option<String>,
}

/// An adjustment that the settings do not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("adjustment of {what} by {plugins} rejected by setting {setting}")]
pub struct Rejected {
    what: &'static str,
    plugins: String,
    setting: &'static str,
}

impl DefaultValidator {
    /// Checks the fields that plugins have set; `container` is without their changes.
    pub fn check(&self, container: &Container, owners: &Owners) -> Result<(), Rejected> {
        if !self.enable {
            return Ok(());
        }
        let (seccomp, setting) = self.seccomp(container);
        let rules = [
            (self.reject_oci_hook_adjustment, Field::OciHooks, "OCI hooks", "reject_oci_hook_adjustment"),
            (seccomp, Field::SeccompPolicy, "the seccomp policy", setting),
            (self.reject_namespace_adjustment, Field::Namespace, "namespaces", "reject_namespace_adjustment"),
            (self.reject_sysctl_adjustment, Field::Sysctl, "sysctls", "reject_sysctl_adjustment"),
        ];
        for (_, field, what, setting) in rules.into_iter().filter(|(is_rejected, ..)| *is_rejected) {
            let mut plugins: Vec<_> =
                owners.iter().filter(|owner| owner.field == field).map(|owner| owner.plugin).collect();
            plugins.sort_unstable();
            plugins.dedup();
            if !plugins.is_empty() {
                return Err(Rejected { what, plugins: plugins.join(", "), setting });
            }
        }
        Ok(())
    }

    /// Returns whether a new policy in place of this profile is rejected, and the setting for it.
    fn seccomp(&self, container: &Container) -> (bool, &'static str) {
        let profile = container.linux.as_ref().and_then(|linux| linux.seccomp_profile.as_ref());
        match profile.map(SecurityProfile::profile_type) {
            None | Some(ProfileType::Unconfined) => {
                (self.reject_unconfined_seccomp_adjustment, "reject_unconfined_seccomp_adjustment")
            }
            Some(ProfileType::RuntimeDefault) => {
                (self.reject_runtime_default_seccomp_adjustment, "reject_runtime_default_seccomp_adjustment")
            }
            Some(ProfileType::Localhost) => (self.reject_custom_seccomp_adjustment, "reject_custom_seccomp_adjustment"),
        }
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
