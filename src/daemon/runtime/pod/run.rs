//! RunPodSandbox: creates the cgroup, the shim with its namespaces, and the network of a pod.
//!
//! The intent is written before anything is created, the record when all is: a failure or a crash in between is undone
//! by `cleanup_pod`, which removes what the intent lists.

use std::sync::Arc;
use std::time::SystemTime;

use cgroup::AppliedValues;
use config::{Handler, NoSuchHandler};
use model::{ErrorClass, ErrorKind, NsMode, PodId, PodMeta, PodSpec, PodState, Profile, RequestField};
use safe_fs::FileError;
use security::{Labels, SelinuxError};
use shim_protocol::{PodNamespaces, Sandbox, SandboxRequest};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::network::{self, NetworkError};
use super::sysctl::{self, SysctlError};
use super::user_ns::UserNsError;
use super::{etc_files, limits};
use crate::failpoint;
use crate::failpoint::InjectedFailure;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::resize::notice::selection::{self, NoticeError};
use crate::runtime::{Runtime, blocking, random};
use crate::sandbox_client::{SandboxClient, SandboxError, SandboxEvent, SpawnError};
use crate::store::intent::INTENT_FILE;
use crate::store::{NameTaken, NetworkKind, POD_FILE, PodCgroup, PodIntent, PodRecord, VERSION};

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunPodError {
    #[error(transparent)]
    Handler(#[from] NoSuchHandler),
    #[error("the runtime handler {0:?} does not allow privileged pods")]
    Privileged(String),
    #[error(transparent)]
    Notice(#[from] NoticeError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    #[error("the pod requests an AppArmor profile, and this host has no AppArmor")]
    NoApparmor,
    #[error(transparent)]
    Selinux(#[from] SelinuxError),
    #[error(transparent)]
    UserNs(#[from] UserNsError),
    #[error(transparent)]
    NameTaken(#[from] NameTaken),
    #[error(transparent)]
    CgroupParent(model::InvalidCgroupPath),
    #[error("creating the pod's cgroup")]
    Cgroup(#[from] cgroup::CgroupError),
    #[error(transparent)]
    Limits(#[from] cgroup::ApplyError),
    #[error(transparent)]
    Disk(#[from] FileError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error("creating the pod's sandbox")]
    Hold(#[from] SandboxError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Fault(#[from] InjectedFailure),
}

impl ErrorClass for RunPodError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::CgroupParent(_) | Self::Privileged(_) => ErrorKind::Invalid,
            Self::Handler(e) => e.kind(),
            Self::Notice(e) => e.kind(),
            Self::Sysctl(e) => e.kind(),
            Self::NoApparmor => ErrorKind::Unsupported,
            Self::Selinux(e) => e.kind(),
            Self::UserNs(e) => e.kind(),
            Self::NameTaken(e) => e.kind(),
            Self::Cgroup(e) => e.kind(),
            Self::Limits(e) => e.kind(),
            Self::Disk(e) => e.kind(),
            Self::Spawn(e) => e.kind(),
            Self::Hold(e) => e.kind(),
            Self::Network(e) => e.kind(),
            Self::Fault(_) => ErrorKind::Internal,
        }
    }

    fn field(&self) -> Option<RequestField> {
        match self {
            Self::Handler(_) => Some(RequestField::RuntimeHandler),
            Self::Privileged(_) => Some(RequestField::Privileged),
            Self::Sysctl(e) => e.field(),
            Self::NoApparmor => Some(RequestField::Apparmor),
            Self::Selinux(_) => Some(RequestField::SelinuxOptions),
            Self::UserNs(e) => e.field(),
            Self::CgroupParent(_) => Some(RequestField::CgroupParent),
            Self::Limits(_) => Some(RequestField::Resources),
            Self::Network(e) => e.field(),
            Self::Notice(_) | Self::NameTaken(_) | Self::Cgroup(_) | Self::Disk(_) => None,
            Self::Spawn(_) | Self::Hold(_) | Self::Fault(_) => None,
        }
    }
}

/// The kernel's OOM killer chooses a shim among the last processes.
const SHIM_OOM_SCORE: i32 = -998;

impl Runtime {
    pub(crate) async fn run_pod(self: &Arc<Self>, spec: PodSpec) -> Result<PodId, RunPodError> {
        let settings = self.settings();
        let handler = settings.handlers.for_field(&spec.handler)?;
        self.check(&spec, handler)?;
        self.check_user_ns(&spec)?;
        let id = PodId::from_bytes(random());
        let name = self.pod_names.reserve(spec.meta.clone(), PodMeta::to_string, id.as_str())?;
        let labels = self.selinux.of_pod(id.as_str(), spec.security.selinux.as_ref(), handler.selinux);
        let labels = labels.inspect_err(|_| self.selinux.free(id.as_str()))?;
        match self.make_pod(&id, spec, labels, handler.shm_size).await {
            Ok(()) => {
                name.keep();
                Ok(id)
            }
            Err(error) => {
                self.cleanup_pod(&id).await;
                Err(error)
            }
        }
    }

    async fn make_pod(
        self: &Arc<Self>,
        id: &PodId,
        spec: PodSpec,
        selinux: Option<Labels>,
        shm_size: u64,
    ) -> Result<(), RunPodError> {
        let dir = self.pod_dir(id);
        let cgroup = self.pod_cgroup(id, &spec)?;
        failpoint::at("run_pod.begin")?;
        safe_fs::private_dir(&dir)?;
        let mut intent = PodIntent::new(&spec, &cgroup, selinux.as_ref());
        safe_fs::write_json(&dir.join(INTENT_FILE), &intent)?;
        failpoint::at("run_pod.intent")?;
        let mut settings = AppliedValues::new();
        if cgroup.ours {
            let group = self.cgroup(&cgroup.path);
            let limits = limits::of(&spec);
            let runtime = Arc::clone(self);
            let made = blocking(move || -> Result<AppliedValues, RunPodError> {
                // Removed by `cleanup_pod`, because the intent names it.
                runtime.record_parent_cgroups(&group.create()?, &group);
                Ok(group.apply(&limits)?)
            });
            settings = made.await?;
        }
        failpoint::at("run_pod.cgroup")?;
        let hostname = etc_files::hostname(&spec);
        let starting = tracing::debug_span!("shim.spawn");
        starting.in_scope(|| SandboxClient::spawn(&self.shim, &dir))?;
        failpoint::at("run_pod.shim")?;
        let (sender, events) = mpsc::unbounded_channel();
        let client = SandboxClient::connect(&dir, sender).instrument(starting).await?;
        let creating = self.create_sandbox(&client, id, &spec, &hostname, selinux.as_ref(), shm_size);
        let sandbox = creating.instrument(tracing::debug_span!("sandbox.create")).await?;
        failpoint::at("run_pod.sandbox")?;
        // Removed by `cleanup_pod`, which disconnects the pod from all networks.
        let pod = network::pod(id, &spec, cgroup.path.as_str(), sandbox.network.as_deref());
        let (connection, ips) = self.connect(&pod).instrument(tracing::debug_span!("network.connect")).await?;
        if connection != NetworkKind::None {
            // A daemon that cannot read the record keeps these addresses reserved.
            (intent.network, intent.ips) = (Some(connection), Some(ips.clone()));
            safe_fs::write_json(&dir.join(INTENT_FILE), &intent)?;
        }
        failpoint::at("run_pod.network")?;
        etc_files::write(&dir, &spec, &hostname, &ips, selinux.as_ref())?;
        let record = PodRecord {
            version: VERSION,
            id: id.clone(),
            spec,
            created: intent.created.unwrap_or_else(SystemTime::now),
            state: PodState::Ready,
            hostname,
            sandbox,
            cgroup,
            applied: settings,
            ips,
            network: connection,
            selinux,
            unreadable: None,
        };
        self.at_step(&Step::RunPod(&record));
        self.publish_pod(record, client, events)?;
        Ok(())
    }

    /// Makes the pod visible.
    fn publish_pod(
        self: &Arc<Self>,
        record: PodRecord,
        sandbox: SandboxClient,
        events: mpsc::UnboundedReceiver<SandboxEvent>,
    ) -> Result<(), FileError> {
        let id = record.id.clone();
        safe_fs::write_json(&self.pod_dir(&id).join(POD_FILE), &record)?;
        let entry = self.pods.insert(record);
        self.attach(id, sandbox, events);
        self.publish_pod_events(&entry);
        Ok(())
    }

    async fn create_sandbox(
        &self,
        client: &SandboxClient,
        id: &PodId,
        spec: &PodSpec,
        hostname: &str,
        selinux: Option<&Labels>,
        shm_size: u64,
    ) -> Result<Sandbox, SandboxError> {
        let spaces = &spec.security.namespaces;
        let request = SandboxRequest {
            dir: self.pod_dir(id),
            namespaces: PodNamespaces {
                network: spaces.network != NsMode::Node,
                ipc: spaces.ipc != NsMode::Node,
                uts: spaces.network != NsMode::Node,
                pid: spaces.pid == NsMode::Pod,
            },
            user: spaces.user.clone(),
            hostname: hostname.to_owned(),
            sysctls: spec.sysctls.clone(),
            shm_size,
            mount_label: selinux.map(|labels| labels.mount.clone()),
            oom_score_adj: SHIM_OOM_SCORE,
        };
        let sandbox = client.create_sandbox(request).await?;
        // A shim without support for user namespaces would ignore them.
        if sandbox.user.is_some() == spaces.user.is_some() { Ok(sandbox) } else { Err(SandboxError::Mismatch) }
    }

    /// Returns the client's cgroup, which crisp never writes to, or a new one.
    fn pod_cgroup(&self, id: &PodId, spec: &PodSpec) -> Result<PodCgroup, RunPodError> {
        let (path, ours) = match &spec.cgroup_parent {
            Some(parent) => {
                let given = self.driver.given(parent);
                (given.and_then(|path| self.cgroups.refuse_existing_files(path)), false)
            }
            None => (self.driver.pod(&self.config.cgroup.parent, id.as_str()), true),
        };
        Ok(PodCgroup { path: path.map_err(RunPodError::CgroupParent)?, ours })
    }

    /// Refuses a request that a later step could not fulfil.
    fn check(&self, spec: &PodSpec, handler: &Handler) -> Result<(), RunPodError> {
        if spec.security.privileged && !handler.privileged {
            return Err(RunPodError::Privileged(spec.handler.clone()));
        }
        selection::check(spec, handler)?;
        sysctl::check(spec)?;
        // The pod runs no program, so its profiles and its user are only stored.
        if matches!(&spec.security.apparmor, Some(Profile::Localhost(_))) && !self.apparmor.is_there() {
            return Err(RunPodError::NoApparmor);
        }
        Ok(())
    }
}
