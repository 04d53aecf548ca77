use model::resources::{CpuShares, LimitsPatch};
use model::{Bandwidth, BitRate, ErrorClass as _, ErrorKind, GroupsPolicy, NsMode, Profile};

use super::super::tests::support::{map, pod_config, run_request};
use super::*;

fn refused(change: impl FnOnce(&mut v1::PodSandboxConfig)) -> String {
    let mut config = pod_config();
    change(&mut config);
    let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
    let refusal = run(request, None).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Invalid);
    refusal.to_string()
}

fn linux(config: &mut v1::PodSandboxConfig) -> &mut v1::LinuxPodSandboxConfig {
    config.linux.as_mut().unwrap()
}

fn context(config: &mut v1::PodSandboxConfig) -> &mut v1::LinuxSandboxSecurityContext {
    linux(config).security_context.as_mut().unwrap()
}

#[test]
fn every_field_is_converted() {
    let (spec, warnings) = run(run_request(), None).unwrap();
    assert_eq!(spec.meta, PodMeta { name: "web".into(), uid: "uid-1".into(), namespace: "default".into(), attempt: 3 });
    assert_eq!((spec.hostname.as_str(), spec.handler.as_str()), ("web-host", "crisp"));
    assert_eq!(spec.log_directory, Some("/var/log/pods/web".into()));
    assert_eq!(
        spec.dns,
        Some(Dns {
            servers: vec!["10.0.0.10".into()],
            searches: vec!["svc.local".into()],
            options: vec!["ndots:5".into()]
        })
    );
    assert_eq!(
        spec.port_mappings,
        [PortMapping { protocol: Protocol::Udp, container_port: 53, host_port: 5353, host_ip: "127.0.0.1".into() }]
    );
    assert_eq!((spec.labels, spec.annotations), (map(&[("lk", "lv")]), map(&[("ak", "av")])));
    assert_eq!(spec.bandwidth, Bandwidth::default());
    assert_eq!(spec.cgroup_parent.as_ref().map(CgroupPath::as_str), Some("/kubepods/pod1"));
    assert_eq!(spec.sysctls, map(&[("net.ipv4.ip_forward", "1"), ("kernel.shm_rmid_forced", "1")]));
    for limits in [&spec.overhead, &spec.resources] {
        assert_eq!(limits.cpu_shares, Some(CpuShares::new(512).unwrap()));
        assert_eq!(limits.oom_score_adj, None);
    }
    let security = spec.security;
    assert_eq!((security.namespaces.network, security.namespaces.pid), (NsMode::Pod, NsMode::Container));
    assert_eq!((security.run_as_user, security.run_as_group), (Some(1000), Some(2000)));
    assert_eq!((security.supplemental_groups, security.groups_policy), (vec![7, 8], GroupsPolicy::Strict));
    assert!(security.readonly_rootfs && security.privileged);
    assert_eq!(security.selinux.unwrap().kind, "t");
    assert_eq!(security.seccomp, Some(Profile::Localhost("/profiles/s.json".into())));
    assert_eq!(security.apparmor, Some(Profile::Localhost("aa".into())));
    let announced = spec.pod_resources.unwrap();
    assert_eq!((announced.containers.len(), announced.containers[1].mounts.len()), (2, 2));
    assert_eq!(warnings, Vec::<String>::new(), "all of it is honoured");
}

#[test]
fn a_pod_requires_only_its_metadata() {
    let config = v1::PodSandboxConfig { metadata: pod_config().metadata, ..Default::default() };
    let (spec, warnings) =
        run(v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() }, None).unwrap();
    assert_eq!((spec.cgroup_parent, spec.log_directory, spec.dns), (None, None, None));
    assert_eq!(spec.security.namespaces.pid, NsMode::Pod);
    assert_eq!((spec.resources, spec.pod_resources), (LimitsPatch::default(), None));
    assert!(warnings.is_empty());
}

#[test]
fn a_missing_field_is_named() {
    let request = v1::RunPodSandboxRequest { config: None, runtime_handler: String::new() };
    assert_eq!(run(request, None).unwrap_err().to_string(), "config: missing");
    let cases = [
        ("config.metadata: missing", refused(|c| c.metadata = None)),
        ("config.metadata.name: empty", refused(|c| c.metadata.as_mut().unwrap().name.clear())),
        ("config.metadata.uid: empty", refused(|c| c.metadata.as_mut().unwrap().uid.clear())),
        ("config.metadata.namespace: empty", refused(|c| c.metadata.as_mut().unwrap().namespace.clear())),
    ];
    for (expected, said) in cases {
        assert_eq!(said, expected);
    }
}

#[test]
fn invalid_values_are_refused_by_field() {
    let cases = [
        ("config.windows:", refused(|c| c.windows = Some(v1::WindowsPodSandboxConfig::default()))),
        ("config.hostname:", refused(|c| c.hostname = "x".repeat(65))),
        ("config.hostname:", refused(|c| c.hostname = "a/b".into())),
        ("config.log_directory:", refused(|c| c.log_directory = "logs".into())),
        ("config.log_directory:", refused(|c| c.log_directory = "/var/../etc".into())),
        (
            "config.dns_config.servers[0]:",
            refused(|c| c.dns_config.as_mut().unwrap().servers = vec!["1.1.1.1\nx".into()]),
        ),
        ("config.dns_config.searches[0]:", refused(|c| c.dns_config.as_mut().unwrap().searches = vec!["a b".into()])),
        ("config.dns_config.options[0]:", refused(|c| c.dns_config.as_mut().unwrap().options = vec![String::new()])),
        ("config.port_mappings[0].container_port:", refused(|c| c.port_mappings[0].container_port = 0)),
        ("config.port_mappings[0].host_port:", refused(|c| c.port_mappings[0].host_port = 65_536)),
        ("config.port_mappings[0].host_ip:", refused(|c| c.port_mappings[0].host_ip = "localhost".into())),
        ("config.port_mappings[0].protocol:", refused(|c| c.port_mappings[0].protocol = 3)),
        ("config.linux.cgroup_parent:", refused(|c| linux(c).cgroup_parent = "/a/../b".into())),
        ("config.linux.cgroup_parent:", refused(|c| linux(c).cgroup_parent = "/memory.stat/x".into())),
        ("config.linux.resources.cpu_period:", refused(|c| linux(c).resources.as_mut().unwrap().cpu_period = 5)),
        ("config.linux.overhead.cpu_period:", refused(|c| linux(c).overhead.as_mut().unwrap().cpu_period = 5)),
        (
            "config.linux.security_context.run_as_user:",
            refused(|c| context(c).run_as_user.as_mut().unwrap().value = -1),
        ),
        ("config.linux.security_context.run_as_group:", refused(|c| context(c).run_as_user = None)),
        (
            "config.linux.security_context.supplemental_groups[1]:",
            refused(|c| context(c).supplemental_groups = vec![0, -1]),
        ),
        (
            "config.linux.security_context.namespace_options.pid:",
            refused(|c| {
                let options = context(c).namespace_options.as_mut().unwrap();
                (options.pid, options.target_id) = (v1::NamespaceMode::Target.into(), "x".into());
            }),
        ),
    ];
    for (field, said) in cases {
        assert!(said.starts_with(field), "{field} {said}");
    }
}

#[test]
fn bandwidth_annotations_are_parsed_and_checked() {
    let given = |name: &str, text: &str| {
        let mut config = pod_config();
        config.annotations.insert(format!("kubernetes.io/{name}-bandwidth"), text.to_owned());
        run(v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() }, None)
    };
    let bandwidth = |name: &str, text: &str| given(name, text).unwrap().0.bandwidth;
    assert_eq!(bandwidth("ingress", "1M"), Bandwidth { ingress: Some(BitRate(1_000_000)), egress: None });
    assert_eq!(bandwidth("egress", "1k"), Bandwidth { ingress: None, egress: Some(BitRate(1_000)) });
    assert_eq!(bandwidth("egress", "1P").egress, Some(BitRate(1_000_000_000_000_000)));
    for (text, problem) in [
        ("999", "is not between 1k and 1P bits per second"),
        ("2P", "1P bits"),
        ("fast", "invalid Kubernetes quantity"),
    ] {
        let refusal = given("ingress", text).unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Invalid);
        let text = refusal.to_string();
        assert!(text.starts_with("config.annotations[\"kubernetes.io/ingress-bandwidth\"]: "), "{text}");
        assert!(text.contains(problem), "{text}");
    }
}
