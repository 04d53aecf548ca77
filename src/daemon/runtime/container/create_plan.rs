//! Plans a container: makes every check of CreateContainer before anything is created.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{Handler, OomPolicy};
use model::{ContainerId, ContainerSpec, ContainerState, GroupsPolicy, MountSource, NsMode, Profile, Signal, UserRef};
use oci::cdi::{InjectedDevice, Owner};
use oci::{CgroupInputs, DeviceInputs, MountInputs, PodInputs, ProcessUser, SecurityProfiles, SpecInputs, cdi};
use safe_fs::log_file::open_log;
use security::seccomp::ProfileSource;
use security::{LabelRequest, Labels, RelabelError, SelinuxError, relabel};
use shim_protocol::LogPath;

use super::create_error::CreateError;
use super::devices::{self, Devices};
use super::{pod_resources_check, volumes};
use crate::runtime::Runtime;
use crate::runtime::pod::etc_files;
use crate::runtime::resize::notice;
use crate::runtime::resize::notice::selection;
use crate::store::PodRecord;

/// A checked request of CreateContainer. Creating it needs no other decision.
#[derive(Debug)]
pub(crate) struct ContainerPlan {
    pub(crate) identity: ContainerIdentity,
    pub(crate) image: Arc<image::Image>,
    pub(crate) process: ProcessUser,
    pub(crate) stop_signal: Signal,
    pub(crate) security: SecurityProfiles,
    pub(crate) mounts: MountPlan,
    pub(crate) cdi: Vec<InjectedDevice>,
    pub(crate) cgroup: CgroupPlan,
    pub(crate) log: LogPlan,
    /// The OCI configuration; boxed, since a plan is a local variable of futures.
    pub(crate) config: Box<oci_spec::runtime::Spec>,
}

/// The container, its pod and the request.
#[derive(Debug)]
pub(crate) struct ContainerIdentity {
    pub(crate) id: ContainerId,
    pub(crate) pod: Arc<PodRecord>,
    pub(crate) spec: ContainerSpec,
}

#[derive(Debug)]
pub(crate) struct MountPlan {
    /// The images that mounts name, by these names.
    pub(crate) images: BTreeMap<String, Arc<image::Image>>,
    pub(crate) inputs: MountInputs,
    /// The sources on the host that the launcher creates if they are missing.
    pub(crate) host_sources: Vec<PathBuf>,
}

#[derive(Debug)]
pub(crate) struct CgroupPlan {
    pub(crate) cgroup: cgroup::Cgroup,
    pub(crate) device_rules: Vec<cgroup::DeviceRule>,
    pub(crate) oom_policy: OomPolicy,
}

#[derive(Debug)]
pub(crate) struct LogPlan {
    pub(crate) path: Option<LogPath>,
    /// The open log, if the pod's shim is of a release that does not open it.
    pub(crate) file: Option<File>,
    pub(crate) line_max: u32,
    pub(crate) rate_max: u64,
}

impl Runtime {
    /// Checks everything that can be refused. Creates nothing before the last check; then the missing sources of
    /// mounts, their labels, and the log if the shim does not open it. These stay if the create fails, as with
    /// containerd and CRI-O. The caller frees the container's SELinux level if this fails.
    pub(crate) fn plan_container(
        &self,
        id: ContainerId,
        pod: Arc<PodRecord>,
        mut spec: ContainerSpec,
        shim_opens_paths: bool,
    ) -> Result<ContainerPlan, CreateError> {
        let handler = self.handler(&pod)?;
        self.check_image_handlers(&spec)?;
        let differences =
            pod_resources_check::check(self.settings().resources.mismatch, pod.spec.pod_resources.as_ref(), &mut spec)?;
        let image = self.image_of(&spec)?;
        let image_config = self.images.config(&image)?;
        let user = self.user(&spec, &image)?;
        let stop_signal = stop_signal(&spec, &image_config)?;
        let (device_rules, devices) = self.devices(&pod, &spec, &user)?;
        let process = ProcessUser { groups: groups(&spec, &user, &devices.edits.groups), user };
        let security = self.security_profiles(&id, &pod, &spec, &handler)?;
        let mut mounts = self.mounts(&id, &spec, &image_config)?;
        if selection::has_file(&pod.spec, &spec, &handler)? {
            mounts.inputs.resize_notice = Some(self.layout.container(&pod.id, &id).join(notice::file::DIR));
        }
        let cgroup = self.container_cgroup(&pod, &id)?;
        let config = oci::build(&SpecInputs {
            handler: &handler,
            pod: PodInputs {
                spec: &pod.spec,
                hostname: &pod.hostname,
                sandbox: &pod.sandbox,
                files: &self.pod_dir(&pod.id).join(etc_files::DIR),
            },
            container: &spec,
            image: &image_config,
            process: &process,
            security: &security,
            mounts: &mounts.inputs,
            devices: &devices,
            cgroup: CgroupInputs { path: cgroup.path().as_str(), version: self.cgroups.version() },
            target: self.target(&pod, &spec)?,
        })?;
        prepare_sources(&spec, security.selinux.as_ref(), shim_opens_paths)?;
        mounts.host_sources = if shim_opens_paths { host_sources(&spec) } else { Vec::new() };
        let log = log_plan(&pod, &spec, &handler, shim_opens_paths)?;
        warn_unsupported(&id, &pod, &spec);
        if let Some(differences) = differences {
            tracing::warn!(container = %id, %differences, "created a container that differs from the pod resources in RunPodSandbox or the pod's annotation (resources.mismatch = \"warn\")");
        }
        Ok(ContainerPlan {
            identity: ContainerIdentity { id, pod, spec },
            image,
            process,
            stop_signal,
            security,
            mounts,
            cdi: devices.edits.used,
            cgroup: CgroupPlan { cgroup, device_rules, oom_policy: handler.oom_score_adj },
            log,
            config: Box::new(config),
        })
    }

    fn image_of(&self, spec: &ContainerSpec) -> Result<Arc<image::Image>, CreateError> {
        let image = self.images.find(&spec.image.image);
        let image = image.ok_or_else(|| CreateError::NoSuchImage(spec.image.image.clone()))?;
        if image.chain.is_empty() { Err(CreateError::NoLayers(spec.image.image.clone())) } else { Ok(image) }
    }

    /// Refuses unknown handlers, although images are the same for all handlers.
    fn check_image_handlers(&self, spec: &ContainerSpec) -> Result<(), CreateError> {
        let handlers = &self.settings().handlers;
        handlers.for_field(&spec.image.handler).map_err(CreateError::ImageHandler)?;
        for (index, mount) in spec.mounts.iter().enumerate() {
            if let MountSource::Image { image, sub_path: _ } = &mount.source {
                handlers
                    .for_field(&image.handler)
                    .map_err(|source| CreateError::MountImageHandler { index, source })?;
            }
        }
        Ok(())
    }

    /// Returns the cgroup rules for device nodes, and the nodes of the request and of its CDI devices with all other
    /// edits of these.
    fn devices(
        &self,
        pod: &PodRecord,
        spec: &ContainerSpec,
        user: &image::User,
    ) -> Result<(Vec<cgroup::DeviceRule>, DeviceInputs), CreateError> {
        let names = cdi::annotated(&spec.cdi_devices, &spec.annotations, self.settings().cdi.annotations)?;
        let mut edits = self.specs.find(&names, Owner { uid: user.uid, gid: user.gid })?;
        let mut devices = devices::of(spec, pod.spec.security.namespaces.user.is_some())?;
        std::mem::take(&mut edits.nodes).into_iter().for_each(|new| devices.add(new.node, new.access));
        let Devices { nodes, rules, .. } = devices;
        Ok((rules, DeviceInputs { nodes, edits }))
    }

    fn user(&self, spec: &ContainerSpec, image: &image::Image) -> Result<image::User, CreateError> {
        let security = &spec.security;
        let (id, name) = match &security.run_as {
            Some(UserRef::Id(id)) => (Some(i64::from(*id)), ""),
            Some(UserRef::Name(name)) => (None, name.as_str()),
            None => (None, ""),
        };
        let request = image::UserRequest {
            run_as_user: id,
            run_as_username: name,
            run_as_group: security.run_as_group.map(i64::from),
            image_user: &image.user,
        };
        let accounts = self.images.accounts(image)?;
        Ok(image::resolve_user(&accounts, request)?)
    }

    fn security_profiles(
        &self,
        id: &ContainerId,
        pod: &PodRecord,
        spec: &ContainerSpec,
        handler: &Handler,
    ) -> Result<SecurityProfiles, CreateError> {
        let seccomp = self.seccomp(spec, handler)?;
        let requested = spec.security.apparmor.as_ref();
        let apparmor = self.apparmor.profile(requested, spec.security.privileged, handler.apparmor.as_deref())?;
        let selinux = self.labels(id, pod, spec)?;
        Ok(SecurityProfiles { seccomp, apparmor, selinux })
    }

    fn mounts(
        &self,
        id: &ContainerId,
        spec: &ContainerSpec,
        image_config: &image::Config,
    ) -> Result<MountPlan, CreateError> {
        let images = self.mounted(&spec.mounts).map_err(CreateError::ImageMount)?;
        let sources = spec.mounts.iter().map(|mount| volumes::source(mount, &images)).collect();
        let directory = self.layout.writable_layer(id).join("volumes");
        let volumes = volumes::image_volumes(&image_config.volumes, &spec.mounts, &directory)?;
        Ok(MountPlan {
            images,
            inputs: MountInputs { sources, volumes, resize_notice: None },
            host_sources: Vec::new(),
        })
    }

    fn container_cgroup(&self, pod: &PodRecord, id: &ContainerId) -> Result<cgroup::Cgroup, CreateError> {
        Ok(self.cgroup(&self.driver.container(&pod.cgroup.path, id.as_str())?))
    }

    /// Returns the SELinux labels. A level of the container alone stays reserved until it is freed.
    fn labels(&self, id: &ContainerId, pod: &PodRecord, spec: &ContainerSpec) -> Result<Option<Labels>, SelinuxError> {
        let (security, above) = (&spec.security, &pod.spec.security.namespaces);
        // POD is the default of CRI: the container then has the PID namespace of the pod.
        let pid = if security.namespaces.pid == NsMode::Pod { above.pid } else { security.namespaces.pid };
        let hosts = [pid, above.ipc].contains(&NsMode::Node);
        let (asked, of_pod) = (security.selinux.as_ref(), pod.spec.security.selinux.as_ref());
        let request = LabelRequest { asked, of_pod, free: security.privileged || hosts };
        self.selinux.of_container(id.as_str(), pod.selinux.as_ref(), request)
    }

    fn seccomp(&self, spec: &ContainerSpec, handler: &Handler) -> Result<Option<PathBuf>, CreateError> {
        if spec.security.privileged {
            return Ok(None);
        }
        let capabilities = oci::capabilities_of(&handler.capabilities, &spec.security)?;
        let capabilities = capabilities.iter().map(ToString::to_string).collect();
        let filter = match (&spec.security.seccomp, &handler.seccomp) {
            (None | Some(Profile::Unconfined), _) => return Ok(None),
            (Some(Profile::Localhost(path)), _) => {
                self.filters.path_for(ProfileSource::Localhost(Path::new(path)), &capabilities)?
            }
            (Some(Profile::RuntimeDefault), None) => {
                self.filters.path_for(ProfileSource::RuntimeDefault, &capabilities)?
            }
            (Some(Profile::RuntimeDefault), Some(instead)) => {
                let filter = self.filters.path_for(ProfileSource::Localhost(instead), &capabilities);
                filter.map_err(CreateError::DefaultSeccomp)?
            }
        };
        Ok(Some(filter))
    }

    /// Returns the first process of the container whose PID namespace the request names.
    fn target(&self, pod: &PodRecord, spec: &ContainerSpec) -> Result<Option<u32>, CreateError> {
        let spaces = &spec.security.namespaces;
        if spaces.pid != NsMode::Target {
            return Ok(None);
        }
        let name = spaces.target.clone().unwrap_or_default();
        let target = self.container(&name).ok().filter(|c| c.pod == pod.id);
        match target.map(|c| c.state.clone()) {
            Some(ContainerState::Running { pid, .. }) => Ok(Some(pid.get())),
            _ => Err(CreateError::Target(name)),
        }
    }
}

/// Returns all supplementary groups of the container's processes, sorted.
fn groups(spec: &ContainerSpec, user: &image::User, of_cdi_devices: &[u32]) -> Vec<u32> {
    let mut groups = spec.security.supplemental_groups.clone();
    if spec.security.groups_policy == GroupsPolicy::Merge {
        groups.extend(&user.groups);
    }
    // Programs such as `id` and `newgrp` expect the primary group too; containerd and CRI-O add it.
    groups.push(user.gid);
    groups.extend(of_cdi_devices);
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Opens the log, unless the shim does. A container has a log if its pod has a log directory and the request a path.
fn log_plan(
    pod: &PodRecord,
    spec: &ContainerSpec,
    handler: &Handler,
    shim_opens_paths: bool,
) -> Result<LogPlan, CreateError> {
    let path = pod.spec.log_directory.clone().zip(spec.log_path.clone());
    let path = path.map(|(directory, file)| LogPath { directory, file });
    let opened_here = path.as_ref().filter(|_| !shim_opens_paths);
    let file = opened_here.map(|log| open_log(&log.directory, &log.file)).transpose()?;
    Ok(LogPlan { path, file, line_max: handler.log_line_max, rate_max: handler.log_rate_max })
}

/// Returns the sources of mounts on the host.
fn host_sources(spec: &ContainerSpec) -> Vec<PathBuf> {
    let host = |source: &MountSource| match source {
        MountSource::Host(path) => Some(path.clone()),
        MountSource::Image { .. } => None,
    };
    spec.mounts.iter().filter_map(|mount| host(&mount.source)).collect()
}

fn stop_signal(spec: &ContainerSpec, image: &image::Config) -> Result<Signal, CreateError> {
    Ok(match (spec.stop_signal, image.stop_signal.as_str()) {
        (Some(asked), _) => asked,
        (None, "") => Signal::TERM,
        (None, image) => Signal::parse(image)?,
    })
}

/// Relabels the sources whose mounts request it, with the level of this container alone, as CRI defines it. Images are
/// labelled by their mounts. Creates missing sources before that, and the others if the shim does not.
fn prepare_sources(spec: &ContainerSpec, labels: Option<&Labels>, shim_opens_paths: bool) -> Result<(), CreateError> {
    let relabels = |mount: &model::Mount| mount.selinux_relabel && labels.is_some();
    let mut created_here = spec.mounts.iter().filter(|mount| !shim_opens_paths || relabels(mount));
    created_here.try_for_each(|mount| create_source(&mount.source))?;
    let Some(Labels { mount: label, .. }) = labels else { return Ok(()) };
    for (index, mount) in spec.mounts.iter().enumerate().filter(|(_, mount)| mount.selinux_relabel) {
        let MountSource::Host(path) = &mount.source else { continue };
        let failed = |source: RelabelError| CreateError::Relabel { index, source };
        if !relabel(path, label).map_err(failed)? {
            tracing::warn!(path = %path.display(), "ignoring config.mounts[{index}].selinux_relabel: the file system of the mount has no SELinux labels");
        }
    }
    Ok(())
}

/// Logs fields of the request that have no effect.
fn warn_unsupported(container: &ContainerId, pod: &PodRecord, spec: &ContainerSpec) {
    if spec.log_path.is_some() && pod.spec.log_directory.is_none() {
        tracing::warn!(%container, "ignoring config.log_path: the pod has no log_directory, so the container's output is not logged");
    }
}

/// Creates the directory that a mount names if it is missing, as containerd and CRI-O do.
fn create_source(source: &MountSource) -> Result<(), CreateError> {
    let path = match source {
        MountSource::Host(path) => path,
        MountSource::Image { .. } => return Ok(()),
    };
    let created = match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => std::fs::create_dir_all(path),
        Err(error) => Err(error),
    };
    created.map_err(|source| CreateError::MountSource { path: path.to_owned(), source })
}
