//! Provides a pod, a container and an image for tests, and builds their `config.json`.

use config::Handlers;

use super::*;

pub(super) mod given {
    use model::resources::LimitsPatch;
    use model::{
        Capabilities, ContainerMeta, ContainerSecurity, GroupsPolicy, ImageName, Namespaces, PodMeta, PodSecurity,
    };

    use super::*;

    pub(in super::super) fn namespaces() -> Namespaces {
        Namespaces { network: NsMode::Pod, pid: NsMode::Container, ipc: NsMode::Pod, target: None, user: None }
    }

    pub(in super::super) fn pod() -> PodSpec {
        PodSpec {
            meta: PodMeta { name: "p".into(), uid: "u".into(), namespace: "n".into(), attempt: 0 },
            hostname: "web-0".into(),
            log_directory: None,
            dns: None,
            port_mappings: vec![],
            labels: Default::default(),
            bandwidth: model::Bandwidth::default(),
            annotations: Default::default(),
            cgroup_parent: None,
            sysctls: Default::default(),
            overhead: LimitsPatch::default(),
            resources: LimitsPatch::default(),
            pod_resources: None,
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

    pub(in super::super) fn container() -> ContainerSpec {
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

    pub(in super::super) fn image() -> image::Config {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        image::Config {
            env: texts(&["A=image", "PATH=/image"]),
            entrypoint: texts(&["/entry"]),
            cmd: texts(&["one", "two"]),
            working_dir: "/work".into(),
            ..image::Config::default()
        }
    }
}

pub(super) fn built(container: &ContainerSpec, sources: &[PathBuf]) -> Result<Spec, OciError> {
    built_with(container, sources, &[])
}

pub(super) fn built_with(
    container: &ContainerSpec,
    sources: &[PathBuf],
    volumes: &[image::Volume],
) -> Result<Spec, OciError> {
    built_in(&given::pod(), container, sources, volumes)
}

pub(super) fn built_in(
    pod: &PodSpec,
    container: &ContainerSpec,
    sources: &[PathBuf],
    volumes: &[image::Volume],
) -> Result<Spec, OciError> {
    built_from(pod, container, sources, volumes, Edits::default())
}

pub(super) fn built_from(
    pod: &PodSpec,
    container: &ContainerSpec,
    sources: &[PathBuf],
    volumes: &[image::Volume],
    edits: Edits,
) -> Result<Spec, OciError> {
    let image = given::image();
    let user = image::User { uid: 1000, gid: 100, groups: vec![], home: "/home/u".into() };
    let sandbox = Sandbox {
        user: pod.security.namespaces.user.as_ref().map(|_| "/run/user".into()),
        network: Some("/run/net".into()),
        ipc: Some("/run/ipc".into()),
        uts: Some("/run/uts".into()),
        pid: None,
        shm: Some("/run/shm".into()),
    };
    build(&SpecInputs {
        handler: Handlers::of(&[]).default_one(),
        pod: PodInputs { spec: pod, hostname: "web-0", sandbox: &sandbox, files: Path::new("/run/pod") },
        container,
        image: &image,
        process: &ProcessUser { user, groups: vec![5, 7] },
        security: &SecurityProfiles {
            seccomp: None,
            apparmor: Some("profile".into()),
            selinux: Some(security::Labels { process: Some("p".into()), mount: "m".into() }),
        },
        mounts: &MountInputs { sources: sources.to_vec(), volumes: volumes.to_vec(), resize_notice: None },
        devices: &DeviceInputs { nodes: vec![], edits },
        cgroup: CgroupInputs { path: "/pod/c", version: Version::V1 },
        target: None,
    })
}
