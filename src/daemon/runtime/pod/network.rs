//! Attaches pods to the CNI network or the built-in bridge, and detaches them.
//!
//! Detaching tries both kinds of network, independent of the pod's record, so cleanup after a crash
//! needs no record. CNI stores the pods that it attached on disk; a failed DEL is repeated until it
//! succeeds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::{CniConfig, NetworkConfig, NetworkMode};
use model::error_chain::chain;
use model::{ErrorClass, ErrorKind, PodId, PodSpec, PodState, PortMapping, RequestField};
use net::bridge::{Bridge, SettingsError};
use net::cni::{self, Cni};
use net::{Attached, bridge};
use sync::RwLock;

use crate::log_names::LogNames;
use crate::runtime::{Runtime, blocking, blocking_stop};
use crate::store::{NetworkKind, PodRecord};

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("attaching the pod to its CNI network")]
    Cni(#[source] Box<cni::AddError>),
    #[error("allocating addresses for the pod on the built-in bridge")]
    Address(#[from] bridge::ReserveError),
    #[error(transparent)]
    HostPort(#[from] bridge::PortError),
    #[error("attaching the pod to the built-in bridge")]
    Bridge(#[source] Box<bridge::AttachError>),
}

impl ErrorClass for NetworkError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Cni(e) => e.kind(),
            Self::Address(e) => e.kind(),
            Self::HostPort(e) => e.kind(),
            Self::Bridge(e) => e.kind(),
        }
    }

    fn field(&self) -> Option<RequestField> {
        match self {
            Self::HostPort(e) => e.field(),
            Self::Cni(_) | Self::Address(_) | Self::Bridge(_) => None,
        }
    }
}

impl From<bridge::AttachError> for NetworkError {
    fn from(error: bridge::AttachError) -> Self {
        match error {
            bridge::AttachError::Port(error) => Self::HostPort(error),
            error => Self::Bridge(Box::new(error)),
        }
    }
}

/// The interval of CNI's GC.
const GC_EVERY: Duration = Duration::from_secs(3600);

/// The networks for pods.
#[derive(Debug)]
pub(crate) struct Networks {
    mode: RwLock<NetworkMode>,
    cni: Arc<Cni>,
    /// The records of CNI: on disk, since allocations of plugins survive a reboot.
    cache: PathBuf,
    bridge: Arc<Bridge>,
}

/// Whether pods can be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// A sentence that names the network.
    Ready(String),
    NotReady {
        reason: &'static str,
        message: String,
    },
}

impl Networks {
    pub(crate) fn open(config: &NetworkConfig, cache: PathBuf) -> Result<Self, SettingsError> {
        let NetworkConfig { mode, cni, bridge } = config.clone();
        let cni = Arc::new(Cni::new(cni_settings(cni, &cache)));
        Ok(Self { mode: RwLock::new(mode), cni, cache, bridge: Arc::new(Bridge::open(bridge)?) })
    }

    /// Applies new settings to the next pods. The bridge keeps its settings, since pods use it.
    pub(crate) fn set(&self, config: &NetworkConfig) {
        let NetworkConfig { mode, cni, bridge: _ } = config;
        self.cni.set(cni_settings(cni.clone(), &self.cache));
        *self.mode.write() = *mode;
    }

    fn mode(&self) -> NetworkMode {
        *self.mode.read()
    }

    pub(crate) fn cni(&self) -> &Arc<Cni> {
        &self.cni
    }

    pub(crate) fn bridge(&self) -> &Arc<Bridge> {
        &self.bridge
    }

    /// Returns a value that changes when other files or settings decide about the network. Blocks on file I/O.
    pub(crate) fn fingerprint(&self) -> (NetworkMode, cni::DirStamp) {
        let mode = self.mode();
        match mode {
            NetworkMode::Auto | NetworkMode::Cni => (mode, self.cni.dir_stamp()),
            NetworkMode::Bridge | NetworkMode::None => (mode, cni::DirStamp::default()),
        }
    }

    /// Returns the kind of network for new pods.
    pub(crate) fn connection(&self) -> NetworkKind {
        match self.mode() {
            NetworkMode::Auto if self.cni.configured() => NetworkKind::Cni,
            NetworkMode::Auto | NetworkMode::Bridge => NetworkKind::Bridge,
            NetworkMode::Cni => NetworkKind::Cni,
            NetworkMode::None => NetworkKind::None,
        }
    }

    pub(crate) async fn readiness(&self) -> Readiness {
        let bridge = Arc::clone(&self.bridge);
        self.readiness_with(move || bridge.set_up()).await
    }

    /// Does the same, but only checks whether the bridge can be created.
    pub(crate) async fn readiness_without_changes(&self) -> Readiness {
        let bridge = Arc::clone(&self.bridge);
        self.readiness_with(move || bridge.check().map(|()| Vec::new())).await
    }

    async fn readiness_with(
        &self,
        bridge: impl FnOnce() -> Result<Vec<String>, bridge::NotReady> + Send + 'static,
    ) -> Readiness {
        match self.connection() {
            // As ready, the kubelet would create pods repeatedly and wait for their addresses.
            NetworkKind::None => Readiness::NotReady {
                reason: "NetworkOff",
                message: "network.mode is \"none\": pods have a loopback interface only".to_owned(),
            },
            NetworkKind::Cni => match self.cni.status().await {
                Ok(cni::Ready { network, file, skipped }) => {
                    let file = file.display();
                    let skipped: String = skipped.iter().map(|bad| format!("; {bad}")).collect();
                    Readiness::Ready(format!("pods are connected by the CNI network {network} of {file}{skipped}"))
                }
                Err(error) => Readiness::NotReady { reason: "CniNotReady", message: chain(&error) },
            },
            NetworkKind::Bridge => match blocking(bridge).await {
                Ok(warnings) => {
                    let warnings: String = warnings.iter().map(|warning| format!("; {warning}")).collect();
                    Readiness::Ready(format!("pods are connected by the built-in bridge{warnings}"))
                }
                Err(error) => Readiness::NotReady { reason: "BridgeNotReady", message: chain(&error) },
            },
        }
    }

    async fn connect(&self, pod: net::Pod) -> Result<(NetworkKind, Vec<IpAddr>), NetworkError> {
        let connection = self.connection();
        let Attached { ips, warnings } = match connection {
            NetworkKind::None => return Ok((connection, Vec::new())),
            NetworkKind::Cni => self.cni.add(&pod).await.map_err(|error| NetworkError::Cni(Box::new(error)))?,
            NetworkKind::Bridge => {
                let bridge = Arc::clone(&self.bridge);
                blocking(move || -> Result<Attached, NetworkError> {
                    let ips = bridge.reserve(&pod.id)?;
                    bridge.attach(&pod, &ips).map_err(NetworkError::from)
                })
                .await?
            }
        };
        for warning in warnings {
            tracing::warn!(
                warning,
                "the pod's network does not support a feature that the pod requests; the pod runs without it"
            );
        }
        Ok((connection, ips))
    }
}

impl Runtime {
    /// Attaches a pod whose namespaces exist. Does nothing for a pod with the host's network.
    pub(crate) async fn connect(&self, pod: &net::Pod) -> Result<(NetworkKind, Vec<IpAddr>), NetworkError> {
        match pod.netns {
            Some(_) => self.networks.connect(pod.clone()).await,
            None => Ok((NetworkKind::None, Vec::new())),
        }
    }

    /// Detaches a pod from all networks. A failed DEL of CNI is repeated later, also by the next
    /// daemon, so that a broken plugin does not delay the stop of a pod.
    pub(crate) async fn disconnect(&self, id: &PodId) {
        let (bridge, name) = (Arc::clone(self.networks.bridge()), id.to_string());
        // Does not wait for the removal of the interface: it is down already.
        if let Err(error) = blocking_stop(move || bridge.detach(&name).map(drop)).await {
            tracing::warn!(
                error = chain(&error),
                "cannot detach the stopped pod from the built-in bridge; leftovers may stay until the daemon's next start"
            );
        }
        let cni = self.networks.cni();
        match cni.is_attached(id.as_str()).await {
            Ok(false) => {}
            Ok(true) => {
                if let Err(error) = cni.del(&self.detach_target(id.as_str())).await {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot detach the stopped pod from its CNI network; will retry"
                    );
                }
            }
            Err(error) => tracing::warn!(
                error = chain(&error),
                "cannot read the CNI record of the stopped pod; it may still be attached"
            ),
        }
    }

    /// Returns a pod to detach. All else is in the record of CNI.
    fn detach_target(&self, id: &str) -> net::Pod {
        let netns = Some(self.layout.pods().join(id).join("netns"));
        net::Pod { id: id.to_owned(), netns, ..net::Pod::default() }
    }

    /// Restores the addresses and ports of running pods, and removes leftovers of others.
    pub(crate) async fn recover_networks(self: &Arc<Self>) {
        self.recover_pod_cidr();
        let (bridge, alive) = (Arc::clone(self.networks.bridge()), self.connected_by(NetworkKind::Bridge));
        // If the bridge was never in use here, it may belong to another daemon.
        let in_use = !alive.is_empty() || matches!(self.networks.mode(), NetworkMode::Auto | NetworkMode::Bridge);
        // Before the first pod, so that another daemon detects it when it starts.
        let wanted = self.networks.connection() == NetworkKind::Bridge;
        let position = self.layout.state.join("bridge-position.json");
        // Any interface may belong to this pod.
        let spared = self.pods().into_iter().find(|pod| pod.state == PodState::Unreadable && pod.is_nameless());
        blocking(move || {
            if !in_use {
                return;
            }
            for pod in alive {
                if let Err(error) = bridge.restore(pod.id.as_str(), &pod.ips, &host_ports(&pod.spec)) {
                    let _names = Self::pod_record_span(&pod).entered();
                    tracing::warn!(error = chain(&error), "cannot restore the addresses and host ports of a running pod after the daemon's start; recreate the pod if its network fails");
                }
            }
            if let Err(error) = bridge.resume(position) {
                tracing::warn!(error = chain(&error), "cannot read the last allocated pod address; allocation restarts at the first free address of the pool");
            }
            // The condition NetworkReady has the reason.
            if wanted && bridge.acquire().is_err() {
                return;
            }
            if let Some(pod) = spared {
                let _names = Self::pod_record_span(&pod).entered();
                return tracing::warn!("not removing leftover network interfaces: the record of this pod is unreadable and one may be its own");
            }
            match bridge.gc() {
                Ok((swept, _)) if swept.is_empty() => {}
                Ok((swept, _)) => tracing::info!(?swept, "removed network interfaces of pods that no longer exist"),
                Err(error) => {
                    tracing::warn!(error = chain(&error), "cannot remove network interfaces of pods that no longer exist; they stay until the daemon's next start")
                }
            }
        })
        .await;
        let runtime = Arc::downgrade(self);
        tokio::spawn(async move {
            if let Some(this) = runtime.upgrade() {
                this.check_networks().await;
            }
            while let Some(this) = runtime.upgrade() {
                this.collect_garbage().await;
                drop(this);
                tokio::time::sleep(GC_EVERY).await;
            }
        });
    }

    /// Calls CHECK of the plugins for pods that an earlier daemon attached.
    async fn check_networks(&self) {
        for pod in self.connected_by(NetworkKind::Cni) {
            if let Err(error) = self.networks.cni().check(&self.detach_target(pod.id.as_str())).await {
                let _names = Self::pod_record_span(&pod).entered();
                tracing::info!(
                    error = chain(&error),
                    "the CNI plugins report a problem of a running pod's network (CHECK); recreate the pod if it has no network"
                );
            }
        }
    }

    /// Returns whether CNI has records of pods that no longer exist.
    pub(crate) async fn has_garbage(&self) -> bool {
        let alive = self.alive();
        let cni = Arc::clone(self.networks.cni());
        let held = blocking(move || cni.attachments()).await.unwrap_or_default();
        held.iter().any(|pod| !alive.contains(pod))
    }

    /// Detaches pods that no longer exist, and calls GC of the plugins.
    pub(crate) async fn collect_garbage(&self) {
        let alive: Vec<String> = self.alive().into_iter().collect();
        let cni::GcReport { detached, identities, networks: _, failed } = self.networks.cni().gc(&alive).await;
        for pod in detached {
            let names = identities.get(&pod);
            let names = names.map(|cni::PodIdentity { namespace, name, uid }| LogNames::of_meta(namespace, name, uid));
            let _names = names.unwrap_or_default().with_pod_id(&pod).span().entered();
            tracing::info!("detached a pod that no longer exists from its CNI network");
        }
        for failure in failed {
            tracing::warn!(error = chain(&failure), "cannot collect the garbage of CNI networks; will retry");
        }
    }

    /// Returns all pods that are not stopped. A pod that is being created has a directory but no
    /// record.
    fn alive(&self) -> BTreeSet<String> {
        let stopped = |id: &String| match self.pods.find(id) {
            Ok(Some(entry)) => entry.get().state == PodState::NotReady,
            Ok(None) | Err(_) => false,
        };
        let known = safe_fs::list_names(&self.layout.pods()).unwrap_or_default();
        known.into_iter().filter(|id| !stopped(id)).collect()
    }

    fn connected_by(&self, connection: NetworkKind) -> Vec<Arc<PodRecord>> {
        self.pods().into_iter().filter(|pod| pod.state != PodState::NotReady && pod.network == connection).collect()
    }
}

fn cni_settings(CniConfig { conf_dir, bin_dirs, timeout, template }: CniConfig, cache: &Path) -> cni::Settings {
    cni::Settings { conf_dir, bin_dirs, cache_dir: cache.to_owned(), timeout, template }
}

/// Returns the pod for a network. `netns` is `None` with the host's network.
pub(crate) fn pod(id: &PodId, spec: &PodSpec, cgroup: &str, netns: Option<&Path>) -> net::Pod {
    let model::PodMeta { name, uid, namespace, attempt: _ } = spec.meta.clone();
    net::Pod {
        id: id.to_string(),
        name,
        namespace,
        uid,
        netns: netns.map(Path::to_owned),
        ports: host_ports(spec),
        bandwidth: spec.bandwidth,
        dns: spec.dns.clone(),
        annotations: spec.annotations.clone(),
        cgroup: cgroup.to_owned(),
    }
}

fn host_ports(spec: &PodSpec) -> Vec<PortMapping> {
    spec.port_mappings.iter().filter(|mapping| mapping.host_port != 0).cloned().collect()
}
