//! Settings of NRI, as the daemon reads them from its file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::merge::Allow;
use crate::validate::DefaultValidator;

/// The settings of all plugins.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Sent to plugins.
    pub runtime_name: String,
    pub runtime_version: String,
    /// From the connection to the end of Configure.
    pub registration_timeout: Duration,
    /// For one call.
    pub request_timeout: Duration,
    /// For one message of Synchronize.
    pub sync_timeout: Duration,
    /// A request waits this long for a required plugin that is not connected.
    pub required_wait: Duration,
    /// The least time between two synchronizations of the same plugin.
    pub sync_interval: Duration,
    /// Base names of plugins without which pods and containers are not created or changed.
    pub required: BTreeSet<String>,
    /// Pods in these namespaces need none of `required`.
    pub exempt_namespaces: BTreeSet<String>,
    /// By base name.
    pub plugins: BTreeMap<String, PluginSettings>,
    pub validator: DefaultValidator,
}

/// The settings of one plugin.
#[derive(Debug, Clone, Default)]
pub struct PluginSettings {
    pub request_timeout: Option<Duration>,
    pub sync_timeout: Option<Duration>,
    pub required: bool,
    pub allow: Allow,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            runtime_name: "crisp".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            sync_timeout: Duration::from_secs(10),
            required_wait: Duration::from_secs(10),
            sync_interval: Duration::from_secs(5),
            required: BTreeSet::new(),
            exempt_namespaces: BTreeSet::new(),
            plugins: BTreeMap::new(),
            validator: DefaultValidator::default(),
        }
    }
}

impl Settings {
    /// Returns the time for one call of this plugin.
    #[must_use]
    pub fn request_timeout(&self, name: &str) -> Duration {
        self.plugins.get(name).and_then(|plugin| plugin.request_timeout).unwrap_or(self.request_timeout)
    }

    /// Returns the time for one message of Synchronize to this plugin.
    #[must_use]
    pub fn sync_timeout(&self, name: &str) -> Duration {
        self.plugins.get(name).and_then(|plugin| plugin.sync_timeout).unwrap_or(self.sync_timeout)
    }

    /// Returns the fields that this plugin may change.
    #[must_use]
    pub fn allow(&self, name: &str) -> Allow {
        self.plugins.get(name).map(|plugin| plugin.allow.clone()).unwrap_or_default()
    }
}
