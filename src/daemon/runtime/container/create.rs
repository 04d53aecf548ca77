//! CreateContainer: creates the directory, the cgroup and the first process of a planned container.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use config::OomPolicy;
use model::resources::LimitsPatch;
use model::{ContainerId, ContainerSpec, ContainerState, LayerNumber, PodState, RepeatedPod};
use security::relabel;
use shim_protocol::{CgroupMount, CgroupPaths, CreateRequest, LaunchConfig, LaunchWarning, LaunchWarningKind, Overlay};
use tracing::Instrument as _;

use super::create_error::CreateError;
use super::create_plan::{CgroupPlan, ContainerIdentity, ContainerPlan};
use super::poststop_hooks;
use crate::failpoint;
use crate::runtime::lifecycle_steps::Step;
use crate::runtime::pod::etc_files;
use crate::runtime::resize::notice;
use crate::runtime::shim_monitor::recorded_exit;
use crate::runtime::{LookupError, Runtime, orphaned_layers, random};
use crate::sandbox_client::{SandboxClient, SandboxError};
use crate::store::intent::INTENT_FILE;
use crate::store::{CONTAINER_FILE, ContainerImage, ContainerRecord, PodRecord, StopWaiters, VERSION};

/// A container that exists, except for its processes and its record.
pub(super) struct PreparedContainer {
    plan: ContainerPlan,
    dir: PathBuf,
    applied: cgroup::AppliedValues,
}

impl Runtime {
    /// Creates a container, up to a first process that waits for StartContainer: docs/launch.md has
    /// the steps. Holds the lock of the pod; StopPodSandbox does not wait for it, but makes the
    /// create fail. A failure removes what the intent names, and frees the name and the SELinux
    /// level.
    pub(crate) async fn create(
        self: &Arc<Self>,
        pod: &str,
        spec: ContainerSpec,
        repeated: Option<RepeatedPod>,
    ) -> Result<ContainerId, CreateError> {
        let entry = self.readable_pod(pod)?;
        let _lock = entry.lock().await;
        if !self.pods.has(&entry) {
            return Err(LookupError::NoSuchPod(pod.to_owned()).into());
        }
        let pod = entry.get();
        if pod.state != PodState::Ready || entry.samples().ends.is_awaited() {
            return Err(CreateError::PodNotReady(pod.id.clone()));
        }
        if repeated.as_ref().is_some_and(|requested| requested.meta != pod.spec.meta) {
            return Err(CreateError::OtherPod(pod.id.clone()));
        }
        if spec.security.privileged && !pod.spec.security.privileged {
            self.check_privilege_escalation(&pod, repeated.as_ref())?;
        }
        let id = ContainerId::from_bytes(random());
        let name = self.container_names.reserve(
            (pod.id.clone(), spec.meta.clone()),
            |(_, name)| name.to_string(),
            id.as_str(),
        )?;
        let ends = &entry.samples().ends;
        let sandbox = self.sandbox_of(&pod.id).ok_or_else(|| CreateError::PodNotReady(pod.id.clone()))?;
        let plan = self
            .plan_unless_stopped(&id, &pod, spec, sandbox.opens_paths(), ends)
            .await
            .inspect_err(|_| self.selinux.free(id.as_str()))?;
        match self.create_planned(plan, &sandbox, ends).await {
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

    /// Lets a pod become privileged by its first privileged container: a debug container comes long after the pod.
    fn check_privilege_escalation(&self, pod: &PodRecord, repeated: Option<&RepeatedPod>) -> Result<(), CreateError> {
        if !repeated.is_some_and(|pod| pod.privileged) {
            return Err(CreateError::PrivilegedAlone);
        }
        if !self.handler(pod)?.privileged {
            return Err(CreateError::Privileged(pod.spec.handler.clone()));
        }
        Ok(())
    }

    /// Creates the planned container; the caller removes it if this fails.
    async fn create_planned(
        self: &Arc<Self>,
        plan: ContainerPlan,
        sandbox: &SandboxClient,
        ends: &StopWaiters,
    ) -> Result<(), CreateError> {
        self.at_step(&Step::CreateContainer(&plan));
        let span = tracing::debug_span!("container.prepare");
        let prepared = self.prepare_unless_stopped(plan, ends).instrument(span).await?;
        let ContainerIdentity { id, pod, .. } = &prepared.plan.identity;
        let request = CreateRequest { container: id.clone(), dir: prepared.dir.clone() };
        let log = prepared.plan.log.file.as_ref().map(|file| file.as_fd());
        let created = tokio::select! {
            created = sandbox.create_container(request, log).instrument(tracing::debug_span!("shim.create")) => created,
            // Containers of the pod that see the first process can keep it from ever being ready.
            () = ends.awaited() => return Err(CreateError::PodNotReady(pod.id.clone())),
        };
        let (pid, warnings) = created.map_err(|e| CreateError::Shim(id.clone(), e))?;
        failpoint::at("create.launch")?;
        for LaunchWarning { kind, message } in warnings {
            if kind == LaunchWarningKind::OomScoreAdj && prepared.plan.cgroup.oom_policy == OomPolicy::Require {
                return Err(CreateError::OomScore(message));
            }
            tracing::warn!(container = %id, "created the container with a restriction: {message}");
        }
        let pid = NonZeroU32::new(pid).ok_or_else(|| CreateError::Shim(id.clone(), SandboxError::Mismatch))?;
        self.publish_container(prepared, pid)
    }

    /// Creates the container's directory with all that the shim reads, and the cgroup. Writes the
    /// intent first: `cleanup_container` removes what it names.
    pub(super) fn prepare(&self, plan: ContainerPlan, given_up: &AtomicBool) -> Result<PreparedContainer, CreateError> {
        let ContainerIdentity { id, pod, .. } = &plan.identity;
        let dir = self.layout.container(&pod.id, id);
        failpoint::at("create.begin")?;
        safe_fs::private_dir(&dir)?;
        safe_fs::write_json(&dir.join(INTENT_FILE), &plan.intent())?;
        failpoint::at("create.intent")?;
        let hold = |image: &image::Image| self.images.hold(id.as_str(), &image.id);
        let lower = hold(&plan.image)?;
        let images = plan.mounts.images.values().map(|image| Ok((image.id.to_string(), hold(image)?)));
        let images = images.collect::<Result<BTreeMap<_, _>, image::HoldError>>()?;
        let overlay = self.create_writable_layer(&plan, &dir, lower)?;
        failpoint::at("create.layer")?;
        self.images.fill(&overlay.lower, &plan.mounts.inputs.volumes, given_up)?;
        failpoint::at("create.volumes")?;
        if given_up.load(Ordering::Relaxed) {
            return Err(CreateError::PodNotReady(pod.id.clone()));
        }
        self.label(&plan)?;
        let applied = create_cgroup(&plan)?;
        failpoint::at("create.cgroup")?;
        create_notice(&plan, &applied)?;
        // Hooks read it, in a pod with a user namespace as root of that.
        safe_fs::write_readable_json(&dir.join("config.json"), &plan.config)?;
        safe_fs::write_json(&LaunchConfig::path(&dir), &launch_config(&plan, overlay, images))?;
        poststop_hooks::note(&dir, id, &plan.config)?;
        failpoint::at("create.bundle")?;
        Ok(PreparedContainer { plan, dir, applied })
    }

    /// Creates the directories of the writable layer, with those of the image's volumes.
    fn create_writable_layer(
        &self,
        plan: &ContainerPlan,
        dir: &Path,
        lower: Vec<LayerNumber>,
    ) -> Result<Overlay, CreateError> {
        let ContainerIdentity { id, pod, .. } = &plan.identity;
        let writable = self.layout.writable_layer(id);
        safe_fs::private_dir(&writable)?;
        orphaned_layers::write_owner(&writable, dir)?;
        let overlay = Overlay {
            layers: self.images.layers_dir(),
            lower,
            upper: writable.join("upper"),
            work: writable.join("work"),
        };
        safe_fs::private_dir(&overlay.work)?;
        safe_fs::public_dir(&overlay.upper)?;
        if let Some(ids) = &pod.spec.security.namespaces.user {
            safe_fs::chown(&overlay.upper, ids.uid(0), ids.gid(0))?;
        }
        safe_fs::private_dir(&writable.join("volumes"))?;
        Ok(overlay)
    }

    /// Labels the files that crisp creates for the container and mounts in it.
    fn label(&self, plan: &ContainerPlan) -> Result<(), CreateError> {
        let Some(labels) = &plan.security.selinux else { return Ok(()) };
        for volume in &plan.mounts.inputs.volumes {
            relabel(&volume.directory, &labels.mount).map_err(CreateError::VolumeLabels)?;
        }
        let pod = &plan.identity.pod;
        if pod.selinux.as_ref().is_some_and(|of_pod| of_pod.mount != labels.mount) {
            // With the level of one container, the others of the pod could not read the files.
            etc_files::label(&self.pod_dir(&pod.id), &labels.shared())?;
        }
        Ok(())
    }

    /// Writes the record and publishes the container: from here on it exists.
    fn publish_container(&self, prepared: PreparedContainer, pid: NonZeroU32) -> Result<(), CreateError> {
        let PreparedContainer { plan, dir, applied } = prepared;
        let image = container_image(&plan.identity.spec, &plan.image);
        let ContainerPlan { identity: ContainerIdentity { id, pod, spec }, process, mounts, log, .. } = plan;
        let record = ContainerRecord {
            version: VERSION,
            id,
            pod: pod.id.clone(),
            spec,
            created: SystemTime::now(),
            state: ContainerState::Created { pid },
            image,
            mounted: mounts.images.into_iter().map(|(name, image)| (name, image.id.to_string())).collect(),
            user: process.into(),
            log: log.path.map(|log| log.directory.join(log.file)),
            stop_signal: plan.stop_signal,
            cgroup: plan.cgroup.cgroup.path().clone(),
            applied,
            cdi: plan.cdi,
            selinux: plan.security.selinux,
            unreadable: None,
        };
        safe_fs::write_json(&dir.join(CONTAINER_FILE), &record)?;
        let entry = self.containers.insert(record);
        // An event of the shim for a container that is not in the table yet is lost. The shim
        // writes the exit to a file before it sends the event, so reading the file finds every
        // exit. If the shim exited, none will come.
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

/// Creates the container's cgroup, with its device rules and limits. The caller's cleanup removes
/// it.
fn create_cgroup(plan: &ContainerPlan) -> Result<cgroup::AppliedValues, CreateError> {
    let CgroupPlan { cgroup, device_rules, .. } = &plan.cgroup;
    drop(cgroup.create()?);
    cgroup.set_devices(device_rules)?;
    let ContainerIdentity { id, spec, .. } = &plan.identity;
    let limits = cgroup.without_unasked_swap(&LimitsPatch::default(), &spec.resources);
    let (limits, clamped) = cgroup.clamp_to_ancestors(&limits);
    if clamped {
        tracing::warn!(container = %id, "the container's CPU quota exceeds its parent cgroup's; it stays at the parent's quota until a resize raises both");
    }
    Ok(cgroup.apply(&limits)?)
}

/// Creates the file about resizes, if the pod selects it.
fn create_notice(plan: &ContainerPlan, applied: &cgroup::AppliedValues) -> Result<(), CreateError> {
    let Some(dir) = &plan.mounts.inputs.resize_notice else { return Ok(()) };
    notice::file::create(dir, plan.security.selinux.as_ref())?;
    let limits = plan.cgroup.cgroup.observe(applied).map_err(CreateError::ReadLimits)?;
    Ok(notice::file::write(dir, &limits.observed)?)
}

fn launch_config(plan: &ContainerPlan, rootfs: Overlay, images: BTreeMap<String, Vec<LayerNumber>>) -> LaunchConfig {
    let spec = &plan.identity.spec;
    let cgroup = &plan.cgroup.cgroup;
    let shown = cgroup.mounts().into_iter();
    LaunchConfig {
        rootfs,
        images,
        tty: spec.tty,
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        log_line_max: plan.log.line_max,
        log_rate_max: plan.log.rate_max,
        seccomp: plan.security.seccomp.clone(),
        oom_score_adj: spec.resources.oom_score_adj.map(|score| i32::from(score.get())),
        log: plan.log.path.clone().filter(|_| plan.log.file.is_none()),
        mount_sources: plan.mounts.host_sources.clone(),
        poststart: plan.config.hooks().as_ref().is_some_and(|hooks| hooks.poststart().is_some()),
        cgroup: CgroupPaths {
            oom: cgroup.oom_file(),
            join: cgroup.join_files(),
            shown: shown.map(|s| CgroupMount { name: s.name, dir: s.dir, aliases: s.links }).collect(),
        },
    }
}

/// Returns the image as the container's status reports it.
pub(super) fn container_image(spec: &ContainerSpec, image: &image::Image) -> ContainerImage {
    let name = image.display_name(&spec.image);
    let reference = image.digest_reference(&name);
    ContainerImage { id: image.id.to_string(), name, reference }
}
