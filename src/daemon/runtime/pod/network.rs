//! The networks of pods: what connects a pod, how it gets in, and how it gets out.
//!
//! A pod that is to be disconnected is looked for in both kinds of network, whatever its record says: so whoever clears
//! away after a crash needs to know nothing of it. CNI keeps on disk what it connected, and what it could not disconnect
//! is tried again until it can.

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

use crate::runtime::{Runtime, blocking, blocking_stop};
use crate::store::{NetworkKind, PodRecord};

#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error("connecting the pod by CNI")]
    Cni(#[source] Box<cni::AddError>),
    #[error("an address for the pod")]
    Address(#[from] bridge::ReserveError),
    #[error(transparent)]
    HostPort(#[from] bridge::PortError),
    #[error("connecting the pod to the bridge")]
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

/// How often plugins are reported what is still in use.
const GC_EVERY: Duration = Duration::from_secs(3600);

/// All that pods can be connected by.
#[derive(Debug)]
pub(crate) struct Networks {
    mode: RwLock<NetworkMode>,
    cni: Arc<Cni>,
    /// Where CNI keeps what it connected: on disk, since what plugins reserve outlives a reboot.
    cache: PathBuf,
    bridge: Arc<Bridge>,
}

/// Whether pods can be connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// By what, in words.
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

    /// Connects the pods to come as it says now. The bridge itself stays as it is: pods hang on it.
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

    /// What connects the pods that come now.
    pub(crate) fn connection(&self) -> NetworkKind {
        match self.mode() {
            NetworkMode::Auto if self.cni.configured() => NetworkKind::Cni,
            NetworkMode::Auto | NetworkMode::Bridge => NetworkKind::Bridge,
            NetworkMode::Cni => NetworkKind::Cni,
            NetworkMode::None => NetworkKind::None,
        }
    }

    pub(crate) async fn readiness(&self) -> Readiness {
        match self.connection() {
            // A kubelet that believed otherwise would make pods again and again, waiting for their addresses.
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
            NetworkKind::Bridge => {
                let bridge = Arc::clone(&self.bridge);
                match blocking(move || bridge.set_up()).await {
                    Ok(warnings) => {
                        let warnings: String = warnings.iter().map(|warning| format!("; {warning}")).collect();
                        Readiness::Ready(format!("pods are connected by crisp's own bridge{warnings}"))
                    }
                    Err(error) => Readiness::NotReady { reason: "BridgeNotReady", message: chain(&error) },
                }
            }
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
            tracing::warn!(warning, "the pod's network lacks something that was asked for");
        }
        Ok((connection, ips))
    }
}

impl Runtime {
    /// Connects a pod whose namespaces are there, and says how. One with the host's network is connected already.
    pub(crate) async fn connect(&self, pod: &net::Pod) -> Result<(NetworkKind, Vec<IpAddr>), NetworkError> {
        match pod.netns {
            Some(_) => self.networks.connect(pod.clone()).await,
            None => Ok((NetworkKind::None, Vec::new())),
        }
    }

    /// Disconnects a pod, however it was connected. What CNI could not disconnect is tried again later, also by the next
    /// daemon: a pod's end waits for no plugin that is broken.
    pub(crate) async fn disconnect(&self, id: &PodId) {
        let (bridge, name) = (Arc::clone(self.networks.bridge()), id.to_string());
        // Nobody waits until the kernel has let go of the interface: nothing passes it any more.
        if let Err(error) = blocking_stop(move || bridge.detach(&name).map(drop)).await {
            tracing::warn!(pod = %id, error = chain(&error), "the pod could not be taken off the bridge");
        }
        let cni = self.networks.cni();
        match cni.is_attached(id.as_str()).await {
            Ok(false) => {}
            Ok(true) => {
                if let Err(error) = cni.del(&self.detach_target(id.as_str())).await {
                    tracing::warn!(pod = %id, error = chain(&error), "CNI could not disconnect the pod; trying again later");
                }
            }
            Err(error) => tracing::warn!(pod = %id, error = chain(&error), "what CNI did for the pod is not known"),
        }
    }

    /// A pod that is to be disconnected: the rest of what is to be known of it was written down when it was connected.
    fn detach_target(&self, id: &str) -> net::Pod {
        let netns = Some(self.layout.pods().join(id).join("netns"));
        net::Pod { id: id.to_owned(), netns, ..net::Pod::default() }
    }

    /// Takes up what living pods have of the networks, and takes away what dead ones left.
    pub(crate) async fn recover_networks(self: &Arc<Self>) {
        self.recover_pod_cidr();
        let (bridge, alive) = (Arc::clone(self.networks.bridge()), self.connected_by(NetworkKind::Bridge));
        // Where it was never in use, it is perhaps another daemon's.
        let in_use = !alive.is_empty() || matches!(self.networks.mode(), NetworkMode::Auto | NetworkMode::Bridge);
        // From the beginning, not from the first pod on: whoever starts next is to see it.
        let wanted = self.networks.connection() == NetworkKind::Bridge;
        let position = self.layout.state.join("bridge-position.json");
        // It may have any of the interfaces.
        let spared = self.pods().into_iter().find(|pod| pod.state == PodState::Unreadable && pod.is_nameless());
        blocking(move || {
            if !in_use {
                return;
            }
            for pod in alive {
                if let Err(error) = bridge.restore(pod.id.as_str(), &pod.ips, &host_ports(&pod.spec)) {
                    tracing::warn!(pod = %pod.id, error = chain(&error), "what the pod has of the network is not known");
                }
            }
            if let Err(error) = bridge.resume(position) {
                tracing::warn!(error = chain(&error), "where the last address of the pool was given out is not known");
            }
            if wanted && let Err(error) = bridge.acquire() {
                return tracing::warn!(error = chain(&error), "pods cannot be connected by crisp's own bridge");
            }
            if let Some(pod) = spared {
                return tracing::warn!(pod = %pod.id, "whose interfaces are left is not known while this pod is there: all of them stay");
            }
            match bridge.gc() {
                Ok((swept, _)) if swept.is_empty() => {}
                Ok((swept, _)) => tracing::info!(?swept, "removed what pods that are gone left of the network"),
                Err(error) => tracing::warn!(error = chain(&error), "what pods that are gone left of the network stays"),
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

    /// Asks the plugins whether the pods that an earlier daemon connected still are.
    async fn check_networks(&self) {
        for pod in self.connected_by(NetworkKind::Cni) {
            if let Err(error) = self.networks.cni().check(&self.detach_target(pod.id.as_str())).await {
                tracing::info!(pod = %pod.id, error = chain(&error), "a plugin says that the pod's network is not as it was made");
            }
        }
    }

    /// Whether CNI still holds something for pods that are gone.
    pub(crate) async fn has_garbage(&self) -> bool {
        let alive = self.alive();
        let cni = Arc::clone(self.networks.cni());
        let held = blocking(move || cni.attachments()).await.unwrap_or_default();
        held.iter().any(|pod| !alive.contains(pod))
    }

    /// Has CNI disconnect what is left of pods that are gone, and tells the plugins which are not.
    pub(crate) async fn collect_garbage(&self) {
        let alive: Vec<String> = self.alive().into_iter().collect();
        let cni::GcReport { detached, networks: _, failed } = self.networks.cni().gc(&alive).await;
        for pod in detached {
            tracing::info!(pod, "CNI disconnected a pod that is gone");
        }
        for failure in failed {
            tracing::warn!(error = chain(&failure), "CNI still holds something for pods that are gone");
        }
    }

    /// All pods but those that are stopped. One that is still being made has a directory, and no record yet.
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

/// What a network is reported of a pod. `netns` is none with the host's network.
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
