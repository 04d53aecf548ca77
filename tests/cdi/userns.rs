//! CDI devices in pods with user namespaces.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use cri_api::v1;
use serde_json::json;
use tonic::Code;

use super::hooks::hook;
use super::{KIND, Specs, bind, node};
use crate::support::client::{pod_namespaces, security};
use crate::userns::{FIRST, idle, run_pod};

fn given(name: &str) -> v1::ContainerConfig {
    let cdi_devices = vec![v1::CdiDevice { name: format!("{KIND}=d") }];
    v1::ContainerConfig { cdi_devices, ..idle(name) }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn a_device_belongs_to_the_container_and_hooks_find_it() {
    let specs = Specs::new();
    let source = specs.source("lib", "a library\n");
    fs::set_permissions(source.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    open_to_all(specs.path("").as_path());
    let here = specs.path("");
    let here = here.display();
    let look = format!(
        "cat > {here}state; bundle=$(sed 's/.*\"bundle\":\"\\([^\"]*\\)\".*/\\1/' {here}state); \
         grep -q '\"path\":\"rootfs\"' $bundle/config.json || exit 11; \
         cat $bundle/rootfs/opt/lib/file > {here}seen || exit 12; test -c $bundle/rootfs/dev/mine || exit 13; \
         echo made by a hook > $bundle/rootfs/etc/from-hook; id -u > {here}uid"
    );
    specs.device(json!({
        "env": ["D=1"],
        "deviceNodes": [node("/dev/mine", 3, "rw")],
        "mounts": [bind(&source, "/opt/lib", &["ro", "rbind"])],
        "additionalGids": [4321],
        "hooks": [
            hook("createRuntime", &format!("id -u > {here}outside")),
            hook("createContainer", &look),
            hook("startContainer", "id -u > /start"),
        ],
    }));
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let id = client.run_config(&pod, given("main"));
    let read = |name: &str| fs::read_to_string(specs.path(name)).unwrap();
    assert_eq!((read("outside"), read("uid"), read("seen")), ("0\n".into(), "0\n".into(), "a library\n".into()));
    assert_eq!(fs::metadata(specs.path("uid")).unwrap().uid(), FIRST, "the container's root is not the host's root");
    assert_eq!(client.exec_script(&id, "cat /opt/lib/file /etc/from-hook /start"), "a library\nmade by a hook\n0\n");
    assert_eq!(client.exec_script(&id, "stat -c '%t %T %u' /dev/mine; stat -c %u /etc/from-hook"), "f0 3 0\n0\n");
    assert!(client.exec_script(&id, "id -G").contains("4321"));
    let opened = client.exec(&id, &["sh", "-c", "cat /dev/mine"]);
    assert!(opened.stderr.contains("No such device"), "{opened:?}");
}

#[test]
fn unmapped_groups_and_shared_mounts_are_refused() {
    let specs = Specs::new();
    let source = specs.source("lib", "");
    let daemon = specs.daemon();
    let pod = run_pod(&daemon, "pod");
    for (edits, words) in [
        (json!({"additionalGids": [70_000]}), "config.CDI_devices"),
        (json!({"mounts": [bind(&source, "/opt/lib", &["rbind", "rshared"])]}), "/opt/lib"),
    ] {
        specs.device(edits);
        let refusal = daemon.client().try_create(&pod, given("main")).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        assert!(refusal.message().contains(words), "{refusal:?}");
    }
}

#[test]
fn containers_of_the_pod_cannot_read_host_files_through_a_hook() {
    let specs = Specs::new();
    specs.device(json!({"hooks": [hook("createContainer", "sleep 1")]}));
    let daemon = specs.daemon();
    let client = daemon.client();
    let shared = v1::NamespaceMode::Pod.into();
    let pod = daemon.run_pod_with("pod", |config| {
        *pod_namespaces(config) = security(&mut idle("any")).namespace_options.clone().unwrap();
        pod_namespaces(config).pid = shared;
    });
    let share = |mut config: v1::ContainerConfig| {
        security(&mut config).namespace_options.as_mut().unwrap().pid = shared;
        config
    };
    // The image does not have this directory, but every host has it.
    let look = "echo looking; while :; do for dir in /proc/[0-9]*; do \
                [ -e $dir/root/usr ] && echo $dir && sleep 0.1; done; done";
    let mut spy = share(idle("spy"));
    spy.command = ["sh", "-c", look].map(str::to_owned).into();
    let add_capabilities = vec!["ALL".to_owned()];
    security(&mut spy).capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
    let spy = client.run_config(&pod, spy);
    client.wait_printed(&spy, "looking");
    client.run_config(&pod, share(given("main")));
    let printed = client.lines(&spy);
    assert_eq!(printed.len(), 1, "{printed:?}");
}
