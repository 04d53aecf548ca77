//! Pods and containers whose records this daemon cannot read: of another release, or damaged.
//!
//! They are listed from their intents and from the kernel, and can be stopped and removed. Their
//! names, addresses, ports and SELinux levels stay reserved until then. All other requests are
//! refused, and their records are never written, so that the release that wrote them finds them
//! unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cgroup::AppliedValues;
use model::resources::LimitsPatch;
use model::{
    Bandwidth, Capabilities, CgroupPath, ContainerId, ContainerMeta, ContainerSecurity, ContainerSpec, ContainerState,
    GroupsPolicy, ImageName, Namespaces, NsMode, PodId, PodMeta, PodSecurity, PodSpec, PodState, Signal,
};
use rustix::fs::statfs;
use serde_json::Value;
use shim_protocol::Sandbox;

use super::Runtime;
use super::shim_monitor::{recorded_exit, recorded_exit_or_lost};
use crate::sandbox_client::SandboxClient;
use crate::store::{
    CONTAINER_FILE, CgroupIntent, ContainerImage, ContainerIntent, ContainerRecord, ContainerUser, POD_FILE, PodCgroup,
    PodIntent, PodRecord, Unreadable, VERSION, intent,
};

/// Replaces a lost name.
const NAMELESS: &str = "unknown";
/// The file system type of a pinned namespace.
const NSFS_MAGIC: i64 = 0x6e73_6673;

impl PodRecord {
    /// Returns true if only the ID of the pod is known.
    pub(crate) fn is_nameless(&self) -> bool {
        self.unreadable.is_some() && self.spec.meta.name == self.id.as_str() && self.spec.meta.namespace == NAMELESS
    }
}

impl Runtime {
    /// Builds the record of a pod whose record cannot be read. It is stopped if only files are left
    /// of it.
    pub(super) fn unreadable_pod(
        &self,
        id: &PodId,
        why: &Arc<Unreadable>,
        containers: &[ContainerRecord],
    ) -> PodRecord {
        let dir = self.pod_dir(id);
        let mut intent: PodIntent = intent::read(&dir);
        intent.fill_from(&raw(&dir.join(POD_FILE)));
        let connected = statfs(dir.join("netns")).is_ok_and(|about| about.f_type == NSFS_MAGIC);
        let runs = connected || SandboxClient::is_alive(&dir) || containers.iter().any(|one| one.state.pid().is_some());
        let (network, ips) = if runs { (intent.network, intent.ips) } else { (None, None) };
        PodRecord {
            version: VERSION,
            id: id.clone(),
            created: intent.created.unwrap_or_else(|| made(&dir)),
            state: if runs { PodState::Unreadable } else { PodState::NotReady },
            hostname: String::new(),
            sandbox: Sandbox::default(),
            cgroup: PodCgroup {
                path: intent.cgroup.unwrap_or_else(|| CgroupPath::unknown(id.as_str())),
                ours: intent.ours,
            },
            applied: AppliedValues::new(),
            ips: ips.unwrap_or_default(),
            network: network.unwrap_or_default(),
            selinux: intent.selinux,
            unreadable: Some(Arc::clone(why)),
            spec: PodSpec {
                meta: intent.meta.unwrap_or_else(|| PodMeta {
                    name: id.to_string(),
                    uid: id.to_string(),
                    namespace: NAMELESS.to_owned(),
                    attempt: 0,
                }),
                hostname: String::new(),
                log_directory: None,
                dns: None,
                port_mappings: intent.port_mappings.unwrap_or_default(),
                labels: intent.labels.unwrap_or_default(),
                bandwidth: Bandwidth::default(),
                annotations: intent.annotations.unwrap_or_default(),
                cgroup_parent: None,
                sysctls: BTreeMap::new(),
                overhead: LimitsPatch::default(),
                resources: LimitsPatch::default(),
                pod_resources: None,
                security: pod_security(if connected { NsMode::Pod } else { NsMode::Node }),
                handler: intent.handler.unwrap_or_default(),
            },
        }
    }

    /// Builds the record of a container whose record cannot be read.
    pub(super) fn unreadable_container(&self, pod: &PodId, id: &ContainerId, why: &Arc<Unreadable>) -> ContainerRecord {
        let dir = self.layout.container(pod, id);
        let mut intent: ContainerIntent = intent::read(&dir);
        intent.fill_from(&raw(&dir.join(CONTAINER_FILE)));
        let found = || self.cgroups.find(id.as_str()).into_iter().next();
        let cgroup = intent.cgroup.or_else(found).unwrap_or_else(|| CgroupPath::unknown(id.as_str()));
        let created = intent.created.unwrap_or_else(|| made(&dir));
        let unknown = || NAMELESS.to_owned();
        let image =
            intent.image.unwrap_or_else(|| ContainerImage { id: String::new(), name: unknown(), reference: unknown() });
        ContainerRecord {
            version: VERSION,
            id: id.clone(),
            pod: pod.clone(),
            created,
            state: self.state_of_unreadable(&dir, &cgroup, created),
            mounted: BTreeMap::new(),
            user: ContainerUser { uid: 0, gid: 0, groups: Vec::new() },
            log: intent.log,
            stop_signal: intent.stop_signal.unwrap_or(Signal::TERM),
            cgroup,
            applied: AppliedValues::new(),
            cdi: Vec::new(),
            selinux: intent.selinux,
            unreadable: Some(Arc::clone(why)),
            spec: container_spec(
                intent.meta.unwrap_or_else(|| ContainerMeta { name: id.to_string(), attempt: 0 }),
                intent.labels.unwrap_or_default(),
                intent.annotations.unwrap_or_default(),
                &image,
            ),
            image,
        }
    }

    /// Returns the state from the exit that the shim recorded, else from the processes in the
    /// cgroup.
    fn state_of_unreadable(&self, dir: &Path, cgroup: &CgroupPath, created: SystemTime) -> ContainerState {
        if let Some(exit) = recorded_exit(dir) {
            return ContainerState::Exited { started: Some(created.min(exit.at)), exit };
        }
        let processes = self.cgroup(cgroup).procs().unwrap_or_default();
        match first_process(&processes) {
            Some(pid) => ContainerState::Running { pid, started: created },
            None => ContainerState::Exited { started: None, exit: recorded_exit_or_lost(dir) },
        }
    }

    /// Returns the cgroups of the pod or container in `dir`: the one in its intent, or without an
    /// intent those that are named after `id`.
    pub(super) fn cgroups_to_remove(&self, dir: &Path, id: &str) -> Vec<CgroupIntent> {
        let known: CgroupIntent = intent::read(dir);
        match known.cgroup {
            Some(_) => vec![known],
            None => {
                let found = self.cgroups.find(id).into_iter();
                found.map(|path| CgroupIntent { cgroup: Some(path), ours: true }).collect()
            }
        }
    }
}

/// Reads a record as a JSON value.
fn raw(file: &Path) -> Value {
    std::fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Returns when a directory was last changed, which is about when its contents were created.
fn made(dir: &Path) -> SystemTime {
    let changed = std::fs::metadata(dir).and_then(|about| about.modified());
    // CRI clients treat a missing time as an error.
    changed.unwrap_or(SystemTime::UNIX_EPOCH + Duration::from_secs(1))
}

/// Returns the process that is an ancestor of the others.
fn first_process(all: &BTreeSet<NonZeroU32>) -> Option<NonZeroU32> {
    let parent = |pid: &NonZeroU32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<NonZeroU32>().ok()
    };
    let outermost = all.iter().find(|pid| parent(pid).is_some_and(|parent| !all.contains(&parent)));
    outermost.or_else(|| all.first()).copied()
}

fn namespaces(network: NsMode) -> Namespaces {
    Namespaces { network, pid: NsMode::Container, ipc: NsMode::Pod, target: None, user: None }
}

fn pod_security(network: NsMode) -> PodSecurity {
    PodSecurity {
        namespaces: namespaces(network),
        selinux: None,
        run_as_user: None,
        run_as_group: None,
        supplemental_groups: Vec::new(),
        groups_policy: GroupsPolicy::Merge,
        readonly_rootfs: false,
        privileged: false,
        seccomp: None,
        apparmor: None,
    }
}

fn container_spec(
    meta: ContainerMeta,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    image: &ContainerImage,
) -> ContainerSpec {
    ContainerSpec {
        meta,
        image: ImageName {
            image: image.name.clone(),
            user_specified: String::new(),
            annotations: BTreeMap::new(),
            handler: String::new(),
        },
        command: Vec::new(),
        args: Vec::new(),
        working_dir: String::new(),
        envs: Vec::new(),
        mounts: Vec::new(),
        devices: Vec::new(),
        cdi_devices: Vec::new(),
        labels,
        annotations,
        log_path: None,
        stdin: false,
        stdin_once: false,
        tty: false,
        resources: LimitsPatch::default(),
        kubernetes_resources: None,
        security: ContainerSecurity {
            capabilities: Capabilities::default(),
            privileged: false,
            namespaces: namespaces(NsMode::Pod),
            selinux: None,
            run_as: None,
            run_as_group: None,
            supplemental_groups: Vec::new(),
            groups_policy: GroupsPolicy::Merge,
            readonly_rootfs: false,
            no_new_privs: false,
            masked_paths: Vec::new(),
            readonly_paths: Vec::new(),
            seccomp: None,
            apparmor: None,
        },
        stop_signal: None,
    }
}
