//! Invalid requests, and hosts without user namespaces.

use std::process::Command;

use cri_api::v1;
use tonic::Code;

use super::{FIRST, as_user, idle, ids, inside, line, mapped, run_pod, run_pod_with};
use crate::container::image_volumes::refused;
use crate::support::client::{container, namespaces, pod_namespaces, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, program, slow};

fn status(daemon: &Daemon) -> v1::StatusResponse {
    daemon.client().call(|mut c| async move { c.status(v1::StatusRequest { verbose: true }).await }).unwrap()
}

#[test]
fn invalid_pods_are_refused_by_field() {
    let daemon = Daemon::start();
    let node = v1::NamespaceMode::Node.into();
    type Change = fn(&mut v1::NamespaceOption, i32);
    let cases: [(&str, Change); 8] = [
        ("pid: the PID namespace must not be NODE in a pod with a user namespace", |spaces, node| spaces.pid = node),
        ("ipc: the IPC namespace must not be NODE in a pod with a user namespace", |spaces, node| spaces.ipc = node),
        ("userns_options.uids: empty", |spaces, _| spaces.userns_options.as_mut().unwrap().uids.clear()),
        ("userns_options.gids: empty", |spaces, _| spaces.userns_options.as_mut().unwrap().gids.clear()),
        ("userns_options.uids[1].container_id:", |spaces, _| {
            spaces.userns_options = Some(mapped(vec![line(0, 1000, 100_000), line(0, 2_000_000, 100_000)]));
        }),
        ("userns_options.uids: the container's id 0", |spaces, _| {
            spaces.userns_options = Some(mapped(vec![line(1, 1000, 100_000)]));
        }),
        ("userns_options.mode:", |spaces, _| {
            spaces.userns_options.as_mut().unwrap().mode = v1::NamespaceMode::Container.into();
        }),
        ("userns_options: has mappings", |spaces, node| spaces.userns_options.as_mut().unwrap().mode = node),
    ];
    for (words, change) in cases {
        let mut config = daemon.pod_config("pod");
        let spaces = pod_namespaces(&mut config);
        spaces.userns_options = Some(mapped(ids()));
        change(spaces, node);
        let refusal = daemon.client().try_run_pod(config).unwrap_err();
        let field = format!("config.linux.security_context.namespace_options.{words}");
        assert!(refusal.code() == Code::InvalidArgument && refusal.message().contains(&field), "{words}: {refusal:?}");
    }
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

#[test]
fn a_container_with_other_ids_than_its_pod_is_refused() {
    let daemon = Daemon::start();
    let (pod, plain) = (run_pod(&daemon, "pod"), daemon.run_pod("plain"));
    let with = |userns: Option<v1::UserNamespace>| {
        let mut config = container("main", &["true"]);
        let spaces = namespaces(v1::NamespaceMode::Container);
        security(&mut config).namespace_options = Some(v1::NamespaceOption { userns_options: userns, ..spaces });
        config
    };
    let node = v1::UserNamespace { mode: v1::NamespaceMode::Node.into(), ..Default::default() };
    let gids = v1::UserNamespace { gids: vec![line(0, FIRST, 65535)], ..mapped(ids()) };
    for (pod, config) in [
        (&pod, with(None)),
        (&pod, with(Some(node))),
        (&pod, with(Some(mapped(vec![line(0, FIRST + 65536, 65536)])))),
        (&pod, with(Some(gids))),
        (&plain, with(Some(mapped(ids())))),
    ] {
        let refusal = refused(&daemon, pod, config);
        let field = "config.linux.security_context.namespace_options.userns_options: the container's user namespace mappings must equal those of the pod";
        assert!(refusal.code() == Code::InvalidArgument && refusal.message().contains(field), "{refusal:?}");
    }
}

#[test]
fn invalid_containers_are_refused_by_field_and_leave_nothing() {
    let daemon = Daemon::start();
    let pod = run_pod(&daemon, "pod");
    let mut host_pids = idle("main");
    security(&mut host_pids).namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Node.into();
    let mut group = as_user(idle("main"), 1000);
    security(&mut group).run_as_group = Some(v1::Int64Value { value: 65536 });
    let mut groups = idle("main");
    security(&mut groups).supplemental_groups = vec![5, 70_000];
    let mut shared = idle("main");
    let propagation = v1::MountPropagation::PropagationBidirectional.into();
    let (container_path, host_path) = ("/v".to_owned(), "/".to_owned());
    shared.mounts = vec![v1::Mount { container_path, host_path, propagation, ..Default::default() }];
    let mut mapping = idle("main");
    let (container_path, host_path) = ("/v".to_owned(), "/".to_owned());
    mapping.mounts = vec![v1::Mount { container_path, host_path, uid_mappings: ids(), ..Default::default() }];
    for (config, field) in [
        (host_pids, "config.linux.security_context.namespace_options.pid:"),
        (
            as_user(idle("main"), 65536),
            "config.linux.security_context.run_as_user: user or group ID 65536 is not mapped",
        ),
        (group, "config.linux.security_context.run_as_group: user or group ID 65536 is not mapped"),
        (groups, "config.linux.security_context.supplemental_groups: user or group ID 70000 is not mapped"),
        (shared, "config.mounts[0].propagation:"),
        (mapping, "config.mounts[0].gidMappings: empty"),
    ] {
        let refusal = refused(&daemon, &pod, config);
        assert!(refusal.code() == Code::InvalidArgument && refusal.message().contains(field), "{field}: {refusal:?}");
    }
    let few = run_pod_with(&daemon, "few", |config| {
        pod_namespaces(config).userns_options = Some(mapped(vec![line(0, FIRST, 1000)]));
    });
    let mut config = inside("main", &["true"]);
    security(&mut config).namespace_options.as_mut().unwrap().userns_options = Some(mapped(vec![line(0, FIRST, 1000)]));
    security(&mut config).run_as_username = "user".into();
    let refusal = refused(&daemon, &few, config);
    assert!(
        refusal.message().contains("run_as_username: user or group ID 1000 is not mapped in the pod's user namespace"),
        "{refusal:?}"
    );
}

#[test]
fn a_host_with_user_namespaces_reports_them() {
    let daemon = Daemon::start();
    let status = status(&daemon);
    assert!(status.runtime_handlers.iter().all(|handler| handler.features.unwrap().user_namespaces), "{status:?}");
    assert!(status.features.unwrap().user_namespaces_host_network);
    assert!(!daemon.env.root().join("probe").exists());
}

#[test]
fn a_host_without_user_namespaces_reports_that_and_refuses_such_pods() {
    let daemon = Daemon::with_failpoints(TestEnv::new(), "user_ns.probe=fail");
    let status = status(&daemon);
    assert!(status.runtime_handlers.iter().all(|handler| !handler.features.unwrap().user_namespaces), "{status:?}");
    assert!(!status.features.unwrap().user_namespaces_host_network);
    let mut config = daemon.pod_config("pod");
    pod_namespaces(&mut config).userns_options = Some(mapped(ids()));
    let refusal = daemon.client().try_run_pod(config).unwrap_err();
    let words = "namespace_options.userns_options: this host does not support user namespaces: a test made this step";
    assert!(refusal.code() == Code::Unimplemented && refusal.message().contains(words), "{refusal:?}");
    daemon.run_pod("pod");
}

/// Returns the output of the probe when `shell` runs it, which has the program and its arguments as
/// `$@`.
fn probe(shell: &str) -> (Option<i32>, String) {
    let env = tempfile::tempdir().unwrap();
    let (dir, state) = (env.path().join("dir"), env.path().join("state"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(&state).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", shell, "sh"]).arg(program("crisp-shim")).arg("probe").arg(dir).arg(state);
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_probe_reports_what_is_missing() {
    assert_eq!(probe("exec \"$@\""), (Some(0), String::new()));
    // In a user namespace of its own, where the number of others can be limited without limiting
    // the host.
    let none = "exec unshare -Ur sh -c 'echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"' sh \"$@\"";
    let (code, words) = probe(none);
    assert!(code == Some(1) && words.starts_with("creating a user namespace: No space left"), "{code:?} {words}");
    // A host with masked paths, as in a container. In the VM the kernel has another `/proc`, that
    // of its first root, which cannot be masked.
    if slow() == 1 {
        let (code, words) = probe("mount -t tmpfs x /proc/sys && exec \"$@\"");
        assert!(code == Some(1) && words.starts_with("mounting in a user namespace: proc: "), "{code:?} {words}");
    }
    // A file system without ids of its own.
    let (code, words) = probe("mount -t proc x \"$4\" && exec \"$@\"");
    assert!(code == Some(1) && words.starts_with("mapping ids in the state directory: "), "{code:?} {words}");
}
