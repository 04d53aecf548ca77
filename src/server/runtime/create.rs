//! CreateContainer.

use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use link::{Answer, Ask, CgroupView, CreateAsk, Launch, Overlay, ShownController};
use model::{
    Classed, ContainerId, ContainerSpec, GroupsPolicy, Kind, MountSource, NsMode, Phase, PodId, PodPhase, PodSpec,
    Profile, Signal, UserRef,
};

use super::clear::Intent;
use super::devices::{self, Devices, DevicesError};
use super::reopen_log::{self, LogError};
use super::{LookError, Runtime, blocking, random};
use crate::fault::{self, Fault};
use crate::oci::{self, Given, OciError};
use crate::seccomp::{SeccompError, Wanted};
use crate::shim::AskError;
use crate::store::{ContainerRecord, DiskError, ImageUsed, NameTaken, PodRecord, UserUsed, VERSION, disk};

#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error(transparent)]
    Look(#[from] LookError),
    #[error("pod {0} is not ready")]
    PodNotReady(PodId),
    #[error("sandbox_config.metadata is not that of pod {0}")]
    OtherPod(PodId),
    #[error(transparent)]
    NameTaken(#[from] NameTaken),
    #[error("config.image.image: there is no image {0:?}")]
    NoSuchImage(String),
    #[error("image {0} has no layers")]
    NoLayers(String),
    #[error("config.{0}")]
    Unsupported(&'static str),
    #[error("config.linux.security_context.privileged: the pod is not privileged")]
    PrivilegedAlone,
    #[error("config.mounts: {path}")]
    MountSource { path: PathBuf, source: io::Error },
    #[error("config.linux.security_context.namespace_options.target_id: container {0:?} is not running in this pod")]
    Target(String),
    #[error("the image's stop signal")]
    StopSignal(#[from] model::UnknownSignal),
    #[error("finding the container's user")]
    Accounts(#[from] image::AccountsError),
    #[error("the container's user")]
    User(#[from] image::UserError),
    #[error(transparent)]
    Devices(#[from] DevicesError),
    #[error(transparent)]
    Oci(#[from] OciError),
    #[error("config.linux.security_context.seccomp")]
    Seccomp(#[from] SeccompError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("the container's layers")]
    Layers(#[from] image::HoldError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("the container's cgroup")]
    CgroupPath(#[from] cgroup::InvalidPath),
    #[error("making the container's cgroup")]
    Cgroup(#[from] cgroup::GroupError),
    #[error("config.linux.resources")]
    Limits(#[from] cgroup::ApplyError),
    #[error("putting the container's device rules in force")]
    DeviceRules(#[from] cgroup::DeviceError),
    #[error("failed to create container {0}")]
    Shim(ContainerId, #[source] AskError),
    #[error("config.linux.resources.oom_score_adj: {0}")]
    OomScore(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Classed for CreateError {
    fn kind(&self) -> Kind {
        match self {
            Self::Look(e) => e.kind(),
            Self::PodNotReady(_) | Self::Target(_) | Self::OomScore(_) => Kind::Precondition,
            Self::OtherPod(_) | Self::StopSignal(_) | Self::CgroupPath(_) | Self::NoLayers(_) => Kind::Invalid,
            Self::NameTaken(e) => e.kind(),
            Self::NoSuchImage(_) => Kind::NotFound,
            Self::Unsupported(_) => Kind::Unsupported,
            Self::MountSource { .. } | Self::PrivilegedAlone => Kind::Invalid,
            Self::Accounts(e) => e.kind(),
            Self::User(e) => e.kind(),
            Self::Devices(e) => e.kind(),
            Self::Oci(e) => e.kind(),
            Self::Seccomp(e) => e.kind(),
            Self::Log(e) => e.kind(),
            Self::Layers(e) => e.kind(),
            Self::Disk(e) => e.kind(),
            Self::Cgroup(e) => e.kind(),
            Self::Limits(e) => e.kind(),
            Self::DeviceRules(e) => e.kind(),
            Self::Shim(_, e) => e.kind(),
            Self::Fault(_) => Kind::Internal,
        }
    }
}

/// What was found out before anything is made.
struct Draft {
    id: ContainerId,
    spec: ContainerSpec,
    pod: Arc<PodRecord>,
    image: Arc<image::Image>,
    user: image::User,
    groups: Vec<u32>,
    stop_signal: Signal,
    devices: Devices,
    seccomp: Option<PathBuf>,
    log: Option<(PathBuf, File)>,
    sources: Vec<PathBuf>,
    target: Option<u32>,
    cgroup: cgroup::Cgroup,
}

impl Runtime {
    pub(crate) async fn create(
        self: &Arc<Self>,
        pod: &str,
        spec: ContainerSpec,
        pod_spec: Option<PodSpec>,
    ) -> Result<ContainerId, CreateError> {
        let entry = self.pod_entry(pod)?;
        // A pod that is being stopped takes no more containers.
        let _turn = entry.work().await;
        let pod = entry.look();
        if pod.phase != PodPhase::Ready {
            return Err(CreateError::PodNotReady(pod.id.clone()));
        }
        if pod_spec.is_some_and(|asked| asked.meta != pod.spec.meta) {
            return Err(CreateError::OtherPod(pod.id.clone()));
        }
        let id = ContainerId::from_bytes(random());
        let name = self.container_names.reserve((pod.id.clone(), spec.meta.clone()), id.as_str())?;
        let (runtime, draft_id, draft_pod) = (self.clone(), id.clone(), pod.clone());
        let draft = blocking(move || runtime.draft(draft_id, draft_pod, spec)).await?;
        match self.make_container(draft).await {
            Ok(()) => {
                name.keep();
                Ok(id)
            }
            Err(error) => {
                self.clear_container(&pod.id, &id).await;
                Err(error)
            }
        }
    }

    /// Everything that can be refused, before the first change.
    fn draft(&self, id: ContainerId, pod: Arc<PodRecord>, spec: ContainerSpec) -> Result<Draft, CreateError> {
        supported(&spec)?;
        if spec.security.privileged && !pod.spec.security.privileged {
            return Err(CreateError::PrivilegedAlone);
        }
        let image = self.images.find(&spec.image.image);
        let image = image.ok_or_else(|| CreateError::NoSuchImage(spec.image.image.clone()))?;
        if image.chain.is_empty() {
            return Err(CreateError::NoLayers(spec.image.image.clone()));
        }
        let (user, groups) = self.user(&spec, &image)?;
        let stop_signal = match (spec.stop_signal, image.config.stop_signal.as_str()) {
            (Some(asked), _) => asked,
            (None, "") => Signal::TERM,
            (None, image) => Signal::parse(image)?,
        };
        let devices = devices::of(&spec)?;
        let seccomp = self.seccomp(&spec)?;
        let target = self.target(&pod, &spec)?;
        let sources = spec.mounts.iter().map(mount_source).collect::<Result<_, _>>()?;
        let cgroup = self.cgroup(&pod.cgroup.path)?.path().join(id.as_str())?;
        let cgroup = cgroup::Cgroup::new(self.cgroups.clone(), cgroup);
        let log = match (&pod.spec.log_directory, &spec.log_path) {
            (Some(directory), Some(path)) => Some((directory.join(path), reopen_log::open(directory, path)?)),
            (None, _) | (_, None) => None,
        };
        let draft = Draft {
            id, spec, pod, image, user, groups, stop_signal, devices, seccomp, log, sources, target, cgroup,
        };
        // Refuses what the configuration cannot say; the real one is built once the rest is there.
        self.configure(&draft)?;
        Ok(draft)
    }

    fn configure(&self, draft: &Draft) -> Result<oci_spec::runtime::Spec, OciError> {
        oci::build(&Given {
            pod: &draft.pod.spec,
            held: &draft.pod.held,
            pod_dir: &self.pod_dir(&draft.pod.id),
            container: &draft.spec,
            image: &draft.image,
            user: &draft.user,
            groups: &draft.groups,
            cgroup: draft.cgroup.path().as_str(),
            cgroups: self.cgroups.version(),
            sources: &draft.sources,
            devices: &draft.devices.nodes,
            target: draft.target,
        })
    }

    fn user(&self, spec: &ContainerSpec, image: &image::Image) -> Result<(image::User, Vec<u32>), CreateError> {
        let security = &spec.security;
        let (id, name) = match &security.run_as {
            Some(UserRef::Id(id)) => (Some(i64::from(*id)), ""),
            Some(UserRef::Name(name)) => (None, name.as_str()),
            None => (None, ""),
        };
        let ask = image::UserAsk {
            run_as_user: id,
            run_as_username: name,
            run_as_group: security.run_as_group.map(i64::from),
            image_user: &image.config.user,
        };
        let accounts = self.images.accounts(image)?;
        let user = image::resolve_user(&accounts, ask)?;
        let mut groups = security.supplemental_groups.clone();
        if security.groups_policy == GroupsPolicy::Merge {
            groups.extend(&user.groups);
        }
        // The primary group is among them: programs such as `id` and `newgrp` expect it, and so do the peers.
        groups.push(user.gid);
        groups.sort_unstable();
        groups.dedup();
        Ok((user, groups))
    }

    fn seccomp(&self, spec: &ContainerSpec) -> Result<Option<PathBuf>, CreateError> {
        if spec.security.privileged {
            return Ok(None);
        }
        let wanted = match &spec.security.seccomp {
            None | Some(Profile::Unconfined) => return Ok(None),
            Some(Profile::RuntimeDefault) => Wanted::RuntimeDefault,
            Some(Profile::Localhost(path)) => Wanted::Localhost(Path::new(path)),
        };
        let capabilities = oci::capabilities_of(&spec.security)?.iter().map(ToString::to_string).collect();
        Ok(Some(self.filters.path_for(wanted, &capabilities)?))
    }

    /// The first process of the container whose PID namespace is asked for.
    fn target(&self, pod: &PodRecord, spec: &ContainerSpec) -> Result<Option<u32>, CreateError> {
        let spaces = &spec.security.namespaces;
        if spaces.pid != NsMode::Target {
            return Ok(None);
        }
        let name = spaces.target.clone().unwrap_or_default();
        let target = self.container(&name).ok().filter(|c| c.pod == pod.id);
        match target.map(|c| c.phase.clone()) {
            Some(Phase::Running { pid, .. }) => Ok(Some(pid.get())),
            _ => Err(CreateError::Target(name)),
        }
    }

    async fn make_container(self: &Arc<Self>, draft: Draft) -> Result<(), CreateError> {
        let (runtime, shim) = (self.clone(), self.shim_of(&draft.pod.id));
        let shim = shim.ok_or_else(|| CreateError::PodNotReady(draft.pod.id.clone()))?;
        let (dir, draft) = blocking(move || runtime.prepare(draft)).await?;
        let ask = Ask::Create(CreateAsk { container: draft.id.clone(), dir });
        let log = draft.log.as_ref().map(|(_, file)| file.as_fd());
        let asked = shim.ask(ask, log.as_slice()).await;
        let (pid, warnings) = match asked.map_err(|e| CreateError::Shim(draft.id.clone(), e))? {
            Answer::Created { pid, warnings } => (pid, warnings),
            _ => return Err(CreateError::Shim(draft.id.clone(), AskError::Mismatch)),
        };
        fault::at("create.launch")?;
        for warning in &warnings {
            if self.config.oom_score_adj == crate::config::OomPolicy::Require && warning.starts_with("oom_score_adj") {
                return Err(CreateError::OomScore(warning.clone()));
            }
            tracing::warn!(container = %draft.id, warning);
        }
        let pid = NonZeroU32::new(pid).ok_or_else(|| CreateError::Shim(draft.id.clone(), AskError::Mismatch))?;
        self.publish_container(draft, pid)
    }

    /// Makes all that the shim finds in the container's directory, and the cgroup.
    fn prepare(&self, draft: Draft) -> Result<(PathBuf, Draft), CreateError> {
        let dir = self.layout.container(&draft.pod.id, &draft.id);
        fault::at("create.begin")?;
        disk::private_dir(&dir)?;
        let intent = Intent { cgroup: draft.cgroup.path().as_str().to_owned(), ours: true };
        disk::write_json(&dir.join(Intent::FILE), &intent)?;
        fault::at("create.intent")?;
        self.images.hold(draft.id.as_str(), &draft.image.id)?;
        let writable = self.layout.writable(&draft.id);
        disk::private_dir(&writable)?;
        let overlay = Overlay {
            layers: self.images.layers_dir(),
            lower: self.images.lowers(&draft.image)?,
            upper: writable.join("upper"),
            work: writable.join("work"),
        };
        disk::private_dir(&overlay.work)?;
        disk::public_dir(&overlay.upper)?;
        fault::at("create.layer")?;
        // Taken back by `clear_container`, which the intent tells of it.
        drop(draft.cgroup.create()?);
        draft.cgroup.set_devices(&draft.devices.rules)?;
        draft.cgroup.apply(&draft.spec.resources)?;
        fault::at("create.cgroup")?;
        let launch = self.launch(&draft, overlay);
        let spec = self.configure(&draft)?;
        disk::write_json(&dir.join("config.json"), &spec)?;
        disk::write_json(&Launch::path(&dir), &launch)?;
        fault::at("create.bundle")?;
        Ok((dir, draft))
    }

    fn launch(&self, draft: &Draft, rootfs: Overlay) -> Launch {
        let shown = draft.cgroup.mounts().into_iter();
        Launch {
            rootfs,
            tty: draft.spec.tty,
            stdin: draft.spec.stdin,
            stdin_once: draft.spec.stdin_once,
            log_line_max: self.config.log_line_max,
            seccomp: draft.seccomp.clone(),
            oom_score_adj: draft.spec.resources.oom_score_adj.map(|score| i32::from(score.get())),
            cgroup: CgroupView {
                oom: draft.cgroup.oom_file(),
                join: draft.cgroup.join_files(),
                shown: shown.map(|s| ShownController { name: s.name, dir: s.dir, aliases: s.links }).collect(),
            },
        }
    }

    /// From here on the container exists.
    fn publish_container(&self, draft: Draft, pid: NonZeroU32) -> Result<(), CreateError> {
        let Draft { id, spec, pod, image, user, groups, stop_signal, log, cgroup, .. } = draft;
        let reference = image.repo_digests.first().cloned().unwrap_or_else(|| image.id.to_string());
        let record = ContainerRecord {
            version: VERSION,
            id,
            pod: pod.id.clone(),
            spec,
            created: SystemTime::now(),
            phase: Phase::Created { pid },
            image: ImageUsed { id: image.id.to_string(), reference },
            user: UserUsed { uid: user.uid, gid: user.gid, groups },
            log: log.map(|(path, _)| path),
            stop_signal,
            cgroup: cgroup.path().as_str().to_owned(),
        };
        disk::write_json(&self.layout.container(&record.pod, &record.id).join("container.json"), &record)?;
        self.containers.insert(record);
        Ok(())
    }
}

/// Refuses what this release cannot do, by the field's name.
fn supported(spec: &ContainerSpec) -> Result<(), CreateError> {
    let security = &spec.security;
    if !spec.cdi_devices.is_empty() {
        return Err(CreateError::Unsupported("CDI_devices: CDI is not supported yet"));
    }
    if security.namespaces.user.is_some() {
        return Err(CreateError::Unsupported("linux.security_context.namespace_options.userns_options: not supported yet"));
    }
    if security.selinux.is_some() && !Path::new("/sys/fs/selinux/enforce").exists() {
        return Err(CreateError::Unsupported("linux.security_context.selinux_options: this host has no SELinux"));
    }
    if security.selinux.is_some() {
        return Err(CreateError::Unsupported("linux.security_context.selinux_options: not supported yet"));
    }
    match &security.apparmor {
        Some(Profile::Localhost(_)) if !has_apparmor() => {
            return Err(CreateError::Unsupported("linux.security_context.apparmor: this host has no AppArmor"));
        }
        Some(Profile::Localhost(_)) => {
            return Err(CreateError::Unsupported("linux.security_context.apparmor: not supported yet"));
        }
        // A default that the host does not have confines nothing, here as with the peers.
        Some(Profile::RuntimeDefault | Profile::Unconfined) | None => {}
    }
    for mount in &spec.mounts {
        if matches!(mount.source, MountSource::Image { .. }) {
            return Err(CreateError::Unsupported("mounts: image volumes are not supported yet"));
        }
        if !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty() {
            return Err(CreateError::Unsupported("mounts: id mappings are not supported yet"));
        }
        if !mount.options.is_empty() {
            return Err(CreateError::Unsupported("mounts: mount_options are not supported yet"));
        }
    }
    Ok(())
}

pub(super) fn has_apparmor() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|t| t.starts_with('Y'))
}

/// Where a mount comes from. A directory that is missing is made, as the peers do.
fn mount_source(mount: &model::Mount) -> Result<PathBuf, CreateError> {
    let MountSource::Host(path) = &mount.source else {
        return Err(CreateError::Unsupported("mounts: image volumes are not supported yet"));
    };
    let failed = |source| CreateError::MountSource { path: path.clone(), source };
    match std::fs::metadata(path) {
        Ok(_) => {}
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => std::fs::create_dir_all(path).map_err(failed)?,
        Err(error) => return Err(failed(error)),
    }
    Ok(path.clone())
}
