//! Invalid requests: each is refused with the right code, and the message names the field.

use cri_api::v1;
use tonic::Code;

use crate::support::client::{container, pod_namespaces, security};
use crate::support::harness::Daemon;
use crate::support::image_fixture::BOX;

type PodChange = fn(&mut v1::PodSandboxConfig);
type ContainerChange = fn(&mut v1::ContainerConfig);

fn pod_meta(config: &mut v1::PodSandboxConfig) -> &mut v1::PodSandboxMetadata {
    config.metadata.as_mut().unwrap()
}

fn linux(config: &mut v1::PodSandboxConfig) -> &mut v1::LinuxPodSandboxConfig {
    config.linux.as_mut().unwrap()
}

const PODS: &[(&str, Code, PodChange)] = &[
    ("config.metadata", Code::InvalidArgument, |c| c.metadata = None),
    ("config.metadata.name", Code::InvalidArgument, |c| pod_meta(c).name.clear()),
    ("config.metadata.uid", Code::InvalidArgument, |c| pod_meta(c).uid.clear()),
    ("config.metadata.namespace", Code::InvalidArgument, |c| pod_meta(c).namespace.clear()),
    ("config.hostname", Code::InvalidArgument, |c| c.hostname = "x".repeat(65)),
    ("config.hostname", Code::InvalidArgument, |c| c.hostname = "two words".into()),
    ("config.log_directory", Code::InvalidArgument, |c| c.log_directory = "relative".into()),
    ("config.log_directory", Code::InvalidArgument, |c| c.log_directory = "/tmp/../etc".into()),
    ("config.windows", Code::InvalidArgument, |c| c.windows = Some(v1::WindowsPodSandboxConfig::default())),
    ("config.linux.cgroup_parent", Code::InvalidArgument, |c| linux(c).cgroup_parent = "/a/../b".into()),
    ("config.linux.sysctls", Code::InvalidArgument, |c| {
        linux(c).sysctls.insert("kernel.core_pattern".into(), "|/bin/sh".into());
    }),
    ("config.linux.sysctls", Code::InvalidArgument, |c| {
        linux(c).sysctls.insert("net.ipv4.ip_forward".into(), "1\n2".into());
    }),
    ("config.port_mappings[0].container_port", Code::InvalidArgument, |c| {
        c.port_mappings.push(v1::PortMapping { container_port: 70_000, ..Default::default() });
    }),
    ("config.dns_config.servers[0]", Code::InvalidArgument, |c| {
        c.dns_config =
            Some(v1::DnsConfig { servers: vec!["1.1.1.1\nnameserver 6.6.6.6".into()], ..Default::default() });
    }),
    ("namespace_options", Code::InvalidArgument, |c| pod_namespaces(c).pid = v1::NamespaceMode::Target.into()),
    ("namespace_options.network", Code::InvalidArgument, |c| pod_namespaces(c).network = 17),
    ("userns_options", Code::InvalidArgument, |c| {
        let ids = v1::IdMapping { host_id: 100_000, container_id: 0, length: 0 };
        let mode = v1::NamespaceMode::Pod.into();
        pod_namespaces(c).userns_options = Some(v1::UserNamespace { mode, uids: vec![ids], gids: vec![ids] });
    }),
];

#[test]
fn an_invalid_pod_is_refused_by_the_name_of_its_field() {
    let daemon = Daemon::start();
    for (field, code, change) in PODS {
        let mut config = daemon.pod_config("pod");
        change(&mut config);
        let refusal = daemon.client().try_run_pod(config).unwrap_err();
        assert_eq!(refusal.code(), *code, "{field}: {refusal:?}");
        assert!(refusal.message().contains(field), "{field}: {refusal:?}");
    }
    assert!(daemon.client().pods().is_empty());
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

#[test]
fn a_pod_without_a_config_or_with_an_unknown_handler_is_refused() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let request = v1::RunPodSandboxRequest { config: None, runtime_handler: String::new() };
    let refusal = client.call(|mut c| async move { c.run_pod_sandbox(request).await }).unwrap_err();
    assert_eq!((refusal.code(), refusal.message().contains("config")), (Code::InvalidArgument, true), "{refusal:?}");
    let request =
        v1::RunPodSandboxRequest { config: Some(daemon.pod_config("pod")), runtime_handler: "no-such".into() };
    let refusal = client.call(|mut c| async move { c.run_pod_sandbox(request).await }).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("runtime_handler") && refusal.message().contains("no-such"), "{refusal:?}");
}

fn mount(container_path: &str, host_path: &str) -> v1::Mount {
    v1::Mount { container_path: container_path.into(), host_path: host_path.into(), ..Default::default() }
}

const CONTAINERS: &[(&str, Code, ContainerChange)] = &[
    ("config.metadata", Code::InvalidArgument, |c| c.metadata = None),
    ("config.metadata.name", Code::InvalidArgument, |c| c.metadata.as_mut().unwrap().name.clear()),
    ("config.image", Code::InvalidArgument, |c| c.image = None),
    ("config.image.image", Code::InvalidArgument, |c| c.image.as_mut().unwrap().image.clear()),
    ("crisp.test/none:1", Code::NotFound, |c| c.image.as_mut().unwrap().image = "crisp.test/none:1".into()),
    ("config.working_dir", Code::InvalidArgument, |c| c.working_dir = "relative".into()),
    ("config.log_path", Code::InvalidArgument, |c| c.log_path = "/etc/x.log".into()),
    ("config.log_path", Code::InvalidArgument, |c| c.log_path = "../x.log".into()),
    ("config.windows", Code::InvalidArgument, |c| c.windows = Some(v1::WindowsContainerConfig::default())),
    ("config.command[0]", Code::InvalidArgument, |c| c.command = vec!["a\0b".into()]),
    ("config.envs[0].key", Code::InvalidArgument, |c| c.envs.push(v1::KeyValue { key: "A=B".into(), value: vec![] })),
    ("config.envs[0].value", Code::InvalidArgument, |c| {
        c.envs.push(v1::KeyValue { key: "A".into(), value: vec![b'x', 0] });
    }),
    ("config.mounts[0].container_path", Code::InvalidArgument, |c| c.mounts.push(mount("relative", "/tmp"))),
    ("config.mounts[0].host_path", Code::InvalidArgument, |c| c.mounts.push(mount("/x", "relative"))),
    ("config.mounts[0].gidMappings", Code::InvalidArgument, |c| {
        let ids = v1::IdMapping { host_id: 100_000, container_id: 0, length: 65_536 };
        c.mounts.push(v1::Mount { uid_mappings: vec![ids], ..mount("/x", "/tmp") });
    }),
    ("config.mounts[0].propagation", Code::InvalidArgument, |c| {
        c.mounts.push(v1::Mount { propagation: 9, ..mount("/x", "/tmp") });
    }),
    ("config.mounts[0].recursive_read_only", Code::InvalidArgument, |c| {
        c.mounts.push(v1::Mount { recursive_read_only: true, ..mount("/x", "/tmp") });
    }),
    ("config.devices[0].permissions", Code::InvalidArgument, |c| {
        let device =
            v1::Device { container_path: "/dev/x".into(), host_path: "/dev/null".into(), permissions: "q".into() };
        c.devices.push(device);
    }),
    ("config.CDI_devices[0].name", Code::InvalidArgument, |c| {
        c.cdi_devices.push(v1::CdiDevice { name: "/dev/null".into() });
    }),
    ("config.CDI_devices: no CDI spec", Code::FailedPrecondition, |c| {
        c.cdi_devices.push(v1::CdiDevice { name: "a.test/b=c".into() });
    }),
    ("config.annotations[cdi.k8s.io/x]", Code::FailedPrecondition, |c| {
        c.annotations.insert("cdi.k8s.io/x".into(), "a.test/b=c".into());
    }),
    ("config.annotations[cdi.k8s.io/x]", Code::InvalidArgument, |c| {
        c.annotations.insert("cdi.k8s.io/x".into(), "c".into());
    }),
    ("run_as_user", Code::InvalidArgument, |c| security(c).run_as_user = Some(v1::Int64Value { value: -1 })),
    ("run_as_user", Code::InvalidArgument, |c| security(c).run_as_user = Some(v1::Int64Value { value: 1 << 32 })),
    ("run_as_group", Code::InvalidArgument, |c| security(c).run_as_group = Some(v1::Int64Value { value: 5 })),
    ("run_as_username", Code::InvalidArgument, |c| {
        security(c).run_as_username = "user".into();
        security(c).run_as_user = Some(v1::Int64Value { value: 1000 });
    }),
    ("masked_paths[0]", Code::InvalidArgument, |c| security(c).masked_paths = vec!["relative".into()]),
    ("capabilities", Code::InvalidArgument, |c| {
        let add_capabilities = vec!["NO_SUCH".into()];
        security(c).capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
    }),
    ("seccomp.localhost_ref", Code::InvalidArgument, |c| {
        let profile_type = v1::security_profile::ProfileType::Localhost.into();
        security(c).seccomp = Some(v1::SecurityProfile { profile_type, localhost_ref: String::new() });
    }),
    ("selinux_options.level", Code::InvalidArgument, |c| {
        security(c).selinux_options = Some(v1::SeLinuxOption { level: "no level".into(), ..Default::default() });
    }),
    ("target_id", Code::InvalidArgument, |c| {
        security(c).namespace_options = Some(crate::support::client::namespaces(v1::NamespaceMode::Target));
    }),
    ("stop_signal", Code::InvalidArgument, |c| c.stop_signal = 999),
    ("cpuset_cpus", Code::InvalidArgument, |c| {
        let resources = v1::LinuxContainerResources { cpuset_cpus: "one".into(), ..Default::default() };
        c.linux.as_mut().unwrap().resources = Some(resources);
    }),
    ("hugepage_limits[0]", Code::InvalidArgument, |c| {
        let hugepage_limits = vec![v1::HugepageLimit { page_size: "../x".into(), limit: 1 }];
        let resources = v1::LinuxContainerResources { hugepage_limits, ..Default::default() };
        c.linux.as_mut().unwrap().resources = Some(resources);
    }),
];

#[test]
fn an_invalid_container_is_refused_by_the_name_of_its_field() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    for (field, code, change) in CONTAINERS {
        let mut config = container("main", &["true"]);
        change(&mut config);
        let refusal = daemon.client().try_create(&pod, config).unwrap_err();
        assert_eq!(refusal.code(), *code, "{field}: {refusal:?}");
        assert!(refusal.message().contains(field), "{field}: {refusal:?}");
    }
    assert!(daemon.client().containers().is_empty());
    daemon.wait_until_like(&before);
}

#[test]
fn an_absent_config_or_id_is_named() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let request = v1::CreateContainerRequest { pod_sandbox_id: pod.id.clone(), config: None, sandbox_config: None };
    let refusals = [
        ("config", client.call(|mut c| async move { c.create_container(request).await }).map(drop)),
        ("container_id", client.start("")),
        ("container_id", client.stop("", 1)),
        ("container_id", client.remove("")),
        ("container_id", client.try_status("").map(drop)),
        ("container_id", client.reopen_log("")),
        ("container_id", client.try_exec("", &["true"], 0).map(drop)),
        ("pod_sandbox_id", client.stop_pod("")),
        ("pod_sandbox_id", client.remove_pod("")),
        ("pod_sandbox_id", client.try_pod_status("").map(drop)),
    ];
    for (field, answer) in refusals {
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{field}: {refusal:?}");
        assert!(refusal.message().contains(field), "{field}: {refusal:?}");
    }
    assert_eq!(client.pods().len(), 1);
}

#[test]
fn invalid_timeouts_and_commands_are_refused_by_field() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    for (field, refusal) in [
        ("timeout", client.stop(&id, -1).unwrap_err()),
        ("timeout", client.try_exec(&id, &["true"], -1).unwrap_err()),
        ("cmd", client.try_exec(&id, &[], 0).unwrap_err()),
        ("cmd", client.try_exec(&id, &[""], 0).unwrap_err()),
    ] {
        assert_eq!(refusal.code(), Code::InvalidArgument, "{field}: {refusal:?}");
        assert!(refusal.message().contains(field), "{field}: {refusal:?}");
    }
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerRunning);
}

#[test]
fn a_container_with_the_config_of_another_pod_is_refused() {
    let daemon = Daemon::start();
    let (mut pod, other) = (daemon.run_pod("pod"), daemon.run_pod("other"));
    pod.config = other.config;
    let refusal = daemon.client().try_create(&pod, container("main", &["true"])).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("sandbox_config"), "{refusal:?}");
}

#[test]
fn an_image_request_without_a_name_is_refused() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pull = v1::PullImageRequest::default();
    let refusal = client.image_call(|mut c| async move { c.pull_image(pull).await }).unwrap_err();
    assert_eq!((refusal.code(), refusal.message().contains("image")), (Code::InvalidArgument, true), "{refusal:?}");
    for name in ["Not A Name", "crisp.test/x:", "@sha256:12"] {
        let image = Some(v1::ImageSpec { image: name.into(), ..Default::default() });
        let pull = v1::PullImageRequest { image, ..Default::default() };
        let refusal = client.image_call(|mut c| async move { c.pull_image(pull).await }).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{name}: {refusal:?}");
        assert!(refusal.message().contains(name), "{name}: {refusal:?}");
    }
    let list = v1::ListImagesRequest::default();
    let images = client.image_call(|mut c| async move { c.list_images(list).await }).unwrap().images;
    assert_eq!(images[0].repo_tags, [BOX]);
}
