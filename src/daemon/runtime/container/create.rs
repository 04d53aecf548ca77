//! CreateContainer.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use config::OomPolicy;
use model::resources::LimitsPatch;
use model::{ContainerId, ContainerSpec, ContainerState, PodSpec, PodState};
use security::relabel;
use shim_protocol::{CgroupMount, CgroupPaths, CreateRequest, LaunchConfig, LaunchWarning, LaunchWarningKind, Overlay};
use tracing::Instrument as _;

use super::create_error::CreateError;
use super::create_plan::ContainerPlan;
use super::image_name::{display_image_name, image_ref};
use super::poststop_hooks;
use crate::failpoint;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::pod::etc_files;
use crate::runtime::shim_monitor::recorded_exit;
use crate::runtime::{LookupError, Runtime, orphaned_layers, random};
use crate::sandbox_client::{SandboxClient, SandboxError};
use crate::store::intent::INTENT_FILE;
use crate::store::{CONTAINER_FILE, ContainerImage, ContainerRecord, ContainerUser, PodRecord, StopWaiters, VERSION};

impl Runtime {
    pub(crate) async fn create(
        self: &Arc<Self>,
        pod: &str,
        spec: ContainerSpec,
        pod_spec: Option<PodSpec>,
    ) -> Result<ContainerId, CreateError> {
        let entry = self.readable_pod(pod)?;
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
        let ends = &entry.samples().ends;
        let sandbox = self.sandbox_of(&pod.id).ok_or_else(|| CreateError::PodNotReady(pod.id.clone()))?;
        let draft = self.plan_unless_stopped(&id, &pod, spec, sandbox.opens_paths(), ends).await;
        let draft = draft.inspect_err(|_| self.selinux.free(id.as_str()))?;
        match self.make_container(draft, &sandbox, ends).await {
            Ok(()) => {
                name.keep();
                Ok(id)
            }
            Err(abandoned @ CreateError::GivenUp(_)) => Err(abandoned),
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

    async fn make_container(
        self: &Arc<Self>,
        draft: ContainerPlan,
        sandbox: &SandboxClient,
        ends: &StopWaiters,
    ) -> Result<(), CreateError> {
        self.at_step(&Step::CreateContainer(&draft));
        let preparing = tracing::debug_span!("container.prepare");
        let (dir, draft) = self.prepare_unless_stopped(draft, ends).instrument(preparing).await?;
        let request = CreateRequest { container: draft.id.clone(), dir };
        let log = draft.paths.log_file.as_ref().map(|file| file.as_fd());
        let created = tokio::select! {
            created = sandbox.create_container(request, log).instrument(tracing::debug_span!("shim.create")) => created,
            // Neighbours that see its first process may keep it from ever being done.
            () = ends.awaited() => return Err(CreateError::PodNotReady(draft.pod.id.clone())),
        };
        let (pid, warnings) = created.map_err(|e| CreateError::Shim(draft.id.clone(), e))?;
        failpoint::at("create.launch")?;
        for LaunchWarning { kind, message } in warnings {
            if kind == LaunchWarningKind::OomScoreAdj && draft.oom_policy == OomPolicy::Require {
                return Err(CreateError::OomScore(message));
            }
            tracing::warn!(container = %draft.id, "{message}");
        }
        let pid = NonZeroU32::new(pid).ok_or_else(|| CreateError::Shim(draft.id.clone(), SandboxError::Mismatch))?;
        self.publish_container(draft, pid)
    }

    /// Makes all that the shim finds in the container's directory, and the cgroup.
    pub(super) fn prepare(
        &self,
        mut draft: ContainerPlan,
        given_up: &AtomicBool,
    ) -> Result<(PathBuf, ContainerPlan), CreateError> {
        let dir = self.layout.container(&draft.pod.id, &draft.id);
        failpoint::at("create.begin")?;
        safe_fs::private_dir(&dir)?;
        safe_fs::write_json(&dir.join(INTENT_FILE), &draft.intent())?;
        failpoint::at("create.intent")?;
        let hold = |image: &image::Image| self.images.hold(draft.id.as_str(), &image.id);
        let lower = hold(&draft.image)?;
        let images = draft.mounted.values().map(|image| Ok((image.id.to_string(), hold(image)?)));
        let images = images.collect::<Result<BTreeMap<_, _>, image::HoldError>>()?;
        let writable = self.layout.writable_layer(&draft.id);
        safe_fs::private_dir(&writable)?;
        orphaned_layers::write_owner(&writable, &dir)?;
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
        self.images.fill(&overlay.lower, &draft.volumes, given_up)?;
        failpoint::at("create.volumes")?;
        if given_up.load(Ordering::Relaxed) {
            return Err(CreateError::PodNotReady(draft.pod.id.clone()));
        }
        self.label(&draft)?;
        // Taken back by `cleanup_container`, which the intent tells of it.
        drop(draft.cgroup.create()?);
        draft.cgroup.set_devices(&draft.device_rules)?;
        let limits = draft.cgroup.without_unasked_swap(&LimitsPatch::default(), &draft.spec.resources);
        let (limits, held) = draft.cgroup.clamp_to_ancestors(&limits);
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
            log_rate_max: draft.log_rate_max,
            seccomp: draft.seccomp.clone(),
            oom_score_adj: draft.spec.resources.oom_score_adj.map(|score| i32::from(score.get())),
            log: draft.paths.log.clone().filter(|_| draft.paths.log_file.is_none()),
            mount_sources: draft.paths.mount_sources.clone(),
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
            paths,
            cgroup,
            settings,
            cdi,
            selinux,
            ..
        } = draft;
        let shown = container_image(&spec, &image);
        let record = ContainerRecord {
            version: VERSION,
            id,
            pod: pod.id.clone(),
            spec,
            created: SystemTime::now(),
            state: ContainerState::Created { pid },
            image: shown,
            mounted: mounted.into_iter().map(|(name, image)| (name, image.id.to_string())).collect(),
            user: ContainerUser { uid: user.uid, gid: user.gid, groups },
            log: paths.log.map(|log| log.directory.join(log.file)),
            stop_signal,
            cgroup: cgroup.path().as_str().to_owned(),
            applied: settings,
            cdi,
            selinux,
            unreadable: None,
        };
        let dir = self.layout.container(&record.pod, &record.id);
        safe_fs::write_json(&dir.join(CONTAINER_FILE), &record)?;
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

/// The image as the container's status shows it.
pub(super) fn container_image(spec: &ContainerSpec, image: &image::Image) -> ContainerImage {
    let name = display_image_name(&spec.image, image);
    let reference = image_ref(&name, image);
    ContainerImage { id: image.id.to_string(), name, reference }
}
