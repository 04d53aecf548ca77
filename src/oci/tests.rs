use config::Handlers;

use super::test_support::{built, built_from, built_in, built_with, given};
use super::*;

fn args(container: &ContainerSpec) -> Vec<String> {
    built(container, &[]).unwrap().process().clone().unwrap().args().clone().unwrap()
}

#[test]
fn command_and_arguments_override_the_image_as_in_kubernetes() {
    let mut container = given::container();
    assert_eq!(args(&container), ["/entry", "one", "two"]);
    container.args = vec!["x".into()];
    assert_eq!(args(&container), ["/entry", "x"]);
    container.command = vec!["cmd".into()];
    assert_eq!(args(&container), ["cmd", "x"]);
    container.args.clear();
    assert_eq!(args(&container), ["cmd"]);
}

#[test]
fn variables_of_the_container_override_and_defaults_are_added() {
    let mut container = given::container();
    container.envs = vec![("A".into(), "container".into()), ("B".into(), "x=y".into())];
    let env = built(&container, &[]).unwrap().process().clone().unwrap().env().clone().unwrap();
    assert_eq!(env, ["PATH=/image", "HOSTNAME=web-0", "HOME=/home/u", "A=container", "B=x=y"]);
}

fn volume(path: &str, propagation: model::Propagation) -> model::Mount {
    model::Mount {
        container_path: path.into(),
        source: model::MountSource::Host("/src".into()),
        readonly: true,
        recursive_read_only: false,
        selinux_relabel: false,
        propagation,
        uid_mappings: vec![],
        gid_mappings: vec![],
        options: vec![],
    }
}

fn destinations(spec: &Spec) -> Vec<&str> {
    spec.mounts().iter().flatten().map(|m| m.destination().to_str().unwrap()).collect()
}

#[test]
fn a_mount_of_the_container_replaces_a_default_and_parents_come_first() {
    let mut container = given::container();
    container.mounts = vec![
        volume("/data/deep", model::Propagation::Bidirectional),
        volume("/etc/hosts", model::Propagation::Private),
        volume("/data", model::Propagation::HostToContainer),
    ];
    let sources: Vec<PathBuf> = ["/a", "/b", "/c"].map(PathBuf::from).to_vec();
    let spec = built(&container, &sources).unwrap();
    let mounts: Vec<_> = spec.mounts().iter().flatten().collect();
    let hosts: Vec<_> = mounts.iter().filter(|m| m.destination() == Path::new("/etc/hosts")).collect();
    assert_eq!(hosts.len(), 1);
    assert_eq!(hosts[0].source().as_deref(), Some(Path::new("/b")));
    let order = destinations(&spec);
    let place = |path: &str| order.iter().position(|p| *p == path).unwrap();
    assert!(place("/data") < place("/data/deep") && place("/data/deep") < place("/etc/hosts"), "{order:?}");
    let deep = mounts.iter().find(|m| m.destination() == Path::new("/data/deep")).unwrap();
    assert_eq!(deep.options().as_ref().unwrap(), &["rbind", "ro", "rshared"]);
}

#[test]
fn edits_of_a_cdi_device_override_the_request() {
    let mut container = given::container();
    container.envs = vec![("A".into(), "container".into())];
    container.mounts = vec![volume("/data", model::Propagation::Private), volume("/keep", model::Propagation::Private)];
    let bind = |path: &str| {
        let options = vec!["rbind".to_owned(), "rprivate".to_owned()];
        oci_spec::runtime::MountBuilder::default().destination(path).typ("bind").source("/cdi").options(options).build()
    };
    let hook = oci_spec::runtime::HookBuilder::default().path("/bin/hook").build().unwrap();
    let edits = Edits {
        env: vec!["A=cdi".into(), "C=1".into(), "C=2".into()],
        mounts: vec![bind("/keep/below").unwrap(), bind("/data").unwrap(), bind("/etc/hosts").unwrap()],
        hooks: Some(oci_spec::runtime::HooksBuilder::default().create_container(vec![hook]).build().unwrap()),
        ..Edits::default()
    };
    let sources = ["/src", "/src"].map(PathBuf::from);
    let hooks = edits.hooks.clone();
    let spec = built_from(&given::pod(), &container, &sources, &[], edits).unwrap();
    let env = spec.process().clone().unwrap().env().clone().unwrap();
    assert_eq!(env, ["PATH=/image", "HOSTNAME=web-0", "HOME=/home/u", "A=cdi", "C=2"]);
    let source = |path: &str| {
        let found: Vec<_> = spec.mounts().iter().flatten().filter(|m| m.destination() == Path::new(path)).collect();
        assert_eq!(found.len(), 1, "{path}");
        found[0].source().clone().unwrap()
    };
    assert_eq!(["/data", "/etc/hosts", "/keep"].map(source), ["/cdi", "/cdi", "/src"].map(PathBuf::from));
    let order = destinations(&spec);
    let place = |path: &str| order.iter().position(|p| *p == path).unwrap();
    assert!(place("/keep") < place("/keep/below"));
    assert_eq!(spec.hooks(), &hooks);
}

#[test]
fn image_mounts_and_image_volumes_are_sorted_by_depth() {
    let mut container = given::container();
    let mut of_image = volume("/v/image", model::Propagation::Private);
    of_image.source = model::MountSource::Image { image: container.image.clone(), sub_path: "x".into() };
    container.mounts = vec![volume("/v/image/below", model::Propagation::Private), of_image];
    container.security.readonly_rootfs = true;
    let sources = ["/src", "sha256:abc/x"].map(PathBuf::from);
    let volumes = [image::Volume { path: "/v".into(), directory: "/root/volumes/0".into() }];
    let spec = built_with(&container, &sources, &volumes).unwrap();
    let all: Vec<_> = spec.mounts().iter().flatten().filter(|m| m.destination().starts_with("/v")).collect();
    let words = |at: usize| (all[at].typ().as_deref().unwrap(), all[at].options().as_ref().unwrap().join(","));
    assert_eq!(destinations(&spec).iter().filter(|path| path.starts_with("/v")).count(), 3);
    assert_eq!(words(0), ("bind", "rbind,rw,rprivate".to_owned()), "writable despite a read-only root");
    assert_eq!(words(1), ("image", "ro,nosuid,nodev".to_owned()));
    assert_eq!(all[1].source().as_deref(), Some(Path::new("sha256:abc/x")));
    assert_eq!(all[2].destination(), Path::new("/v/image/below"));
}

#[test]
fn mount_options_apply_recursively() {
    let mut container = given::container();
    let all = ["noexec", "nodev", "nosuid", "noatime", "nodiratime", "relatime", "strictatime"];
    let mut of_host = volume("/v", model::Propagation::Private);
    of_host.options = all.map(str::to_owned).to_vec();
    let mut of_image = volume("/i", model::Propagation::Private);
    of_image.source = model::MountSource::Image { image: container.image.clone(), sub_path: String::new() };
    of_image.options = vec!["noexec".into()];
    container.mounts = vec![of_host, of_image];
    let spec = built(&container, &["/src", "sha256:abc"].map(PathBuf::from)).unwrap();
    let options = |path: &str| {
        let found = spec.mounts().iter().flatten().find(|m| m.destination() == Path::new(path)).unwrap();
        found.options().clone().unwrap().join(",")
    };
    let deep = all.map(|option| format!("r{option}")).join(",");
    assert_eq!(options("/v"), format!("rbind,ro,rprivate,{deep}"));
    assert_eq!(options("/i"), "ro,nosuid,nodev,rnoexec");
}

#[test]
fn a_volume_does_not_hide_mounts_below_it() {
    let mut container = given::container();
    container.mounts = ["/dev", "/etc", "/sys"].map(|path| volume(path, model::Propagation::Private)).to_vec();
    let sources = vec![PathBuf::from("/src"); 3];
    let kernel = ["/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys"];
    let volumes = ["/dev", "/etc", "/sys"];
    let ours = ["/dev/shm", "/etc/resolv.conf", "/etc/hostname", "/etc/hosts", "/sys/fs/cgroup"];
    assert_eq!(destinations(&built(&container, &sources).unwrap()), [&kernel[..], &volumes, &ours].concat());
}

#[test]
fn capabilities_are_added_and_dropped_by_name_and_unknown_ones_refused() {
    let mut container = given::container();
    let has = |container: &ContainerSpec, name| {
        let capabilities = capabilities_of(&Handlers::of(&[]).default_one().capabilities, &container.security).unwrap();
        capabilities.iter().any(|c| c.to_string().ends_with(name))
    };
    assert!(has(&container, "CHOWN") && !has(&container, "NET_ADMIN"));
    container.security.capabilities.add = vec!["NET_ADMIN".into()];
    container.security.capabilities.drop = vec!["ALL".into()];
    assert!(!has(&container, "CHOWN") && has(&container, "NET_ADMIN"));
    container.security.capabilities.add = vec!["FLY".into()];
    assert!(matches!(built(&container, &[]), Err(OciError::UnknownCapability(name)) if name == "FLY"));
}

#[test]
fn a_privileged_container_has_no_masked_paths() {
    let mut container = given::container();
    container.security.privileged = true;
    let spec = built(&container, &[]).unwrap();
    let linux = spec.linux().as_ref().unwrap();
    assert_eq!(linux.masked_paths().as_deref().unwrap_or_default(), &[] as &[String]);
    let sys = spec.mounts().iter().flatten().find(|m| m.destination() == Path::new("/sys")).unwrap();
    assert!(sys.options().as_ref().unwrap().contains(&"rw".to_owned()));
}

#[test]
fn hooks_get_declared_resources_that_annotations_cannot_forge() {
    let (mut pod, mut container) = (given::pod(), given::container());
    let annotations = |pod: &PodSpec, container: &ContainerSpec| {
        let built = built_in(pod, container, &[], &[]).unwrap().annotations().clone().unwrap();
        built.into_iter().collect::<std::collections::BTreeMap<_, _>>()
    };
    let forged = [
        ("io.crisp.pod-resources", "{\"forged\": 1}"),
        ("io.crisp.container-resources", "{\"forged\": 2}"),
        ("mine", "x"),
    ];
    container.annotations = forged.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    assert_eq!(annotations(&pod, &container), [("mine".to_owned(), "x".to_owned())].into());

    pod.pod_resources = serde_json::from_str(include_str!("test_pod_resources.json")).unwrap();
    container.kubernetes_resources = pod.pod_resources.as_ref().and_then(|pod| pod.containers[1].resources.clone());
    let built = annotations(&pod, &container);
    assert_eq!((built.len(), built["mine"].as_str()), (3, "x"));
    let of_container = serde_json::json!({
        "requests": {"cpu": "500m", "memory": "64Mi"},
        "limits": {"cpu": "1", "memory": "100000001", "vendor.example/gpu": "1"},
    });
    let value = |name: &str| serde_json::from_str::<serde_json::Value>(&built[name]).unwrap();
    assert_eq!(value("io.crisp.container-resources"), of_container);
    let uids = [serde_json::json!({"containerId": 0, "hostId": 65536, "length": 1000})];
    let gids = [
        serde_json::json!({"containerId": 0, "hostId": 131_072, "length": 1000}),
        serde_json::json!({"containerId": 1000, "hostId": 90000, "length": 1}),
    ];
    let of_pod = serde_json::json!({
        "containers": [
            {"name": "init", "type": "INIT_CONTAINER"},
            {
                "name": "main",
                "type": "CONTAINER",
                "kubernetesResources": of_container,
                "mounts": [
                    {"containerPath": "/data", "hostPath": "/srv/data", "readonly": true, "selinuxRelabel": true,
                        "propagation": "PROPAGATION_PRIVATE", "recursiveReadOnly": true, "mountOptions": ["noexec"],
                        "uidMappings": uids, "gidMappings": gids},
                    {"containerPath": "/model", "readonly": true, "selinuxRelabel": true,
                        "propagation": "PROPAGATION_PRIVATE", "imageSubPath": "weights", "mountOptions": ["noexec"],
                        "image": {"image": "sha256:abc", "annotations": {"ik": "iv"}, "userSpecifiedImage": "busybox",
                            "runtimeHandler": "crisp"},
                        "uidMappings": uids, "gidMappings": gids},
                ],
                "devices": [{"containerPath": "/dev/fuse", "hostPath": "/dev/host-fuse", "permissions": "mrw"}],
                "CDIDevices": [{"name": "vendor.example/gpu=0"}],
            },
        ],
        "kubernetesResources": {"requests": {"cpu": "1.5"}, "limits": {"memory": "1Gi"}},
    });
    assert_eq!(value("io.crisp.pod-resources"), of_pod);
}

/// Returns a pod with a user namespace and a container for it.
fn apart() -> (PodSpec, ContainerSpec) {
    let line = |container, length| model::IdMapping { host: 65536 + container, container, length };
    let ids = model::UserNs { uids: vec![line(0, 2000)], gids: vec![line(0, 6), line(7, 1), line(100, 1)] };
    let (mut pod, mut container) = (given::pod(), given::container());
    pod.security.namespaces.user = Some(ids.clone());
    container.security.namespaces.user = Some(ids);
    (pod, container)
}

#[test]
fn a_container_joins_the_pods_user_namespace_and_its_mounts_are_mapped() {
    let (pod, mut container) = apart();
    container.mounts = vec![volume("/bare", model::Propagation::Private), volume("/own", model::Propagation::Private)];
    let line = [model::IdMapping { host: 5, container: 6, length: 1 }];
    (container.mounts[1].uid_mappings, container.mounts[1].gid_mappings) = (line.to_vec(), line.to_vec());
    let volumes = [image::Volume { path: "/declared".into(), directory: "/v/0".into() }];
    let sources = ["/a", "/b"].map(PathBuf::from);
    let spec = built_in(&pod, &container, &sources, &volumes).unwrap();
    let linux = spec.linux().as_ref().unwrap();
    let user = linux.namespaces().iter().flatten().find(|space| space.typ() == LinuxNamespaceType::User).unwrap();
    assert_eq!(user.path().as_deref(), Some(Path::new("/run/user")));
    assert_eq!((linux.uid_mappings().as_ref().unwrap().len(), linux.gid_mappings().as_ref().unwrap().len()), (1, 3));
    let lines = |path: &str| {
        let mount = spec.mounts().iter().flatten().find(|mount| mount.destination() == Path::new(path)).unwrap();
        mount.uid_mappings().as_ref().map(|lines| (lines[0].container_id(), lines[0].host_id(), lines[0].size()))
    };
    assert_eq!(lines("/declared"), Some((0, 65536, 2000)));
    for path in ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"] {
        assert_eq!(lines(path), None, "{path} is owned by the pod's root");
    }
    assert_eq!((lines("/bare"), lines("/own"), lines("/dev/shm"), lines("/sys")), (None, Some((6, 5, 1)), None, None));
}

#[test]
fn a_pod_with_a_user_namespace_refuses_other_mappings_and_host_access() {
    let (pod, container) = apart();
    let refused = |change: fn(&mut ContainerSpec)| {
        let mut container = container.clone();
        change(&mut container);
        built_in(&pod, &container, &["/a".into()], &[]).unwrap_err()
    };
    assert!(matches!(refused(|c| c.security.namespaces.user = None), OciError::NotThePodsIds));
    assert!(matches!(built(&container, &[]), Err(OciError::NotThePodsIds)));
    assert!(matches!(refused(|c| c.security.namespaces.pid = NsMode::Node), OciError::HostPids));
    let shared = refused(|c| c.mounts = vec![volume("/v", model::Propagation::Bidirectional)]);
    assert!(matches!(shared, OciError::Bidirectional(0)));
    assert_eq!(shared.kind(), ErrorKind::Invalid);
}

#[test]
fn users_and_groups_must_be_mapped() {
    type Change = fn(&mut model::UserNs, &mut ContainerSpec);
    let (pod, container) = apart();
    let refused = |change: Change| {
        let (mut pod, mut container) = (pod.clone(), container.clone());
        let ids = pod.security.namespaces.user.as_mut().unwrap();
        change(ids, &mut container);
        container.security.namespaces.user = Some(ids.clone());
        built_in(&pod, &container, &[], &[]).unwrap_err()
    };
    let cases: [(Option<RequestField>, &str, Change); 5] = [
        (None, "1000 of the image", |ids, _| ids.uids[0].length = 1000),
        (Some(RequestField::RunAsUser), "1000", |ids, c| {
            (ids.uids[0].length, c.security.run_as) = (1000, Some(model::UserRef::Id(1000)));
        }),
        (Some(RequestField::RunAsGroup), "100", |ids, c| {
            (ids.gids[2].container, c.security.run_as_group) = (101, Some(100));
        }),
        (None, "5 of the image", |ids, _| ids.gids[0].length = 5),
        (Some(RequestField::SupplementalGroups), "7", |ids, c| {
            (ids.gids[1].container, c.security.supplemental_groups) = (8, vec![7]);
        }),
    ];
    for (field, words, change) in cases {
        let error = refused(change);
        assert_eq!(error.to_string(), format!("user or group ID {words} is not mapped in the pod's user namespace"));
        assert_eq!(error.field(), field);
    }
}

#[test]
fn apparmor_profile_and_selinux_labels_are_set() {
    let spec = built(&given::container(), &[]).unwrap();
    let process = spec.process().as_ref().unwrap();
    assert_eq!(process.apparmor_profile().as_deref(), Some("profile"));
    assert_eq!(process.selinux_label().as_deref(), Some("p"));
    assert_eq!(spec.linux().as_ref().unwrap().mount_label().as_deref(), Some("m"));
}
