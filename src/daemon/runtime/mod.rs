//! The operations on pods and containers, one file per RPC.
//!
//! A pod or container exists once its record is written. Before anything else is created, an
//! *intent* names what may have to be removed, and [`cleanup`] removes it: after a failure, after a
//! crash, and for a removal. All three use the same steps, and each step succeeds if there is
//! nothing to do.
//!
//! Threads: the async threads read the cgroup files of one pod or container, and plan and write a
//! change that cannot wait, since each file takes microseconds and a hand-over takes longer.
//! Everything else that blocks goes through [`blocking`]: other files, mounts, changes that may
//! wait, and reads for all pods.

mod cleanup;
mod conditions;
pub(crate) mod container;
mod counts;
mod effective;
mod events;
mod exit_counts;
mod lifecycle_steps;
mod lookup;
mod names;
mod orphaned_layers;
mod plain_json;
pub(crate) mod pod;
mod pod_cidr;
mod recover;
mod recovered;
pub(crate) mod resize;
mod shim_monitor;
mod stats;
pub(crate) mod stream;
mod unreadable;
mod verbose_info;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use config::{CgroupDriver, Config};
use model::{CgroupPath, ContainerMeta, PodId, PodMeta};
use oci::cdi;
use safe_fs::FileError;
use security::seccomp::FilterCache;
use security::{Apparmor, Selinux};
use sync::threads::{ORDINARY, STOP, Threads};
use sync::{Mutex, RwLock};

use crate::sandbox_client::{SandboxClient, ShimProgram, SpawnError};
use crate::store::{CgroupRecord, ContainerRecord, Entry, Layout, Names, PodRecord, Table};

pub(crate) use conditions::Condition;
pub(crate) use container::remove::RemoveError;
pub(crate) use container::stop::StopError;
pub(crate) use counts::{Counts, DriftingLimits};
pub(crate) use effective::ContainerNames;
pub(crate) use events::{ContainerSnapshot, Event, EventKind, Subscription};
pub(crate) use exit_counts::ExitCounts;
pub(crate) use lookup::LookupError;
pub(crate) use pod::stop::StopPodError;
pub(crate) use resize::caller::{Caller, Peer};
pub(crate) use resize::history::PodHistoryItem;
pub(crate) use resize::history::entry::{FileLine, ForeignWrite, HistoryEntry, HistoryItem};
pub(crate) use resize::notice::ResizeNotices;
pub(crate) use resize::outcomes::{Outcome, ResizeOutcomes};
pub(crate) use stats::{
    ContainerMetrics, ContainerStatsEntry, Devices, MetricsSnapshot, PodMetrics, PodStatsEntry, StatsError,
};
pub(crate) use stream::exec_sync::ExecOutput;

/// The daemon could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("detecting the host's cgroups")]
    Cgroups(#[from] cgroup::DetectError),
    #[error("cgroup.driver is \"systemd\", but systemd cannot be reached")]
    Systemd(#[from] cgroup::SystemdError),
    #[error("invalid settings in [network.bridge]")]
    Network(#[from] net::bridge::SettingsError),
    #[error(transparent)]
    Shim(#[from] SpawnError),
    #[error(transparent)]
    Disk(#[from] FileError),
}

/// The state that all operations share.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// The settings at the start.
    config: Config,
    /// The current settings; those that need a restart are the ones of the start.
    settings: RwLock<Arc<Config>>,
    layout: Layout,
    cgroups: Arc<cgroup::Layout>,
    driver: cgroup::Driver,
    images: Arc<image::Store>,
    shim: ShimProgram,
    filters: FilterCache,
    networks: pod::network::Networks,
    apparmor: Apparmor,
    selinux: Selinux,
    specs: cdi::CdiRegistry,
    pods: Table<PodRecord>,
    containers: Table<ContainerRecord>,
    pod_names: Names<PodMeta>,
    container_names: Names<(PodId, ContainerMeta)>,
    /// The sandboxes of ready pods.
    sandboxes: Mutex<HashMap<PodId, SandboxClient>>,
    /// Cgroups that crisp created above those of pods.
    above: Mutex<cgroup::CreatedParents>,
    /// Cleanups to retry.
    pending_cleanup: Mutex<Vec<cleanup::PendingCleanup>>,
    /// Writable layers whose owner could not be read yet.
    unjudged: Mutex<Vec<String>>,
    /// Containers that an earlier daemon did not complete.
    unfinished: Mutex<Vec<String>>,
    resizes: ResizeOutcomes,
    refused_shrinks: effective::RefusedShrinks,
    limit_hits: effective::LimitHitTimes,
    level_files: effective::LevelFiles,
    history: resize::history::History,
    watched: Arc<resize::history::later::WatchedResizes>,
    notices: Arc<resize::notice::ResizeNotices>,
    exits: ExitCounts,
    /// Notified after every removal and every disconnected streaming client.
    freed: Arc<tokio::sync::Notify>,
    /// Measures the disk usage of writable layers.
    meter: Arc<stats::DiskUsageMeter>,
    /// The reason why pods cannot have user namespaces, if any.
    user_ns: pod::user_ns::UserNsUnavailable,
    events: events::EventHub,
    logged_conditions: conditions::LoggedConditions,
    stream_shutdown: stream::shutdown::StreamShutdown,
    exec_budget: Arc<stream::exec_budget::ExecBudget>,
    log_bytes_lost: AtomicU64,
}

impl Runtime {
    /// Recovers the pods of an earlier daemon, and removes incomplete ones.
    pub(crate) async fn open(config: Config, images: Arc<image::Store>) -> Result<Arc<Self>, OpenError> {
        let layout = Layout { state: config.state.clone(), root: config.root.clone() };
        safe_fs::private_dir(&layout.pods())?;
        safe_fs::private_dir(&layout.writable_layers())?;
        let filters = layout.state.join("seccomp");
        safe_fs::private_dir(&filters)?;
        let driver = match config.cgroup.driver {
            CgroupDriver::Cgroupfs => cgroup::Driver::Cgroupfs,
            CgroupDriver::Systemd => cgroup::Driver::Systemd(Arc::new(blocking(cgroup::Systemd::connect).await?)),
        };
        if config.cgroup.favordynmods
            && let Err(error) = cgroup::enable_favordynmods(&layout.state.join("moves"))
        {
            tracing::warn!(%error, "cannot enable favordynmods; container starts will be slower");
        }
        let shim = ShimProgram::load(&config.shim)?;
        let runtime = Arc::new(Self {
            driver,
            cgroups: Arc::new(cgroup::Layout::detect()?),
            user_ns: pod::user_ns::probe(&shim, &layout).await,
            shim,
            filters: FilterCache::new(filters),
            networks: pod::network::Networks::open(&config.network, layout.cni())?,
            apparmor: Apparmor::find(),
            selinux: Selinux::find(),
            settings: RwLock::new(Arc::new(config.clone())),
            specs: cdi::CdiRegistry::new(config.cdi.spec_dirs.clone()),
            above: Mutex::new(pod::parent_cgroups::read(&layout)),
            config,
            layout,
            images,
            pods: Table::default(),
            containers: Table::default(),
            pod_names: Names::default(),
            container_names: Names::default(),
            sandboxes: Mutex::default(),
            pending_cleanup: Mutex::default(),
            unjudged: Mutex::default(),
            unfinished: Mutex::default(),
            resizes: ResizeOutcomes::default(),
            refused_shrinks: effective::RefusedShrinks::default(),
            limit_hits: effective::LimitHitTimes::default(),
            level_files: effective::LevelFiles::default(),
            history: resize::history::History::default(),
            watched: Arc::default(),
            notices: Arc::default(),
            exits: ExitCounts::default(),
            freed: Arc::default(),
            meter: Arc::default(),
            events: events::EventHub::default(),
            logged_conditions: conditions::LoggedConditions::default(),
            stream_shutdown: stream::shutdown::StreamShutdown::default(),
            exec_budget: Arc::default(),
            log_bytes_lost: AtomicU64::new(0),
        });
        runtime.recover().await?;
        runtime.spawn_cleanup_loop();
        runtime.spawn_trim_loop();
        runtime.watch_systemd_reloads();
        runtime.watch_after_resizes();
        runtime.send_queued_notices();
        runtime.forget_early_events();
        runtime.watch_conditions().await;
        Ok(runtime)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the current settings, for those that can change without a restart.
    pub(crate) fn settings(&self) -> Arc<Config> {
        Arc::clone(&self.settings.read())
    }

    /// Applies settings that can change without a restart. Operations that run meanwhile use the
    /// old or the new ones.
    pub(crate) fn set_settings(&self, config: Config) {
        self.networks.set(&config.network);
        self.specs.set_dirs(config.cdi.spec_dirs.clone());
        self.images.set_limits(config.pull);
        *self.settings.write() = Arc::new(config);
    }

    pub(crate) fn images(&self) -> &Arc<image::Store> {
        &self.images
    }

    /// Returns the counts of resizes by outcome.
    pub(crate) fn resizes(&self) -> &ResizeOutcomes {
        &self.resizes
    }

    /// Returns all calls of CNI plugins.
    pub(crate) fn cni_operations(&self) -> BTreeMap<net::cni::Operation, net::cni::Calls> {
        self.networks.cni().operations()
    }

    /// Returns the directory of all writable layers.
    pub(crate) fn layers_dir(&self) -> std::path::PathBuf {
        self.layout.writable_layers()
    }

    /// Returns the sandbox of a pod, unless it has ended.
    fn sandbox_of(&self, pod: &PodId) -> Option<SandboxClient> {
        self.sandboxes.lock().get(pod).cloned()
    }

    fn cgroup(&self, path: &CgroupPath) -> cgroup::Cgroup {
        cgroup::Cgroup::with_driver(self.cgroups.clone(), &self.driver, path.clone())
    }

    /// Returns the cgroup of a pod or container.
    fn cgroup_of<'a, R: CgroupRecord>(&self, entry: &'a Entry<R>) -> &'a cgroup::Cgroup {
        entry.cgroup(|path| self.cgroup(path))
    }

    fn pod_dir(&self, id: &PodId) -> std::path::PathBuf {
        self.layout.pod(id)
    }
}

/// Runs short blocking work (files, mounts, cgroups) on the threads for it.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    run_on(&ORDINARY, work).await
}

/// Runs blocking work of stops, kills and removals, for which threads are reserved.
async fn blocking_stop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    run_on(&STOP, work).await
}

async fn run_on<T: Send + 'static>(threads: &'static Threads, work: impl FnOnce() -> T + Send + 'static) -> T {
    // Its log lines belong to the request's span.
    let span = tracing::Span::current();
    let done = threads.run(move || span.in_scope(work)).await;
    done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
}

/// Returns 32 random bytes for an ID.
fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    // getrandom(2) does not fail after the system has booted.
    while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(32) {}
    bytes
}
