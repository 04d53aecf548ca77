use super::super::{ContainerKind, PodResourceConfig, Source};
use super::*;
use crate::container::{ContainerMeta, Propagation};
use crate::resources::LimitsPatch;
use crate::security::{Capabilities, ContainerSecurity, GroupsPolicy, Namespaces, NsMode};

fn amounts(list: &[(&str, &str)]) -> ResourceList {
    list.iter().map(|(name, amount)| (name.parse().unwrap(), amount.parse().unwrap())).collect()
}

fn image(name: &str, user_specified: &str) -> ImageName {
    ImageName {
        image: name.to_owned(),
        user_specified: user_specified.to_owned(),
        annotations: Default::default(),
        handler: String::new(),
    }
}

fn mount(container_path: &str, source: MountSource) -> Mount {
    Mount {
        container_path: container_path.to_owned(),
        source,
        readonly: true,
        recursive_read_only: false,
        selinux_relabel: false,
        propagation: Propagation::Private,
        uid_mappings: Vec::new(),
        gid_mappings: Vec::new(),
        options: Vec::new(),
    }
}

fn host(path: &str) -> MountSource {
    MountSource::Host(path.into())
}

fn device(container_path: &str, permissions: &str) -> Device {
    Device {
        container_path: container_path.to_owned(),
        host_path: "/dev/host".into(),
        permissions: permissions.to_owned(),
    }
}

fn declared() -> ContainerResourceConfig {
    ContainerResourceConfig {
        name: "main".to_owned(),
        kind: ContainerKind::Regular,
        resources: Some(Resources {
            requests: amounts(&[("cpu", "500m")]),
            limits: amounts(&[("cpu", "1"), ("memory", "1Gi")]),
        }),
        mounts: vec![
            mount("/data", host("/srv/data")),
            mount("/model", MountSource::Image { image: image("a/b:1", ""), sub_path: "x".to_owned() }),
        ],
        devices: vec![device("/dev/a", "rwm"), device("/dev/b", "r")],
        cdi_devices: vec!["v.example/gpu=0".to_owned(), "v.example/gpu=1".to_owned()],
    }
}

/// Returns the container as declared.
fn arrived() -> ContainerSpec {
    let ContainerResourceConfig { name, kind: _, resources, mounts, devices, cdi_devices } = declared();
    let namespaces =
        Namespaces { network: NsMode::Pod, pid: NsMode::Container, ipc: NsMode::Pod, target: None, user: None };
    ContainerSpec {
        meta: ContainerMeta { name, attempt: 7 },
        image: image("busybox", ""),
        command: vec![],
        args: vec![],
        working_dir: String::new(),
        envs: vec![],
        mounts,
        devices,
        cdi_devices,
        labels: Default::default(),
        annotations: Default::default(),
        log_path: None,
        stdin: false,
        stdin_once: false,
        tty: false,
        resources: LimitsPatch::default(),
        kubernetes_resources: resources,
        security: ContainerSecurity {
            capabilities: Capabilities::default(),
            privileged: false,
            namespaces,
            selinux: None,
            run_as: None,
            run_as_group: None,
            supplemental_groups: vec![],
            groups_policy: GroupsPolicy::Merge,
            readonly_rootfs: false,
            no_new_privs: false,
            masked_paths: vec![],
            readonly_paths: vec![],
            seccomp: None,
            apparmor: None,
        },
        stop_signal: None,
    }
}

fn after(change: impl FnOnce(&mut ContainerSpec)) -> Vec<String> {
    let mut container = arrived();
    change(&mut container);
    declared().differences(&container).iter().map(ToString::to_string).collect()
}

fn stated(container: &mut ContainerSpec) -> &mut Resources {
    container.kubernetes_resources.as_mut().unwrap()
}

#[test]
fn a_container_as_declared_has_no_difference() {
    assert_eq!(after(|_| {}), [""; 0]);
}

#[test]
fn spelling_and_order_are_not_differences() {
    let found = after(|c| {
        stated(c).requests = amounts(&[("cpu", "0.5")]);
        stated(c).limits = amounts(&[("memory", "1073741824"), ("cpu", "1000m")]);
        c.mounts.reverse();
        c.devices.reverse();
        c.cdi_devices.reverse();
        c.devices[1].permissions = "mrwr".to_owned();
    });
    assert_eq!(found, [""; 0]);
}

#[test]
fn each_differing_amount_is_listed() {
    let found = after(|c| {
        stated(c).requests = amounts(&[("cpu", "501m")]);
        stated(c).limits = amounts(&[("memory", "1.000000001Gi"), ("example.com/gpu", "1")]);
    });
    let expected = [
        "request of cpu: 501m, but 500m was declared",
        "limit of cpu: missing, but 1 was declared",
        "limit of example.com/gpu: 1, but none was declared",
        "limit of memory: 1.000000001Gi, but 1Gi was declared",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_container_without_resources_differs_in_all_declared_ones() {
    assert_eq!(after(|c| c.kubernetes_resources = None).len(), 3);
    let silent = ContainerResourceConfig { resources: None, ..declared() };
    assert_eq!(silent.differences(&arrived()).len(), 3);
    let empty = ContainerSpec { kubernetes_resources: Some(Resources::default()), ..arrived() };
    assert_eq!(silent.differences(&empty), []);
}

#[test]
fn every_field_of_a_mount_is_compared() {
    type Change = fn(&mut Mount);
    let changes: [(&str, Change); 8] = [
        ("host path: \"/srv/other\", but \"/srv/data\"", |m| m.source = host("/srv/other")),
        ("readonly: false, but true", |m| m.readonly = false),
        ("recursively readonly: true, but false", |m| m.recursive_read_only = true),
        ("SELinux relabelling: true, but false", |m| m.selinux_relabel = true),
        ("propagation: Bidirectional, but Private", |m| m.propagation = Propagation::Bidirectional),
        ("UID mappings: [IdMapping { host: 1, container: 0, length: 2 }], but []", |m| {
            m.uid_mappings = vec![crate::IdMapping { host: 1, container: 0, length: 2 }];
        }),
        ("GID mappings: [IdMapping { host: 1, container: 0, length: 2 }], but []", |m| {
            m.gid_mappings = vec![crate::IdMapping { host: 1, container: 0, length: 2 }];
        }),
        ("options: [\"noexec\"], but []", |m| m.options = vec!["noexec".to_owned()]),
    ];
    for (expected, change) in changes {
        assert_eq!(after(|c| change(&mut c.mounts[0])), [format!("mount \"/data\", {expected} was declared")]);
    }
}

#[test]
fn added_and_missing_mounts_are_listed_by_path() {
    let found = after(|c| {
        c.mounts[0].container_path = "/elsewhere".to_owned();
        c.mounts[1].source = host("/srv/model");
    });
    let expected = [
        "mount \"/data\": missing, but \"/srv/data\" was declared",
        "mount \"/model\": \"/srv/model\", but image \"a/b:1\" was declared",
        "mount \"/elsewhere\": \"/srv/data\", but none was declared",
    ];
    assert_eq!(found, expected);
    assert_eq!(after(|c| c.mounts.push(c.mounts[0].clone())).len(), 1, "one mount too many");
}

#[test]
fn an_image_may_be_requested_by_another_of_its_names() {
    let by = |name: &str, user: &str, sub_path: &str| {
        let source = MountSource::Image { image: image(name, user), sub_path: sub_path.to_owned() };
        after(|c| c.mounts[1].source = source)
    };
    assert_eq!(by("sha256:12", "a/b:1", "x"), [""; 0]);
    assert_eq!(by("a/b:2", "", "x"), ["mount \"/model\", image: \"a/b:2\", but \"a/b:1\" was declared"]);
    assert_eq!(by("a/b:1", "", "y"), ["mount \"/model\", path in the image: \"y\", but \"x\" was declared"]);
}

#[test]
fn differing_devices_are_listed_by_path_or_name() {
    let found = after(|c| {
        c.devices[0].host_path = "/dev/other".into();
        c.devices[1] = device("/dev/b", "rw");
        c.devices.push(device("/dev/c", "r"));
        c.cdi_devices = vec!["v.example/gpu=1".to_owned(), "v.example/gpu=2".to_owned()];
    });
    let expected = [
        "device \"/dev/a\", host path: \"/dev/other\", but \"/dev/host\" was declared",
        "device \"/dev/b\", permissions: \"rw\", but \"r\" was declared",
        "device \"/dev/c\": \"/dev/host\", but none was declared",
        "CDI device: missing, but \"v.example/gpu=0\" was declared",
        "CDI device: \"v.example/gpu=2\", but none was declared",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_name_shared_by_two_kinds_selects_the_closest_container() {
    let init = ContainerResourceConfig { kind: ContainerKind::Init, devices: vec![], ..declared() };
    let pod = PodResourceConfig { containers: vec![init, declared()], resources: None, source: Source::Request };
    assert_eq!(pod.of(&arrived()).unwrap().kind, ContainerKind::Regular);
    let first = ContainerSpec { devices: vec![], ..arrived() };
    assert_eq!(pod.of(&first).unwrap().kind, ContainerKind::Init);
    let mut other = arrived();
    other.meta.name = "other".to_owned();
    assert_eq!(pod.of(&other), None);
    let text = Difference::undeclared_container(&other).to_string();
    assert_eq!(text, "name: \"other\", but no such container was declared");
}
