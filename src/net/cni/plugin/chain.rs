//! Calls the plugins of a network in order.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use safe_fs::FileStamp;
use serde_json::{Map, Value, json};
use sync::Mutex;
use tracing::Instrument as _;

use super::error::{PluginError, Verb};
use super::exec::{self, Deadline, PluginCall, PluginOutput};
use super::result;
use super::version::{Version, listed};
use crate::cni::conf::{ConfList, Plugin};
use crate::cni::operations::Operations;

/// A network, the CNI version for its plugins, and their directories.
#[derive(Debug)]
pub(crate) struct PluginChain<'a> {
    pub(crate) list: &'a ConfList,
    pub(crate) version: Version,
    pub(crate) bin_dirs: &'a [PathBuf],
    pub(crate) deadline: Deadline,
    pub(crate) operations: &'a Operations,
}

/// A pod in a network: the arguments for its plugins, the same for every verb.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Attachment {
    pub(crate) pod: String,
    pub(crate) interface: String,
    pub(crate) netns: Option<PathBuf>,
    pub(crate) args: String,
    /// See [`super::args::offered`].
    pub(crate) offered: Map<String, Value>,
}

impl PluginChain<'_> {
    /// Attaches a pod: each plugin receives the result of those before it. Returns that of the
    /// last.
    pub(crate) async fn add(&self, place: &Attachment) -> Result<Value, PluginError> {
        let mut result = None;
        for plugin in &self.list.plugins {
            let output =
                self.call(plugin, Verb::Add, Some(place), self.request(plugin, place, result.as_ref())).await?;
            result = Some(result::result(output, self.version)?);
        }
        Ok(result.unwrap_or_default())
    }

    /// Detaches a pod, the last plugin first; a plugin that does not know the pod counts as
    /// successful. After a complete ADD the first failure ends it, as CNI requires; after an
    /// incomplete one all plugins are called, so that one that fails or hangs does not keep the
    /// others' addresses allocated.
    pub(crate) async fn del(&self, place: &Attachment, result: Option<&Value>) -> Result<(), PluginError> {
        let told = result.filter(|_| self.version.has_check());
        let mut first = Ok(());
        for plugin in self.list.plugins.iter().rev() {
            let deadline = if result.is_some() { self.deadline } else { Deadline::after(self.deadline.limit) };
            let part = PluginChain { deadline, ..*self };
            match part.call(plugin, Verb::Del, Some(place), self.request(plugin, place, told)).await {
                Ok(_) => {}
                Err(error) if error.is_unknown_container() => {
                    tracing::debug!(%error, "a CNI plugin does not know the pod, so there is nothing to detach")
                }
                Err(error) if result.is_some() => return Err(error),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }

    pub(crate) async fn check(&self, place: &Attachment, result: &Value) -> Result<(), PluginError> {
        for plugin in &self.list.plugins {
            self.call(plugin, Verb::Check, Some(place), self.request(plugin, place, Some(result))).await?;
        }
        Ok(())
    }

    pub(crate) async fn status(&self) -> Result<(), PluginError> {
        for plugin in &self.list.plugins {
            self.call(plugin, Verb::Status, None, self.base(plugin)).await?;
        }
        Ok(())
    }

    /// Sends the list of existing pods to all plugins, also after one has failed.
    pub(crate) async fn gc(&self, valid: &Value) -> Vec<PluginError> {
        let mut failed = Vec::new();
        for plugin in &self.list.plugins {
            let mut conf = self.base(plugin);
            conf.insert("cni.dev/valid-attachments".to_owned(), valid.clone());
            // The key in the first version of the specification, which plugins may still expect.
            conf.insert("cni.dev/attachments".to_owned(), valid.clone());
            failed.extend(self.call(plugin, Verb::Gc, None, conf).await.err());
        }
        failed
    }

    /// Returns a plugin's stdin for a pod.
    fn request(&self, plugin: &Plugin, place: &Attachment, result: Option<&Value>) -> Map<String, Value> {
        let mut conf = self.base(plugin);
        if let Some(result) = result {
            conf.insert("prevResult".to_owned(), result.clone());
        }
        let wanted = place.offered.iter().filter(|(capability, _)| plugin.capabilities.contains(*capability));
        let wanted: Map<_, _> = wanted.map(|(capability, value)| (capability.clone(), value.clone())).collect();
        if !wanted.is_empty() {
            conf.insert("runtimeConfig".to_owned(), Value::Object(wanted));
        }
        conf
    }

    /// Returns its configuration without the keys for runtimes and those that only runtimes may
    /// set.
    fn base(&self, plugin: &Plugin) -> Map<String, Value> {
        let mut conf = plugin.conf.clone();
        conf.retain(|key, _| !matches!(key.as_str(), "capabilities" | "prevResult") && !key.starts_with("cni.dev/"));
        conf.insert("name".to_owned(), json!(self.list.name));
        conf.insert("cniVersion".to_owned(), json!(self.version.as_str()));
        conf
    }

    async fn call(
        &self,
        plugin: &Plugin,
        verb: Verb,
        place: Option<&Attachment>,
        conf: Map<String, Value>,
    ) -> Result<PluginOutput, PluginError> {
        let began = Instant::now();
        let called = self.call_uncounted(plugin, verb, place, conf).await;
        self.operations.note(verb, &self.list.name, &plugin.program, began.elapsed(), &called);
        called
    }

    async fn call_uncounted(
        &self,
        plugin: &Plugin,
        verb: Verb,
        place: Option<&Attachment>,
        conf: Map<String, Value>,
    ) -> Result<PluginOutput, PluginError> {
        let path = exec::find(&plugin.program, self.bin_dirs)?;
        let mut env = vec![("CNI_PATH", search_path(self.bin_dirs))];
        if let Some(Attachment { pod, interface, netns, args, offered: _ }) = place {
            env.push(("CNI_CONTAINERID", pod.into()));
            env.push(("CNI_IFNAME", interface.into()));
            env.push(("CNI_NETNS", netns.as_ref().map(OsString::from).unwrap_or_default()));
            env.push(("CNI_ARGS", args.into()));
        }
        let stdin = Value::Object(conf).to_string().into_bytes();
        let call = PluginCall { plugin: &plugin.program, path: &path, verb, env, stdin, deadline: self.deadline };
        let step = tracing::debug_span!("cni.plugin", plugin = plugin.program, verb = verb.as_str());
        let output = exec::run(call).instrument(step).await?;
        if !output.stderr.is_empty() {
            tracing::debug!(
                plugin = output.plugin,
                verb = verb.as_str(),
                stderr = output.stderr,
                "a CNI plugin wrote to stderr"
            );
        }
        Ok(output)
    }
}

fn search_path(dirs: &[PathBuf]) -> OsString {
    let mut path = OsString::new();
    for (number, dir) in dirs.iter().enumerate() {
        if number > 0 {
            path.push(":");
        }
        path.push(dir);
    }
    path
}

/// The supported versions of plugins, by the stamps of their executables.
#[derive(Debug, Default)]
pub(crate) struct VersionCache(Mutex<HashMap<PathBuf, (FileStamp, Vec<String>)>>);

impl VersionCache {
    /// Returns the highest version that the configuration and all of its plugins support.
    ///
    /// Plugins receive VERSION only if the configuration allows several versions, or before a verb
    /// that older plugins do not know.
    pub(crate) async fn negotiate(
        &self,
        list: &ConfList,
        bin_dirs: &[PathBuf],
        deadline: Deadline,
        operations: &Operations,
    ) -> Result<Version, PluginError> {
        let mut left = list.versions.clone();
        if left.len() <= 1 && !list.highest().has_status() {
            return Ok(list.highest());
        }
        for plugin in &list.plugins {
            let supported = self.supported_versions(list, &plugin.program, bin_dirs, deadline, operations).await?;
            let Some(supported) = supported else { continue };
            let allowed = listed(&left);
            left.retain(|version| supported.iter().any(|one| one == version.as_str()));
            if left.is_empty() {
                let (plugin, network) = (plugin.program.clone(), list.name.clone());
                return Err(PluginError::UnsupportedVersion { plugin, supported, network, allowed });
            }
        }
        Ok(left.last().copied().unwrap_or(Version::UNSAID))
    }

    /// Returns `None` if the plugin does not report its versions: old plugins do not know VERSION.
    async fn supported_versions(
        &self,
        list: &ConfList,
        plugin: &str,
        bin_dirs: &[PathBuf],
        deadline: Deadline,
        operations: &Operations,
    ) -> Result<Option<Vec<String>>, PluginError> {
        let path = exec::find(plugin, bin_dirs)?;
        // Before VERSION, so that a program that is replaced meanwhile is called again.
        let stamp = FileStamp::read(&path);
        let known = |known: &HashMap<PathBuf, (FileStamp, Vec<String>)>| {
            known.get(&path).filter(|(seen, _)| Some(seen) == stamp.as_ref()).map(|(_, supported)| supported.clone())
        };
        if let Some(supported) = known(&self.0.lock()) {
            return Ok(Some(supported));
        }
        // Old plugins require all of these keys.
        let env = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"].map(|key| (key, OsString::from("dummy")));
        let stdin = json!({ "cniVersion": Version::NEWEST.as_str() }).to_string().into_bytes();
        let call = PluginCall { plugin, path: &path, verb: Verb::Version, env: env.into(), stdin, deadline };
        let began = Instant::now();
        let called = exec::run(call).await;
        operations.note(Verb::Version, &list.name, plugin, began.elapsed(), &called);
        let supported = match called {
            Ok(output) => result::versions(output),
            Err(error @ (PluginError::Late { .. } | PluginError::Start { .. })) => return Err(error),
            Err(error) => Err(error),
        };
        let supported = match supported {
            Ok(supported) => supported,
            Err(error) => {
                tracing::debug!(%error, "a CNI plugin did not report the CNI versions that it supports");
                return Ok(None);
            }
        };
        if let Some(stamp) = stamp {
            let mut known = self.0.lock();
            known.insert(path, (stamp, supported.clone()));
        }
        Ok(Some(supported))
    }
}
