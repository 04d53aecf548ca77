//! Requests and records with every field set, so that a lost field fails a test.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cri_api::v1;
use model::{CgroupPath, ContainerId, ContainerState, PodId, PodState, Signal};
use shim_protocol::Sandbox;

use crate::convert::{container, pod};
use crate::store::{ContainerImage, ContainerRecord, ContainerUser, NetworkKind, PodCgroup, PodRecord, VERSION};

pub(crate) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn id(value: i64) -> Option<v1::Int64Value> {
    Some(v1::Int64Value { value })
}

pub(crate) fn limits() -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 100_000_001,
        oom_score_adj: -997,
        cpuset_cpus: "0-1".to_owned(),
        cpuset_mems: "0".to_owned(),
        hugepage_limits: vec![v1::HugepageLimit { page_size: "2MB".to_owned(), limit: 0 }],
        unified: map(&[("memory.high", "max")]),
        memory_swap_limit_in_bytes: 200_000_000,
    }
}

pub(crate) fn image() -> v1::ImageSpec {
    v1::ImageSpec {
        image: "sha256:abc".to_owned(),
        annotations: map(&[("ik", "iv")]),
        user_specified_image: "busybox".to_owned(),
        runtime_handler: "crisp".to_owned(),
        image_ref: String::new(),
    }
}

fn namespaces(pid: v1::NamespaceMode, target: &str) -> v1::NamespaceOption {
    v1::NamespaceOption {
        network: v1::NamespaceMode::Pod.into(),
        pid: pid.into(),
        ipc: v1::NamespaceMode::Pod.into(),
        target_id: target.to_owned(),
        userns_options: Some(v1::UserNamespace {
            mode: v1::NamespaceMode::Pod.into(),
            uids: vec![mapping(0, 65536, 1000), mapping(1000, 90000, 1)],
            gids: vec![mapping(0, 131_072, 1000)],
        }),
    }
}

fn mapping(container_id: u32, host_id: u32, length: u32) -> v1::IdMapping {
    v1::IdMapping { host_id, container_id, length }
}

fn selinux() -> v1::SeLinuxOption {
    v1::SeLinuxOption { user: "u".to_owned(), role: "r".to_owned(), r#type: "t".to_owned(), level: "s0".to_owned() }
}

fn localhost(name: &str) -> v1::SecurityProfile {
    let profile_type = v1::security_profile::ProfileType::Localhost.into();
    v1::SecurityProfile { profile_type, localhost_ref: name.to_owned() }
}

#[expect(deprecated, reason = "every field is filled")]
pub(crate) fn pod_config() -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "web".to_owned(),
            uid: "uid-1".to_owned(),
            namespace: "default".to_owned(),
            attempt: 3,
        }),
        hostname: "web-host".to_owned(),
        log_directory: "/var/log/pods/web".to_owned(),
        dns_config: Some(v1::DnsConfig {
            servers: vec!["10.0.0.10".to_owned()],
            searches: vec!["svc.local".to_owned()],
            options: vec!["ndots:5".to_owned()],
        }),
        port_mappings: vec![v1::PortMapping {
            protocol: v1::Protocol::Udp.into(),
            container_port: 53,
            host_port: 5353,
            host_ip: "127.0.0.1".to_owned(),
        }],
        labels: map(&[("lk", "lv")]),
        annotations: map(&[("ak", "av")]),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: "/kubepods/pod1".to_owned(),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(v1::NamespaceMode::Container, "")),
                selinux_options: Some(selinux()),
                run_as_user: id(1000),
                run_as_group: id(2000),
                readonly_rootfs: true,
                supplemental_groups: vec![7, 8],
                supplemental_groups_policy: v1::SupplementalGroupsPolicy::Strict.into(),
                privileged: true,
                seccomp: Some(localhost("/profiles/s.json")),
                apparmor: Some(localhost("aa")),
                seccomp_profile_path: "unconfined".to_owned(),
            }),
            sysctls: map(&[("net.ipv4.ip_forward", "1"), ("kernel.shm_rmid_forced", "1")]),
            overhead: Some(limits()),
            resources: Some(limits()),
        }),
        windows: None,
        pod_resources: Some(pod_resources()),
    }
}

#[expect(deprecated, reason = "every field is filled")]
fn container_security() -> v1::LinuxContainerSecurityContext {
    v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: vec!["CAP_NET_ADMIN".to_owned(), "sys_time".to_owned()],
            drop_capabilities: vec!["ALL".to_owned()],
            add_ambient_capabilities: vec!["NET_RAW".to_owned()],
        }),
        privileged: true,
        namespace_options: Some(namespaces(v1::NamespaceMode::Target, "other")),
        selinux_options: Some(selinux()),
        run_as_user: id(1000),
        run_as_group: id(2000),
        run_as_username: String::new(),
        readonly_rootfs: true,
        supplemental_groups: vec![7, 8],
        supplemental_groups_policy: v1::SupplementalGroupsPolicy::Strict.into(),
        no_new_privs: true,
        masked_paths: vec!["/proc/kcore".to_owned()],
        readonly_paths: vec!["/proc/sys".to_owned()],
        seccomp: Some(localhost("/profiles/s.json")),
        apparmor: Some(localhost("aa")),
        apparmor_profile: "unconfined".to_owned(),
        seccomp_profile_path: "unconfined".to_owned(),
    }
}

pub(crate) fn host_mount() -> v1::Mount {
    v1::Mount {
        container_path: "/data".to_owned(),
        host_path: "/srv/data".to_owned(),
        readonly: true,
        selinux_relabel: true,
        propagation: v1::MountPropagation::PropagationPrivate.into(),
        uid_mappings: vec![mapping(0, 65536, 1000)],
        gid_mappings: vec![mapping(0, 131_072, 1000), mapping(1000, 90000, 1)],
        recursive_read_only: true,
        image: None,
        image_sub_path: String::new(),
        mount_options: vec!["noexec".to_owned()],
    }
}

pub(crate) fn image_mount() -> v1::Mount {
    v1::Mount {
        container_path: "/model".to_owned(),
        host_path: String::new(),
        recursive_read_only: false,
        image: Some(image()),
        image_sub_path: "weights".to_owned(),
        ..host_mount()
    }
}

pub(crate) fn container_config() -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "main".to_owned(), attempt: 2 }),
        image: Some(image()),
        command: vec!["/bin/app".to_owned()],
        args: vec!["-v".to_owned()],
        working_dir: "/work".to_owned(),
        envs: vec![v1::KeyValue { key: "KEY".to_owned(), value: b"value=1".to_vec() }],
        mounts: vec![host_mount(), image_mount()],
        devices: vec![v1::Device {
            container_path: "/dev/fuse".to_owned(),
            host_path: "/dev/host-fuse".to_owned(),
            permissions: "mrw".to_owned(),
        }],
        labels: map(&[("lk", "lv")]),
        annotations: map(&[("ak", "av")]),
        log_path: "main/0.log".to_owned(),
        stdin: true,
        stdin_once: true,
        tty: true,
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(limits()),
            security_context: Some(container_security()),
        }),
        windows: None,
        cdi_devices: vec![v1::CdiDevice { name: "vendor.example/gpu=0".to_owned() }],
        stop_signal: v1::Signal::Sigrtminplus3.into(),
        kubernetes_resources: Some(kubernetes_resources()),
    }
}

pub(crate) fn quantities(pairs: &[(&str, &str)]) -> BTreeMap<String, cri_api::Quantity> {
    map(pairs).into_iter().map(|(name, string)| (name, cri_api::Quantity { string })).collect()
}

pub(crate) fn kubernetes_resources() -> v1::KubernetesResources {
    v1::KubernetesResources {
        requests: quantities(&[("cpu", "500m"), ("memory", "64Mi")]),
        limits: quantities(&[("cpu", "1"), ("memory", "100000001"), ("vendor.example/gpu", "1")]),
    }
}

/// Returns the resources of an init container and of the container of [`container_config`].
pub(crate) fn pod_resources() -> v1::PodResourceConfig {
    let v1::ContainerConfig { mounts, devices, cdi_devices, .. } = container_config();
    let main = v1::ContainerResourceConfig {
        name: "main".to_owned(),
        r#type: v1::container_resource_config::ContainerType::Container.into(),
        kubernetes_resources: Some(kubernetes_resources()),
        mounts,
        devices,
        cdi_devices,
    };
    let init = v1::ContainerResourceConfig {
        name: "init".to_owned(),
        r#type: v1::container_resource_config::ContainerType::InitContainer.into(),
        ..Default::default()
    };
    v1::PodResourceConfig {
        containers: vec![init, main],
        kubernetes_resources: Some(v1::KubernetesResources {
            requests: quantities(&[("cpu", "1.5")]),
            limits: quantities(&[("memory", "1Gi")]),
        }),
    }
}

pub(crate) fn create_request() -> v1::CreateContainerRequest {
    v1::CreateContainerRequest {
        pod_sandbox_id: "abc".to_owned(),
        config: Some(container_config()),
        sandbox_config: Some(pod_config()),
    }
}

pub(crate) fn run_request() -> v1::RunPodSandboxRequest {
    v1::RunPodSandboxRequest { config: Some(pod_config()), runtime_handler: "crisp".to_owned() }
}

pub(crate) fn time(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::new(seconds, 5)
}

pub(crate) fn pod_record() -> PodRecord {
    PodRecord {
        version: VERSION,
        id: PodId::from_bytes([1; 32]),
        spec: pod::run(run_request(), None).unwrap().0,
        created: time(100),
        state: PodState::Ready,
        hostname: "web-host".to_owned(),
        sandbox: Sandbox::default(),
        cgroup: PodCgroup { path: CgroupPath::new("/kubepods/pod1").unwrap(), ours: false },
        applied: cgroup::AppliedValues::new(),
        ips: vec!["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        network: NetworkKind::Bridge,
        selinux: None,
        unreadable: None,
    }
}

pub(crate) fn container_record() -> ContainerRecord {
    ContainerRecord {
        version: VERSION,
        id: ContainerId::from_bytes([2; 32]),
        pod: PodId::from_bytes([1; 32]),
        spec: container::create(create_request()).unwrap().spec,
        created: time(200),
        state: ContainerState::Running { pid: NonZeroU32::MIN, started: time(201) },
        image: ContainerImage {
            id: "sha256:abc".to_owned(),
            name: "busybox".to_owned(),
            reference: "a.example/b@sha256:def".to_owned(),
        },
        mounted: map(&[("sha256:abc", "sha256:abcdef")]),
        user: ContainerUser { uid: 1000, gid: 2000, groups: vec![7, 8] },
        log: Some("/var/log/pods/web/main/0.log".into()),
        stop_signal: Signal::TERM,
        cgroup: CgroupPath::new("/kubepods/pod1/c").unwrap(),
        applied: cgroup::AppliedValues::new(),
        cdi: vec![],
        selinux: None,
        unreadable: None,
    }
}
