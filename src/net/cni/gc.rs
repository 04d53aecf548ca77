//! GC: releases what plugins hold for pods that no longer exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use model::{ErrorClass, ErrorKind};
use safe_fs::FileError;
use serde_json::{Map, Value, json};

use super::cache::CachedAttachment;
use super::conf::ConfList;
use super::conf::dir::DirError;
use super::del::DelError;
use super::plugin::args;
use super::plugin::chain::{Attachment, PluginChain};
use super::plugin::error::PluginError;
use super::{Cni, blocking, is_namespace};
use crate::attachment::INTERFACE;

/// The result of a garbage collection.
#[derive(Debug, Default)]
#[must_use]
pub struct GcReport {
    /// Pods that were detached.
    pub detached: Vec<String>,
    /// The identities of these pods, as far as their records have them.
    pub identities: BTreeMap<String, PodIdentity>,
    /// Networks whose plugins received GC.
    pub networks: Vec<String>,
    /// Failures to retry later.
    pub failed: Vec<GcFailure>,
}

/// The identity of a pod, as plugins received it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodIdentity {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Debug, thiserror::Error)]
pub enum GcFailure {
    #[error(transparent)]
    Cache(#[from] FileError),
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error("removing the network of pod {pod}, which no longer exists")]
    Detach { pod: String, source: DelError },
    #[error("removing leftovers of the CNI network {network} (GC)")]
    Collect { network: String, source: PluginError },
}

impl ErrorClass for GcFailure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Cache(e) => e.kind(),
            Self::Dir(e) => e.kind(),
            Self::Detach { source, .. } => source.kind(),
            Self::Collect { source, .. } => source.kind(),
        }
    }
}

impl Cni {
    /// Detaches pods that are not in `alive`, and calls GC of the plugins of the configured network
    /// and of the networks of the remaining pods, unless their configurations disable GC.
    ///
    /// Keeps pods that this process attached, so `alive` may be slightly out of date.
    pub async fn gc(&self, alive: &[String]) -> GcReport {
        let mut done = GcReport::default();
        let alive: BTreeSet<&str> = alive.iter().map(String::as_str).collect();
        match self.cached_attachment(None).await {
            Ok(cached) => {
                for one in cached {
                    self.detach_dead(one, &alive, &mut done).await;
                }
            }
            Err(error) => done.failed.push(error.into()),
        }
        // From here on no pod is being attached or detached.
        let _alone = self.gate.write().await;
        let networks = self.networks(&mut done).await;
        let held = self.held().clone();
        let valid: BTreeSet<&str> = alive.into_iter().chain(held.iter().map(String::as_str)).collect();
        let valid = valid.into_iter().map(|pod| json!({ "containerID": pod, "ifname": INTERFACE })).collect();
        for list in networks.into_values().filter(|list| !list.disable_gc) {
            self.collect(&list, &valid, &mut done).await;
        }
        done
    }

    async fn detach_dead(&self, cached: CachedAttachment, alive: &BTreeSet<&str>, done: &mut GcReport) {
        let _open = self.gate.read().await;
        let _lock = self.pod_locks.lock(&cached.pod).await;
        let pod = cached.pod.clone();
        if alive.contains(pod.as_str()) || self.held().contains(&pod) || !cached.path.exists() {
            return;
        }
        let (interface, args) = (cached.interface.clone(), args::minimal_args(&pod));
        let unknown = Attachment { pod: pod.clone(), interface, netns: None, args, offered: Map::new() };
        let identity = cached.read().ok().flatten().map(|entry| args::parse_identity(&entry.place.args));
        let if_there = |netns: Option<PathBuf>| netns.filter(|path| is_namespace(path));
        match self.detach_cached(cached, if_there, unknown).await {
            Ok(()) => {
                done.identities.extend(identity.map(|identity| (pod.clone(), identity)));
                done.detached.push(pod);
            }
            Err(source) => done.failed.push(GcFailure::Detach { pod, source }),
        }
    }

    /// Returns the configured network and those of attached pods, each once.
    async fn networks(&self, done: &mut GcReport) -> BTreeMap<String, ConfList> {
        let mut networks = BTreeMap::new();
        match self.cached_attachment(None).await {
            Ok(cached) => {
                for entry in blocking(move || cached.iter().map(CachedAttachment::read).collect::<Vec<_>>()).await {
                    match entry {
                        Ok(entry) => networks.extend(entry.map(|entry| (entry.list.name.clone(), entry.list))),
                        Err(error) => done.failed.push(error.into()),
                    }
                }
            }
            Err(error) => done.failed.push(error.into()),
        }
        match self.look().await {
            Ok(found) => networks.extend(found.network.map(|(_, list)| (list.name.clone(), list))),
            Err(error) => done.failed.push(error.into()),
        }
        networks
    }

    async fn collect(&self, list: &ConfList, valid: &Value, done: &mut GcReport) {
        let network = || list.name.clone();
        let settings = self.settings();
        let (bin_dirs, deadline) = (settings.bin_dirs.as_slice(), self.deadline());
        let version = match self.versions.negotiate(list, bin_dirs, deadline, &self.operations).await {
            Ok(version) => version,
            Err(source) => return done.failed.push(GcFailure::Collect { network: network(), source }),
        };
        if !version.has_status() {
            return;
        }
        let failed = PluginChain { list, version, bin_dirs, deadline, operations: &self.operations }.gc(valid).await;
        if failed.is_empty() {
            done.networks.push(network());
        }
        done.failed.extend(failed.into_iter().map(|source| GcFailure::Collect { network: network(), source }));
    }
}
