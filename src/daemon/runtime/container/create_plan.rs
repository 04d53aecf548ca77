//! What CreateContainer finds out before it makes anything: all that can be refused is refused here.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{Handler, NoSuchHandler, OomPolicy};
use model::{ContainerId, ContainerSpec, ContainerState, GroupsPolicy, MountSource, NsMode, Profile, Signal, UserRef};
use oci::cdi::{Edits, InjectedDevice, Owner};
use oci::{SpecInputs, cdi};
use safe_fs::log_file::open_log;
use security::seccomp::ProfileSource;
use security::{LabelRequest, Labels, RelabelError, SelinuxError, relabel};
use shim_protocol::LogPath;

use super::create_error::CreateError;
use super::devices::{self, Devices};
use super::{pod_resources_check, volumes};
use crate::runtime::Runtime;
use crate::runtime::pod::etc_files;
use crate::store::PodRecord;

/// What was found out before anything is made.
#[derive(Debug)]
pub(crate) struct ContainerPlan {
    pub(crate) id: ContainerId,
    pub(crate) spec: ContainerSpec,
    pub(crate) pod: Arc<PodRecord>,
    pub(crate) image: Arc<image::Image>,
    /// The images that its mounts name, by these names.
    pub(crate) mounted: BTreeMap<String, Arc<image::Image>>,
    /// The volumes that its own image declares.
    pub(crate) volumes: Vec<image::Volume>,
    pub(crate) user: image::User,
    pub(crate) groups: Vec<u32>,
    pub(crate) stop_signal: Signal,
    pub(crate) device_rules: Vec<cgroup::DeviceRule>,
    pub(crate) cdi: Vec<InjectedDevice>,
    pub(crate) seccomp: Option<PathBuf>,
    pub(crate) selinux: Option<Labels>,
    pub(crate) paths: ClientPaths,
    pub(crate) log_line_max: u32,
    pub(crate) log_rate_max: u64,
    pub(crate) oom_policy: OomPolicy,
    pub(crate) cgroup: cgroup::Cgroup,
    /// What was written to its files, once it is made.
    pub(crate) settings: cgroup::AppliedValues,
    /// Its OCI configuration; boxed, since a draft is carried through requests that wait.
    pub(crate) config: Box<oci_spec::runtime::Spec>,
}

/// Paths that the client chose, and who looks at them.
#[derive(Debug)]
pub(crate) struct ClientPaths {
    pub(crate) log: Option<LogPath>,
    /// It is open already, since the pod's shim does not open it.
    pub(crate) log_file: Option<File>,
    /// What the launcher makes where it is missing.
    pub(crate) mount_sources: Vec<PathBuf>,
}

impl Runtime {
    /// Everything that can be refused, before the first change.
    pub(crate) fn plan_container(
        &self,
        id: ContainerId,
        pod: Arc<PodRecord>,
        mut spec: ContainerSpec,
        shim_opens_paths: bool,
    ) -> Result<ContainerPlan, CreateError> {
        let handler = self.handler(&pod)?;
        self.image_handlers(&spec)?;
        let differences =
            pod_resources_check::check(self.settings().resources.mismatch, pod.spec.pod_resources.as_ref(), &mut spec)?;
        let image = self.image_of(&spec)?;
        let image_config = self.images.config(&image)?;
        let (user, mut groups) = self.user(&spec, &image)?;
        let stop_signal = stop_signal(&spec, &image_config)?;
        let (Devices { nodes, rules: device_rules, .. }, edits) = self.devices(&pod, &spec, &user)?;
        groups.extend(&edits.groups);
        groups.sort_unstable();
        groups.dedup();
        let seccomp = self.seccomp(&spec, &handler)?;
        let apparmor = &spec.security.apparmor;
        let apparmor =
            self.apparmor.profile(apparmor.as_ref(), spec.security.privileged, handler.apparmor.as_deref())?;
        let selinux = self.labels(&id, &pod, &spec)?;
        let mounted = self.mounted(&spec.mounts).map_err(CreateError::ImageMount)?;
        let sources: Vec<PathBuf> = spec.mounts.iter().map(|mount| volumes::source(mount, &mounted)).collect();
        let above = self.layout.writable_layer(&id).join("volumes");
        let volumes = volumes::image_volumes(&image_config.volumes, &spec.mounts, &above)?;
        let parent = cgroup::CgroupPath::new(&pod.cgroup.path)?;
        let cgroup = self.cgroup(self.driver.container(&parent, id.as_str())?.as_str())?;
        let config = oci::build(&SpecInputs {
            handler: &handler,
            pod: &pod.spec,
            hostname: &pod.hostname,
            held: &pod.sandbox,
            pod_files: &self.pod_dir(&pod.id).join(etc_files::DIR),
            container: &spec,
            image: &image_config,
            user: &user,
            groups: &groups,
            cgroup: cgroup.path().as_str(),
            cgroups: self.cgroups.version(),
            sources: &sources,
            volumes: &volumes,
            devices: &nodes,
            edits: &edits,
            target: self.target(&pod, &spec)?,
            apparmor: apparmor.as_deref(),
            selinux: selinux.as_ref(),
        })?;
        // From here on something may be made: missing sources, labels and the log, as the peers do.
        ready_volumes(&spec, selinux.as_ref(), shim_opens_paths)?;
        let paths = client_paths(&pod, &spec, shim_opens_paths)?;
        warn_unsupported(&id, &pod, &spec);
        if let Some(differences) = differences {
            tracing::warn!(container = %id, %differences, "not as announced with its pod");
        }
        Ok(ContainerPlan {
            id,
            spec,
            pod,
            image,
            mounted,
            volumes,
            user,
            groups,
            stop_signal,
            device_rules,
            cdi: edits.used,
            seccomp,
            selinux,
            paths,
            log_line_max: handler.log_line_max,
            log_rate_max: handler.log_rate_max,
            oom_policy: handler.oom_score_adj,
            cgroup,
            settings: cgroup::AppliedValues::new(),
            config: Box::new(config),
        })
    }

    fn image_of(&self, spec: &ContainerSpec) -> Result<Arc<image::Image>, CreateError> {
        let image = self.images.find(&spec.image.image);
        let image = image.ok_or_else(|| CreateError::NoSuchImage(spec.image.image.clone()))?;
        if image.chain.is_empty() { Err(CreateError::NoLayers(spec.image.image.clone())) } else { Ok(image) }
    }

    /// Images are the same for all handlers; one that is not there is a mistake all the same.
    fn image_handlers(&self, spec: &ContainerSpec) -> Result<(), NoSuchHandler> {
        let handlers = &self.settings().handlers;
        handlers.asked("config.image.runtime_handler", &spec.image.handler)?;
        for (index, mount) in spec.mounts.iter().enumerate() {
            if let MountSource::Image { image, sub_path: _ } = &mount.source {
                handlers.asked(&format!("config.mounts[{index}].image.runtime_handler"), &image.handler)?;
            }
        }
        Ok(())
    }

    /// The device nodes that were asked for, also by CDI devices, and what those change beside.
    fn devices(
        &self,
        pod: &PodRecord,
        spec: &ContainerSpec,
        user: &image::User,
    ) -> Result<(Devices, Edits), CreateError> {
        let names = cdi::annotated(&spec.cdi_devices, &spec.annotations, self.settings().cdi.annotations)?;
        let mut edits = self.specs.find(&names, Owner { uid: user.uid, gid: user.gid })?;
        let mut devices = devices::of(spec, pod.spec.security.namespaces.user.is_some())?;
        std::mem::take(&mut edits.nodes).into_iter().for_each(|new| devices.add(new.node, new.access));
        Ok((devices, edits))
    }

    fn user(&self, spec: &ContainerSpec, image: &image::Image) -> Result<(image::User, Vec<u32>), CreateError> {
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
        let user = image::resolve_user(&accounts, request)?;
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

    /// Its level, if it has one of its own, is taken until it is freed.
    fn labels(&self, id: &ContainerId, pod: &PodRecord, spec: &ContainerSpec) -> Result<Option<Labels>, SelinuxError> {
        let (security, above) = (&spec.security, &pod.spec.security.namespaces);
        // As the container really has them: a client that is silent asks for the pod's.
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

    /// The first process of the container whose PID namespace is asked for.
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

/// The log, where the pod has a log directory and the container a path in it.
fn log_path(pod: &PodRecord, spec: &ContainerSpec) -> Option<LogPath> {
    let (directory, file) = (pod.spec.log_directory.clone()?, spec.log_path.clone()?);
    Some(LogPath { directory, file })
}

/// Opens the log, unless the shim does.
fn client_paths(pod: &PodRecord, spec: &ContainerSpec, shim_opens_paths: bool) -> Result<ClientPaths, CreateError> {
    let log = log_path(pod, spec);
    let log_file = log.as_ref().filter(|_| !shim_opens_paths);
    let log_file = log_file.map(|log| open_log(&log.directory, &log.file)).transpose()?;
    let mount_sources = if shim_opens_paths { host_sources(spec) } else { Vec::new() };
    Ok(ClientPaths { log, log_file, mount_sources })
}

/// The sources of mounts on the host.
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

/// Relabels the sources that are to be: for this container alone, as CRI is understood, so its level goes with the label. Images
/// have it from their mount. Makes those first that are missing, and all others where the shim does not.
fn ready_volumes(spec: &ContainerSpec, labels: Option<&Labels>, shim_opens_paths: bool) -> Result<(), CreateError> {
    let relabels = |mount: &model::Mount| mount.selinux_relabel && labels.is_some();
    let mut here = spec.mounts.iter().filter(|mount| !shim_opens_paths || relabels(mount));
    here.try_for_each(|mount| make_source(&mount.source))?;
    let Some(Labels { mount: label, .. }) = labels else { return Ok(()) };
    for (index, mount) in spec.mounts.iter().enumerate().filter(|(_, mount)| mount.selinux_relabel) {
        let MountSource::Host(path) = &mount.source else { continue };
        let failed = |source: RelabelError| CreateError::Relabel { index, source };
        if !relabel(path, label).map_err(failed)? {
            tracing::warn!(path = %path.display(), "config.mounts[{index}].selinux_relabel: it takes no labels");
        }
    }
    Ok(())
}

/// Tells of wishes that are granted in all but this.
fn warn_unsupported(container: &ContainerId, pod: &PodRecord, spec: &ContainerSpec) {
    if spec.log_path.is_some() && pod.spec.log_directory.is_none() {
        tracing::warn!(%container, "config.log_path: the pod has no log_directory, so nothing is logged");
    }
}

/// A directory that is to be mounted and is missing is made, as the peers do.
fn make_source(source: &MountSource) -> Result<(), CreateError> {
    let path = match source {
        MountSource::Host(path) => path,
        MountSource::Image { .. } => return Ok(()),
    };
    let made = match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => std::fs::create_dir_all(path),
        Err(error) => Err(error),
    };
    made.map_err(|source| CreateError::MountSource { path: path.to_owned(), source })
}
