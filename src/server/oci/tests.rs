use super::*;

mod given {
    use model::resources::LimitsPatch;
    use model::{
        Capabilities, ContainerMeta, ContainerSecurity, GroupsPolicy, ImageName, Namespaces, PodMeta, PodSecurity,
    };

    use super::*;

    pub(super) fn namespaces() -> Namespaces {
        Namespaces { network: NsMode::Pod, pid: NsMode::Container, ipc: NsMode::Pod, target: None, user: None }
    }

    pub(super) fn pod() -> PodSpec {
        PodSpec {
            meta: PodMeta { name: "p".into(), uid: "u".into(), namespace: "n".into(), attempt: 0 },
            hostname: "web-0".into(),
            log_directory: None,
            dns: None,
            port_mappings: vec![],
            labels: Default::default(),
            annotations: Default::default(),
            cgroup_parent: None,
            sysctls: Default::default(),
            overhead: LimitsPatch::default(),
            resources: LimitsPatch::default(),
            announced: None,
            security: PodSecurity {
                namespaces: namespaces(),
                selinux: None,
                run_as_user: None,
                run_as_group: None,
                supplemental_groups: vec![],
                groups_policy: GroupsPolicy::Merge,
                readonly_rootfs: false,
                privileged: false,
                seccomp: None,
                apparmor: None,
            },
            handler: String::new(),
        }
    }

    pub(super) fn container() -> ContainerSpec {
        let image = ImageName {
            image: "busybox".into(),
            user_specified: String::new(),
            annotations: Default::default(),
            handler: String::new(),
        };
        ContainerSpec {
            meta: ContainerMeta { name: "c".into(), attempt: 0 },
            image,
            command: vec![],
            args: vec![],
            working_dir: String::new(),
            envs: vec![],
            mounts: vec![],
            devices: vec![],
            cdi_devices: vec![],
            labels: Default::default(),
            annotations: Default::default(),
            log_path: None,
            stdin: false,
            stdin_once: false,
            tty: false,
            resources: LimitsPatch::default(),
            kubernetes_resources: None,
            security: ContainerSecurity {
                capabilities: Capabilities::default(),
                privileged: false,
                namespaces: namespaces(),
                selinux: None,
                run_as: None,
                run_as_group: None,
                supplemental_groups: vec![],
                groups_policy: GroupsPolicy::Merge,
                readonly_rootfs: false,
                no_new_privs: false,
                masked_paths: vec!["/proc/kcore".into()],
                readonly_paths: vec!["/proc/sys".into()],
                seccomp: None,
                apparmor: None,
            },
            stop_signal: None,
        }
    }

    pub(super) fn image() -> image::Image {
        serde_json::from_value(serde_json::json!({
            "id": format!("sha256:{}", "0".repeat(64)), "repo_tags": [], "repo_digests": [], "manifest": null, "size": 1,
            "config": {"user": "", "env": ["A=image", "PATH=/image"], "entrypoint": ["/entry"], "cmd": ["one", "two"],
                "working_dir": "/work", "stop_signal": "", "volumes": [], "labels": {}, "exposed_ports": [],
                "os": "linux", "architecture": "amd64"},
            "chain": [],
        }))
        .unwrap()
    }
}

fn built(container: &ContainerSpec, sources: &[PathBuf]) -> Result<Spec, OciError> {
    built_with(container, sources, &[])
}

fn built_with(container: &ContainerSpec, sources: &[PathBuf], volumes: &[image::Volume]) -> Result<Spec, OciError> {
    built_in(&given::pod(), container, sources, volumes)
}

fn built_in(
    pod: &PodSpec,
    container: &ContainerSpec,
    sources: &[PathBuf],
    volumes: &[image::Volume],
) -> Result<Spec, OciError> {
    let image = given::image();
    let user = image::User { uid: 1000, gid: 100, groups: vec![], home: "/home/u".into() };
    let held = Held {
        network: Some("/run/net".into()),
        ipc: Some("/run/ipc".into()),
        uts: Some("/run/uts".into()),
        pid: None,
        shm: Some("/run/shm".into()),
    };
    build(&Given {
        pod,
        hostname: "web-0",
        held: &held,
        pod_dir: Path::new("/run/pod"),
        container,
        image: &image,
        user: &user,
        groups: &[5, 7],
        cgroup: "/pod/c",
        cgroups: Version::V1,
        sources,
        volumes,
        devices: &[],
        target: None,
    })
}

fn args(container: &ContainerSpec) -> Vec<String> {
    built(container, &[]).unwrap().process().clone().unwrap().args().clone().unwrap()
}

#[test]
fn command_and_arguments_replace_the_images_as_in_kubernetes() {
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
fn the_containers_variables_win_and_expected_ones_are_there() {
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
fn a_mount_of_the_container_replaces_ours_and_parents_come_first() {
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
fn images_and_volumes_of_the_image_stand_among_the_others_by_depth() {
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
    assert_eq!(words(0), ("bind", "rbind,rw,rprivate".to_owned()), "writable beside a read-only root");
    assert_eq!(words(1), ("image", "ro,nosuid,nodev".to_owned()));
    assert_eq!(all[1].source().as_deref(), Some(Path::new("sha256:abc/x")));
    assert_eq!(all[2].destination(), Path::new("/v/image/below"));
}

#[test]
fn a_volume_hides_nothing_that_is_mounted_below_it() {
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
        let capabilities = capabilities_of(&container.security).unwrap();
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
fn a_privileged_container_has_nothing_hidden() {
    let mut container = given::container();
    container.security.privileged = true;
    let spec = built(&container, &[]).unwrap();
    let linux = spec.linux().as_ref().unwrap();
    assert_eq!(linux.masked_paths().as_deref().unwrap_or_default(), &[] as &[String]);
    let sys = spec.mounts().iter().flatten().find(|m| m.destination() == Path::new("/sys")).unwrap();
    assert!(sys.options().as_ref().unwrap().contains(&"rw".to_owned()));
}

#[test]
fn hooks_are_told_what_was_announced_and_cannot_be_lied_to() {
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

    pod.announced = crate::convert::fixture::pod_record().spec.announced;
    container.kubernetes_resources = crate::convert::fixture::container_record().spec.kubernetes_resources;
    let told = annotations(&pod, &container);
    assert_eq!((told.len(), told["mine"].as_str()), (3, "x"));
    let of_container = serde_json::json!({
        "requests": {"cpu": "500m", "memory": "64Mi"},
        "limits": {"cpu": "1", "memory": "100000001", "vendor.example/gpu": "1"},
    });
    let value = |name: &str| serde_json::from_str::<serde_json::Value>(&told[name]).unwrap();
    assert_eq!(value("io.crisp.container-resources"), of_container);
    let of_pod = serde_json::json!({
        "containers": [
            {"name": "init", "type": "INIT_CONTAINER"},
            {
                "name": "main",
                "type": "CONTAINER",
                "kubernetesResources": of_container,
                "mounts": [
                    {"containerPath": "/data", "hostPath": "/srv/data", "readonly": true, "selinuxRelabel": true,
                        "propagation": "PROPAGATION_PRIVATE", "recursiveReadOnly": true, "mountOptions": ["noexec"]},
                    {"containerPath": "/model", "readonly": true, "selinuxRelabel": true,
                        "propagation": "PROPAGATION_PRIVATE", "imageSubPath": "weights", "mountOptions": ["noexec"],
                        "image": {"image": "sha256:abc", "annotations": {"ik": "iv"}, "userSpecifiedImage": "busybox",
                            "runtimeHandler": "crisp"}},
                ],
                "devices": [{"containerPath": "/dev/fuse", "hostPath": "/dev/host-fuse", "permissions": "mrw"}],
                "CDIDevices": [{"name": "vendor.example/gpu=0"}],
            },
        ],
        "kubernetesResources": {"requests": {"cpu": "1.5"}, "limits": {"memory": "1Gi"}},
    });
    assert_eq!(value("io.crisp.pod-resources"), of_pod);
}
