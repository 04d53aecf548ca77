//! SELinux, on a kernel that enforces the policy in `selinux/policy.cil`: `hack/dev e2e lsm`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cri_api::v1;
use serde_json::json;
use tonic::Code;

use crate::container::image_volumes::{DATA, daemon_with, data_in_layers, image_mount};
use crate::support::client::{IDLE, Pod, container, pod_namespaces, security};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::userns;

/// Returns the label of a file, read on the host.
fn label(path: impl AsRef<Path>) -> String {
    let mut value = [0; 256];
    let length = rustix::fs::lgetxattr(path.as_ref(), "security.selinux", &mut value[..]).unwrap();
    String::from_utf8(value[..length].to_vec()).unwrap().trim_end_matches('\0').to_owned()
}

fn options(kind: &str, level: &str) -> v1::SeLinuxOption {
    v1::SeLinuxOption { r#type: kind.to_owned(), level: level.to_owned(), ..Default::default() }
}

fn config_with_label(name: &str, asked: Option<v1::SeLinuxOption>) -> v1::ContainerConfig {
    let mut config = container(name, &IDLE);
    security(&mut config).selinux_options = asked;
    config
}

fn pod_with_label(daemon: &Daemon, name: &str, asked: v1::SeLinuxOption) -> Pod {
    daemon.run_pod_with(name, |config| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().selinux_options = Some(asked);
    })
}

fn volume(host: &Path, at: &str, relabel: bool) -> v1::Mount {
    v1::Mount {
        container_path: at.to_owned(),
        host_path: host.display().to_string(),
        selinux_relabel: relabel,
        ..Default::default()
    }
}

/// Returns the label of a container's first process, and checks that an exec has the same.
fn process(daemon: &Daemon, id: &str) -> String {
    let first = fs::read_to_string(format!("/proc/{}/attr/current", daemon.pids(id)[0])).unwrap();
    let exec = daemon.client().exec_script(id, "cat /proc/self/attr/current");
    let [first, exec] = [first, exec].map(|text| text.trim_end_matches(['\n', '\0']).to_owned());
    assert_eq!(first, exec);
    first
}

fn level(label: &str) -> &str {
    label.splitn(4, ':').nth(3).unwrap()
}

/// Returns the host's path of a file in a container.
fn inside(daemon: &Daemon, id: &str, path: &str) -> PathBuf {
    Path::new("/proc").join(daemon.pids(id)[0].to_string()).join("root").join(path.trim_start_matches('/'))
}

fn denied(daemon: &Daemon, id: &str, script: &str) {
    let done = daemon.client().exec(id, &["sh", "-c", script]);
    assert!(done.code != 0 && done.stderr.contains("ermission denied"), "{script}: {done:?}");
}

#[test]
fn every_pod_has_its_own_level_for_all_its_processes_and_files() {
    let volumes = Archive::new("crisp.test/volumes:1").with("Volumes", json!({"/declared": {}}));
    let daemon = daemon_with(&[volumes, data_in_layers()]);
    let client = daemon.client();
    let (one, two) = (daemon.run_pod("one"), daemon.run_pod("two"));
    let mut main = config_with_label("main", None);
    main.image.as_mut().unwrap().image = "crisp.test/volumes:1".into();
    main.mounts = vec![image_mount(DATA, "", "/data")];
    security(&mut main).masked_paths = vec!["/proc/acpi".into(), "/sys/firmware".into(), "/proc/keys".into()];
    security(&mut main).no_new_privs = true;
    let (main, beside) = (client.run_config(&one, main), client.run_idle(&one, "beside"));
    let other = client.run_idle(&two, "main");
    let own = process(&daemon, &main);
    assert!(own.starts_with("system_u:system_r:container_t:s0:c"), "{own}");
    assert_eq!(process(&daemon, &beside), own);
    assert_ne!(level(&process(&daemon, &other)), level(&own));

    let files = format!("system_u:object_r:container_file_t:{}", level(&own));
    let places = [
        "/",
        "/bin",
        "/declared",
        "/data",
        "/data/sub/a",
        "/dev",
        "/dev/null",
        "/dev/pts",
        "/dev/ptmx",
        "/dev/shm",
        "/dev/mqueue",
        "/etc/hosts",
        "/etc/resolv.conf",
        "/etc/hostname",
        "/sys/firmware",
    ];
    for place in places {
        assert_eq!(label(inside(&daemon, &main, place)), files, "{place}");
    }
    assert_eq!(label(inside(&daemon, &beside, "/dev/shm")), files);
    // Ordinary operations are allowed, and new files get the pod's label.
    let work =
        "echo x | tee /new /dev/shm/new /declared/new > /etc/hosts && cat /etc/resolv.conf /data/sub/a > /dev/null";
    client.exec_script(&main, work);
    for made in ["/new", "/dev/shm/new", "/declared/new", "/etc/hosts"] {
        assert_eq!(label(inside(&daemon, &main, made)), files, "{made}");
    }
    assert_eq!(client.exec_script(&beside, "cat /dev/shm/new /etc/hosts"), "x\nx\n");
    // A verbose status shows the labels, and signals of the daemon arrive.
    let info = client.try_status(&main).unwrap().info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).unwrap();
    assert_eq!(info["selinux"], json!({"process": own, "mount": files}));
    let info = client.try_pod_status(&one.id).unwrap().info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).unwrap();
    assert_eq!(info["selinux"], json!({"process": own, "mount": files}));
    client.stop(&main, 30).unwrap();
    assert_eq!(client.status(&main).exit_code, 0);
}

#[test]
fn only_volumes_with_selinux_relabel_are_relabelled() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (one, two) = (daemon.run_pod("one"), daemon.run_pod("two"));
    let place = |name: &str| {
        let dir = daemon.env.dir().join(name);
        fs::create_dir_all(dir.join("below")).unwrap();
        fs::write(dir.join("below/file"), "x\n").unwrap();
        dir
    };
    let (mine, plain, outside) = (place("mine"), place("plain"), place("outside"));
    symlink(&outside, mine.join("link")).unwrap();
    let before = label(&plain);
    let mut main = config_with_label("main", None);
    main.mounts = vec![volume(&mine, "/mine", true), volume(&plain, "/plain", false)];
    let id = client.run_config(&one, main);
    let files = format!("system_u:object_r:container_file_t:{}", level(&process(&daemon, &id)));
    for part in ["", "below", "below/file", "link"] {
        assert_eq!(label(mine.join(part)), files, "{part}");
    }
    for untouched in [&plain, &plain.join("below/file"), &outside, &outside.join("below/file")] {
        assert_eq!(label(untouched), before, "{}", untouched.display());
    }
    client.exec_script(&id, "cat /mine/below/file && echo y > /mine/new");
    denied(&daemon, &id, "echo y > /plain/new");
    // The level of another pod does not give access.
    let mut next = config_with_label("next", None);
    next.mounts = vec![volume(&mine, "/mine", false)];
    let other = client.run_config(&two, next);
    denied(&daemon, &other, "cat /mine/below/file");
    denied(&daemon, &other, "ls /mine");

    let mut host = config_with_label("host", None);
    host.mounts = vec![volume(Path::new("/usr/../etc"), "/mine", true)];
    let before = (daemon.snapshot(), label("/etc/passwd"));
    let refusal = client.try_create(&one, host).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("config.mounts[0].selinux_relabel"), "{refusal:?}");
    daemon.wait_until_like(&before.0);
    assert_eq!(label("/etc/passwd"), before.1);
}

#[test]
fn requested_options_apply_and_others_are_those_of_the_pod() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = pod_with_label(&daemon, "pod", options("", "s0:c5,c3"));
    let same = client.run_config(&pod, config_with_label("same", None));
    assert_eq!(process(&daemon, &same), "system_u:system_r:container_t:s0:c3,c5");
    let kind = client.run_config(&pod, config_with_label("kind", Some(options("other_t", ""))));
    assert_eq!(process(&daemon, &kind), "system_u:system_r:other_t:s0:c3,c5");
    let user = v1::SeLinuxOption { user: "other_u".into(), level: "s0:c7".into(), ..Default::default() };
    let all = client.run_config(&pod, config_with_label("all", Some(user)));
    assert_eq!(process(&daemon, &all), "other_u:system_r:container_t:s0:c7");
    assert_eq!(label(inside(&daemon, &all, "/")), "other_u:object_r:container_file_t:s0:c7");
    assert_eq!(label(inside(&daemon, &kind, "/")), "system_u:object_r:container_file_t:s0:c3,c5");
    // Containers of several levels can all read the pod's files.
    for id in [&same, &all] {
        client.exec_script(id, "cat /etc/hosts /etc/hostname > /dev/null");
    }
    let mut terminal = config_with_label("terminal", None);
    terminal.command =
        ["sh", "-c", "test -t 0 && cat /proc/self/attr/current; echo; echo > /dev/tty"].map(str::to_owned).into();
    terminal.tty = true;
    let printed = client.finish_config(&pod, terminal).stdout.replace('\0', "");
    assert_eq!(printed, "system_u:system_r:container_t:s0:c3,c5\r\n\r\n");
}

#[test]
fn privileged_and_host_pid_containers_are_labelled_only_with_a_type() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    });
    let run = |name: &str, asked: Option<v1::SeLinuxOption>, privileged: bool, hosts: bool| {
        let mut config = config_with_label(name, asked);
        security(&mut config).privileged = privileged;
        let spaces = security(&mut config).namespace_options.as_mut().unwrap();
        if hosts {
            spaces.pid = v1::NamespaceMode::Node.into();
        }
        client.run_config(&pod, config)
    };
    // The context that the policy assigns to a container's program without a label.
    let free = "system_u:system_r:spc_t:s0";
    let silent = run("silent", None, true, false);
    assert_eq!(process(&daemon, &silent), free);
    let by_level = run("level", Some(options("", "s0:c1,c2")), true, false);
    assert_eq!(process(&daemon, &by_level), free);
    assert_eq!(label(inside(&daemon, &by_level, "/")), "system_u:object_r:container_file_t:s0:c1,c2");
    let named = run("named", Some(options("other_t", "s0:c1,c2")), true, false);
    assert_eq!(process(&daemon, &named), "system_u:system_r:other_t:s0:c1,c2");
    let hosts = run("hosts", None, false, true);
    assert_eq!(process(&daemon, &hosts), free);
    let named = run("hosts-named", Some(options("container_t", "s0:c1,c2")), false, true);
    assert_eq!(process(&daemon, &named), "system_u:system_r:container_t:s0:c1,c2");
    let open = daemon.run_pod_with("open", |config| pod_namespaces(config).ipc = v1::NamespaceMode::Node.into());
    let id = client.run_config(&open, config_with_label("main", None));
    assert_eq!(process(&daemon, &id), free);
    assert!(!label("/dev/shm").contains("container_file_t") && !label("/dev/mqueue").contains("container_file_t"));
}

#[test]
fn malformed_and_unknown_contexts_are_refused_and_leave_nothing_behind() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    let user = v1::SeLinuxOption { user: "nobody_u".into(), ..Default::default() };
    let role = v1::SeLinuxOption { role: "a:b".into(), ..Default::default() };
    for (bad, code, words) in [
        (options("bad_t", ""), Code::FailedPrecondition, "selinux_options: unknown SELinux context"),
        (options("", "s0:c16"), Code::FailedPrecondition, "container_t:s0:c16"),
        (user, Code::FailedPrecondition, "nobody_u:system_r:container_t"),
        (role, Code::InvalidArgument, "config.linux.security_context.selinux_options.role"),
        (options("", "c1"), Code::InvalidArgument, "config.linux.security_context.selinux_options.level"),
        (options("a b", ""), Code::InvalidArgument, "config.linux.security_context.selinux_options.type"),
    ] {
        let mut config = daemon.pod_config("bad");
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().selinux_options = Some(bad.clone());
        for refusal in [client.try_create(&pod, config_with_label("bad", Some(bad))), client.try_run_pod(config)] {
            let refusal = refusal.unwrap_err();
            assert_eq!(refusal.code(), code, "{refusal:?}");
            assert!(refusal.message().contains(words), "{words}: {refusal:?}");
        }
    }
    daemon.wait_until_like(&before);
}

#[test]
fn labels_survive_a_daemon_restart() {
    let mut daemon = Daemon::start();
    let pods: Vec<Pod> = ["one", "two", "three"].iter().map(|name| daemon.run_pod(name)).collect();
    let first = daemon.client().run_idle(&pods[0], "first");
    let own = process(&daemon, &first);
    let created = daemon.client().create(&pods[0], "created", &IDLE);
    daemon.restart();
    let client = daemon.client();
    assert_eq!(process(&daemon, &first), own);
    client.start(&created).unwrap();
    assert_eq!(process(&daemon, &created), own);
    let later = client.run_idle(&pods[0], "later");
    assert_eq!(process(&daemon, &later), own);
    assert_eq!(client.exec_script(&later, "echo x > /dev/shm/x; cat /dev/shm/x"), "x\n");
    let four = daemon.run_pod("four");
    let labels = pods.iter().chain([&four]).map(|pod| {
        let info = client.try_pod_status(&pod.id).unwrap().info;
        serde_json::from_str::<serde_json::Value>(&info["info"]).unwrap()["selinux"]["mount"].to_string()
    });
    assert_eq!(labels.collect::<std::collections::BTreeSet<_>>().len(), 4);
}

#[test]
fn a_pod_with_a_user_namespace_is_labelled_too() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = userns::run_pod(&daemon, "pod");
    let mut main = userns::idle("main");
    let mine = daemon.env.dir().join("mine");
    fs::create_dir(&mine).unwrap();
    main.mounts = vec![volume(&mine, "/mine", true)];
    main.devices =
        vec![v1::Device { container_path: "/dev/own".into(), host_path: "/dev/zero".into(), permissions: "rw".into() }];
    let id = client.run_config(&pod, main);
    let own = process(&daemon, &id);
    assert!(own.starts_with("system_u:system_r:container_t:s0:c"), "{own}");
    let files = format!("system_u:object_r:container_file_t:{}", level(&own));
    for place in ["/", "/dev", "/dev/own", "/dev/pts", "/dev/shm", "/etc/hosts", "/mine"] {
        assert_eq!(label(inside(&daemon, &id, place)), files, "{place}");
    }
    client.exec_script(&id, "echo x > /new && echo x > /dev/shm/new && cat /etc/hosts > /dev/null");
}

#[test]
fn a_handler_may_disable_selinux() {
    let daemon = Daemon::on(TestEnv::with_settings("[handlers.plain]\nselinux = \"off\"\n"));
    let client = daemon.client();
    let run_pod = |asked: Option<v1::SeLinuxOption>| {
        let mut config = daemon.pod_config("plain");
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().selinux_options = asked;
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: "plain".into() };
        let id = client.call(|mut c| async move { c.run_pod_sandbox(request).await })?.pod_sandbox_id;
        Ok::<_, tonic::Status>(Pod { id, config })
    };
    let refusal = run_pod(Some(options("container_t", ""))).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    let pod = run_pod(None).unwrap();
    let refusal = client.try_create(&pod, config_with_label("asks", Some(options("container_t", "")))).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    let mine = daemon.env.dir().join("mine");
    fs::create_dir(&mine).unwrap();
    let before = label(&mine);
    let mut main = config_with_label("main", None);
    main.mounts = vec![volume(&mine, "/mine", true)];
    let id = client.run_config(&pod, main);
    assert_eq!(process(&daemon, &id), "system_u:system_r:base_t:s0");
    assert_eq!(label(&mine), before);
}

#[test]
fn a_program_never_runs_without_the_label_of_its_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    });
    let running = client.run_config(&pod, config_with_label("running", None));
    let mut free = config_with_label("free", None);
    security(&mut free).privileged = true;
    security(&mut free).namespace_options =
        Some(v1::NamespaceOption { pid: v1::NamespaceMode::Node.into(), ..Default::default() });
    let free = client.run_config(&pod, free);
    let first = daemon.pids(&running)[0];
    // Fake files cover the files in /proc that set the label.
    let cover = format!(
        "nsenter -t {first} -m sh -c 'mkdir /kernel && mount --bind /proc /kernel && mount -t tmpfs fake /proc && mkdir -p /proc/thread-self/attr && touch /proc/thread-self/attr/exec /proc/thread-self/attr/keycreate'"
    );
    client.exec_script(&free, &cover);
    let label = fs::read_to_string(format!("/proc/{first}/attr/current")).unwrap();
    assert_eq!(client.exec_script(&running, "cat /kernel/self/attr/current"), label);
}
