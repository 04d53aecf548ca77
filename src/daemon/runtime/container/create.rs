//! CreateContainer.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use config::{NoSuchHandler, OomPolicy};
use model::{ContainerId, ContainerSpec, ContainerState, ErrorClass, ErrorKind, ImageName, PodId, PodSpec, PodState};
use oci::OciError;
use oci::cdi::CdiError;
use safe_fs::FileError;
use security::seccomp::SeccompError;
use security::{ApparmorError, RelabelError, SelinuxError, relabel};
use shim_protocol::{CgroupMount, CgroupPaths, CreateRequest, LaunchConfig, Overlay};
use tracing::Instrument as _;

use super::devices::DevicesError;
use super::log::LogError;
use super::plan::ContainerPlan;
use super::pod_resources_check::ResourceMismatch;
use super::poststop_hooks;
use super::volumes::{ImageVolumeError, MountError};
use crate::failpoint;
use crate::failpoint::InjectedFailure;
use crate::runtime::cleanup::CleanupIntent;
use crate::runtime::pod::etc_files;
use crate::runtime::pod::handler::HandlerMissing;
use crate::runtime::shim_monitor::recorded_exit;
use crate::runtime::{LookupError, Runtime, blocking, layer_gc, random};
use crate::sandbox::SandboxError;
use crate::store::{ContainerImage, ContainerRecord, ContainerUser, NameTaken, PodRecord, StopWaiters, VERSION};

#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error("pod {0} is not ready")]
    PodNotReady(PodId),
    #[error(transparent)]
    Handler(#[from] HandlerMissing),
    #[error(transparent)]
    ImageHandler(#[from] NoSuchHandler),
    #[error("sandbox_config.metadata is not that of pod {0}")]
    OtherPod(PodId),
    #[error(transparent)]
    NameTaken(#[from] NameTaken),
    #[error(transparent)]
    NotAsAnnounced(#[from] ResourceMismatch),
    #[error("config.image.image: there is no image {0:?}")]
    NoSuchImage(String),
    #[error("image {0} has no layers")]
    NoLayers(String),
    #[error("config.linux.security_context.privileged: the pod is not privileged")]
    PrivilegedAlone,
    #[error("config.linux.security_context.privileged: the runtime handler {0:?} does not allow it")]
    Privileged(String),
    #[error("config.mounts: {path}")]
    MountSource { path: PathBuf, source: io::Error },
    /// In the word that CRI has for it, which clients may look for.
    #[error("ImageVolumeMountFailed")]
    ImageMount(#[source] MountError),
    #[error("the volumes of the container's image")]
    Declared(#[from] ImageVolumeError),
    #[error("filling the volumes of the container's image")]
    Volumes(#[from] image::VolumeError),
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
    Cdi(#[from] CdiError),
    #[error(transparent)]
    Oci(#[from] OciError),
    #[error("config.linux.security_context.seccomp")]
    Seccomp(#[from] SeccompError),
    #[error("the profile that is configured as the default for seccomp")]
    DefaultSeccomp(#[source] SeccompError),
    #[error("config.linux.security_context.apparmor")]
    Apparmor(#[from] ApparmorError),
    #[error("config.linux.security_context.selinux_options")]
    Selinux(#[from] SelinuxError),
    #[error("config.mounts[{index}].selinux_relabel")]
    Relabel { index: usize, source: RelabelError },
    #[error("labelling the volumes of the container's image")]
    VolumeLabels(#[source] RelabelError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("the container's layers")]
    Layers(#[from] image::HoldError),
    #[error(transparent)]
    Disk(#[from] FileError),
    #[error("the container's cgroup")]
    CgroupPath(#[from] cgroup::InvalidPath),
    #[error("making the container's cgroup")]
    Cgroup(#[from] cgroup::CgroupError),
    #[error("config.linux.resources")]
    Limits(#[from] cgroup::ApplyError),
    #[error("putting the container's device rules in force")]
    DeviceRules(#[from] cgroup::DeviceError),
    #[error("failed to create container {0}")]
    Shim(ContainerId, #[source] SandboxError),
    #[error("config.linux.resources.oom_score_adj: {0}")]
    OomScore(String),
    #[error(transparent)]
    Fault(#[from] InjectedFailure),
}

impl ErrorClass for CreateError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::PodNotReady(_) | Self::Target(_) | Self::OomScore(_) => ErrorKind::Precondition,
            Self::OtherPod(_) | Self::StopSignal(_) | Self::CgroupPath(_) | Self::NoLayers(_) => ErrorKind::Invalid,
            Self::Handler(e) => e.kind(),
            Self::ImageHandler(e) => e.kind(),
            Self::NameTaken(e) => e.kind(),
            Self::NotAsAnnounced(e) => e.kind(),
            Self::NoSuchImage(_) => ErrorKind::NotFound,
            Self::MountSource { .. } | Self::PrivilegedAlone | Self::Privileged(_) => ErrorKind::Invalid,
            Self::ImageMount(e) => e.kind(),
            Self::Declared(e) => e.kind(),
            Self::Volumes(e) => e.kind(),
            Self::Accounts(e) => e.kind(),
            Self::User(e) => e.kind(),
            Self::Devices(e) => e.kind(),
            Self::Cdi(e) => e.kind(),
            Self::Oci(e) => e.kind(),
            Self::Seccomp(e) => e.kind(),
            Self::Apparmor(e) => e.kind(),
            Self::Selinux(e) => e.kind(),
            Self::Relabel { source, .. } | Self::VolumeLabels(source) => source.kind(),
            Self::Log(e) => e.kind(),
            Self::Layers(e) => e.kind(),
            Self::Disk(e) => e.kind(),
            Self::Cgroup(e) => e.kind(),
            Self::Limits(e) => e.kind(),
            Self::DeviceRules(e) => e.kind(),
            Self::Shim(_, e) => e.kind(),
            // The operator's file, not the client's.
            Self::DefaultSeccomp(_) | Self::Fault(_) => ErrorKind::Internal,
        }
    }
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
        let _turn = entry.lock().await;
        if !self.pods.has(&entry) {
            return Err(LookupError::NoSuchPod(pod.to_owned()).into());
        }
        let pod = entry.get();
        if pod.state != PodState::Ready || entry.samples().ends.is_awaited() {
            return Err(CreateError::PodNotReady(pod.id.clone()));
        }
        if pod_spec.as_ref().is_some_and(|asked| asked.meta != pod.spec.meta) {
            return Err(CreateError::OtherPod(pod.id.clone()));
        }
        if spec.security.privileged && !pod.spec.security.privileged {
            self.check_privilege_escalation(&pod, pod_spec.as_ref())?;
        }
        let id = ContainerId::from_bytes(random());
        let name = self.container_names.reserve(
            (pod.id.clone(), spec.meta.clone()),
            |(_, name)| name.to_string(),
            id.as_str(),
        )?;
        let (runtime, draft_id, draft_pod) = (self.clone(), id.clone(), pod.clone());
        let draft = blocking(move || runtime.plan_container(draft_id, draft_pod, spec)).await;
        let draft = draft.inspect_err(|_| self.selinux.free(id.as_str()))?;
        match self.make_container(draft, &entry.samples().ends).await {
            Ok(()) => {
                name.keep();
                Ok(id)
            }
            Err(error) => {
                self.cleanup_container(&pod.id, &id).await;
                Err(error)
            }
        }
    }

    /// A pod becomes privileged with its first container that is: one for debugging, say, comes long after the pod was made.
    fn check_privilege_escalation(&self, pod: &PodRecord, now: Option<&PodSpec>) -> Result<(), CreateError> {
        if !now.is_some_and(|now| now.security.privileged) {
            return Err(CreateError::PrivilegedAlone);
        }
        if !self.handler(pod)?.privileged {
            return Err(CreateError::Privileged(pod.spec.handler.clone()));
        }
        Ok(())
    }

    async fn make_container(self: &Arc<Self>, draft: ContainerPlan, ends: &StopWaiters) -> Result<(), CreateError> {
        let (runtime, sandbox) = (self.clone(), self.sandbox_of(&draft.pod.id));
        let sandbox = sandbox.ok_or_else(|| CreateError::PodNotReady(draft.pod.id.clone()))?;
        let preparing = tracing::debug_span!("container.prepare");
        let (dir, draft) = blocking(move || runtime.prepare(draft)).instrument(preparing).await?;
        let request = CreateRequest { container: draft.id.clone(), dir };
        let log = draft.log.as_ref().map(|(_, file)| file.as_fd());
        let created = tokio::select! {
            created = sandbox.create_container(request, log).instrument(tracing::debug_span!("shim.create")) => created,
            // Neighbours that see its first process may keep it from ever being done.
            () = ends.awaited() => return Err(CreateError::PodNotReady(draft.pod.id.clone())),
        };
        let (pid, warnings) = created.map_err(|e| CreateError::Shim(draft.id.clone(), e))?;
        failpoint::at("create.launch")?;
        for warning in &warnings {
            if draft.oom_policy == OomPolicy::Require && warning.starts_with("oom_score_adj") {
                return Err(CreateError::OomScore(warning.clone()));
            }
            tracing::warn!(container = %draft.id, warning);
        }
        let pid = NonZeroU32::new(pid).ok_or_else(|| CreateError::Shim(draft.id.clone(), SandboxError::Mismatch))?;
        self.publish_container(draft, pid)
    }

    /// Makes all that the shim finds in the container's directory, and the cgroup.
    fn prepare(&self, mut draft: ContainerPlan) -> Result<(PathBuf, ContainerPlan), CreateError> {
        let dir = self.layout.container(&draft.pod.id, &draft.id);
        failpoint::at("create.begin")?;
        safe_fs::private_dir(&dir)?;
        let intent = CleanupIntent { cgroup: draft.cgroup.path().as_str().to_owned(), ours: true };
        safe_fs::write_json(&dir.join(CleanupIntent::FILE), &intent)?;
        failpoint::at("create.intent")?;
        let hold = |image: &image::Image| self.images.hold(draft.id.as_str(), &image.id);
        let lower = hold(&draft.image)?;
        let images = draft.mounted.values().map(|image| Ok((image.id.to_string(), hold(image)?)));
        let images = images.collect::<Result<BTreeMap<_, _>, image::HoldError>>()?;
        let writable = self.layout.writable_layer(&draft.id);
        safe_fs::private_dir(&writable)?;
        layer_gc::write_owner(&writable, &dir)?;
        let overlay = Overlay {
            layers: self.images.layers_dir(),
            lower,
            upper: writable.join("upper"),
            work: writable.join("work"),
        };
        safe_fs::private_dir(&overlay.work)?;
        safe_fs::public_dir(&overlay.upper)?;
        if let Some(ids) = &draft.pod.spec.security.namespaces.user {
            safe_fs::chown(&overlay.upper, ids.uid(0), ids.gid(0))?;
        }
        failpoint::at("create.layer")?;
        safe_fs::private_dir(&writable.join("volumes"))?;
        self.images.fill(&overlay.lower, &draft.volumes)?;
        failpoint::at("create.volumes")?;
        self.label(&draft)?;
        // Taken back by `clear_container`, which the intent tells of it.
        drop(draft.cgroup.create()?);
        draft.cgroup.set_devices(&draft.device_rules)?;
        let (limits, held) = draft.cgroup.clamp_to_ancestors(&draft.spec.resources);
        if held {
            tracing::warn!(container = %draft.id, "its CPU quota is held at that of the cgroup above until that is raised");
        }
        draft.settings = draft.cgroup.apply(&limits)?;
        failpoint::at("create.cgroup")?;
        let launch = self.launch(&draft, overlay, images);
        safe_fs::write_json(&dir.join("config.json"), &draft.config)?;
        safe_fs::write_json(&LaunchConfig::path(&dir), &launch)?;
        poststop_hooks::note(&dir, &draft.id, &draft.config)?;
        failpoint::at("create.bundle")?;
        Ok((dir, draft))
    }

    /// Labels what crisp made for the container and shows it by mounts.
    fn label(&self, draft: &ContainerPlan) -> Result<(), CreateError> {
        let Some(labels) = &draft.selinux else { return Ok(()) };
        for volume in &draft.volumes {
            relabel(&volume.directory, &labels.mount).map_err(CreateError::VolumeLabels)?;
        }
        if draft.pod.selinux.as_ref().is_some_and(|pod| pod.mount != labels.mount) {
            // With the level of either, the other could not read them.
            etc_files::label(&self.pod_dir(&draft.pod.id), &labels.shared())?;
        }
        Ok(())
    }

    fn launch(&self, draft: &ContainerPlan, rootfs: Overlay, images: BTreeMap<String, Vec<String>>) -> LaunchConfig {
        let shown = draft.cgroup.mounts().into_iter();
        LaunchConfig {
            rootfs,
            images,
            tty: draft.spec.tty,
            stdin: draft.spec.stdin,
            stdin_once: draft.spec.stdin_once,
            log_line_max: draft.log_line_max,
            seccomp: draft.seccomp.clone(),
            oom_score_adj: draft.spec.resources.oom_score_adj.map(|score| i32::from(score.get())),
            poststart: draft.config.hooks().as_ref().is_some_and(|hooks| hooks.poststart().is_some()),
            cgroup: CgroupPaths {
                oom: draft.cgroup.oom_file(),
                join: draft.cgroup.join_files(),
                shown: shown.map(|s| CgroupMount { name: s.name, dir: s.dir, aliases: s.links }).collect(),
            },
        }
    }

    /// From here on the container exists.
    fn publish_container(&self, draft: ContainerPlan, pid: NonZeroU32) -> Result<(), CreateError> {
        let ContainerPlan {
            id,
            spec,
            pod,
            image,
            mounted,
            user,
            groups,
            stop_signal,
            log,
            cgroup,
            settings,
            cdi,
            selinux,
            ..
        } = draft;
        let name = display_image_name(&spec.image, &image);
        let reference = image_ref(&name, &image);
        let record = ContainerRecord {
            version: VERSION,
            id,
            pod: pod.id.clone(),
            spec,
            created: SystemTime::now(),
            state: ContainerState::Created { pid },
            image: ContainerImage { id: image.id.to_string(), name, reference },
            mounted: mounted.into_iter().map(|(name, image)| (name, image.id.to_string())).collect(),
            user: ContainerUser { uid: user.uid, gid: user.gid, groups },
            log: log.map(|(path, _)| path),
            stop_signal,
            cgroup: cgroup.path().as_str().to_owned(),
            applied: settings,
            cdi,
            selinux,
        };
        let dir = self.layout.container(&record.pod, &record.id);
        safe_fs::write_json(&dir.join("container.json"), &record)?;
        let entry = self.containers.insert(record);
        // What a shim tells of a container that is not here yet is lost. It writes an exit down before it tells of it,
        // so this look misses none; and if the shim itself is gone, nobody will tell.
        if let Some(exit) = recorded_exit(&dir) {
            self.exited(&entry.get().id, exit);
        } else if self.sandbox_of(&pod.id).is_none() {
            self.containers.remove(entry.get().id.as_str());
            return Err(CreateError::PodNotReady(pod.id.clone()));
        }
        self.publish_container_events(&entry);
        Ok(())
    }
}

/// What people call the image that was asked for: the kubelet asks by id.
fn display_image_name(asked: &ImageName, image: &image::Image) -> String {
    let digits = asked.image.strip_prefix("sha256:").unwrap_or(&asked.image);
    if !image.id.hex().starts_with(digits) {
        asked.image.clone()
    } else if !asked.user_specified.is_empty() {
        asked.user_specified.clone()
    } else {
        image.repo_tags.first().unwrap_or(&asked.image).clone()
    }
}

/// The digest under which the image is known in the repository of `name`, else in any; its id where it is in none.
fn image_ref(name: &str, image: &image::Image) -> String {
    let repository = name.parse::<image::Reference>().map(|name| name.repository() + "@").unwrap_or_default();
    let same = image.repo_digests.iter().find(|digest| digest.starts_with(&repository));
    same.or(image.repo_digests.first()).cloned().unwrap_or_else(|| image.id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_asked_for_by_id_is_shown_by_its_name() {
        let id = format!("sha256:{}", "ab".repeat(32));
        let mut image: image::Image = serde_json::from_value(serde_json::json!({
            "id": id, "repo_tags": ["a.example/b:1"], "repo_digests": [], "manifest": null, "size": 1,
            "config": {"user": "", "env": [], "entrypoint": [], "cmd": [], "working_dir": "", "stop_signal": "",
                "volumes": [], "labels": {}, "exposed_ports": [], "os": "linux", "architecture": "amd64"},
            "chain": [],
        }))
        .unwrap();
        let asked = |image: &str, user_specified: &str| ImageName {
            image: image.to_owned(),
            user_specified: user_specified.to_owned(),
            annotations: Default::default(),
            handler: String::new(),
        };
        assert_eq!(display_image_name(&asked("a.example/b:1", "c"), &image), "a.example/b:1");
        assert_eq!(display_image_name(&asked(&id, "b"), &image), "b");
        assert_eq!(display_image_name(&asked("abab", ""), &image), "a.example/b:1");
        image.repo_tags.clear();
        assert_eq!(display_image_name(&asked(&id, ""), &image), id);
        assert_eq!(image_ref(&id, &image), id);
        image.repo_digests =
            vec![format!("a.example/bc@{id}"), format!("b.example/c@{id}"), format!("c.example/d@{id}")];
        for (name, digest) in [("b.example/c:1", 1), ("a.example/b", 0), ("e.example/f:1", 0), (id.as_str(), 0)] {
            assert_eq!(image_ref(name, &image), image.repo_digests[digest], "{name}");
        }
    }
}
