//! Hooks of CDI devices: their order, namespaces and privileges, and the effect of a failed hook.

use std::fs;
use std::time::Instant;

use cri_api::v1;
use serde_json::{Value, json};

use super::{Specs, bind, given};
use crate::support::client::{IDLE, pod_namespaces, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::kernel_state;

/// Returns a hook of stage `name` with a shell script; it uses the host's shell except for `startContainer`.
pub(super) fn hook(name: &str, script: &str) -> Value {
    json!({"hookName": name, "path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"], "timeout": 60})
}

/// Reads a JSON file written by a hook.
fn read(specs: &Specs, name: &str) -> Value {
    serde_json::from_slice(&fs::read(specs.path(name)).unwrap()).unwrap()
}

fn text(specs: &Specs, name: &str) -> String {
    fs::read_to_string(specs.path(name)).unwrap_or_default()
}

const BEFORE: [&str; 3] = ["prestart", "createRuntime", "createContainer"];

/// Returns one hook per stage; each records that it ran and the state on its stdin.
fn all_moments(specs: &Specs) -> Vec<Value> {
    let here = specs.path("");
    let here = here.display();
    let note =
        |name: &str, rest: &str| hook(name, &format!("echo {name} >> {here}order; cat > {here}{name}.json; {rest}"));
    vec![
        // The order in the spec differs from the order of execution.
        note("poststop", &format!("ls {here}ran > /dev/null 2>&1 && echo ran >> {here}order")),
        // The program is started, but may not have written the file yet.
        note(
            "poststart",
            &format!(
                "n=0; until grep -q idle {here}ran; do n=$((n+1)); test $n -lt 100 || exit 1; sleep 0.1; done; \
                 readlink /proc/self/ns/mnt > {here}poststart.ns"
            ),
        ),
        hook(
            "startContainer",
            "echo startContainer >> /shared/order; cat > /shared/startContainer.json; id -u > /shared/uid",
        ),
        note("createContainer", &inspect(specs)),
        note("createRuntime", &format!("readlink /proc/self/ns/mnt > {here}createRuntime.ns")),
        note("prestart", ""),
    ]
}

/// Returns the script of a createContainer hook that checks for the host's files, the container's mounts
/// below its root, and its namespaces.
fn inspect(specs: &Specs) -> String {
    let here = specs.path("");
    let here = here.display();
    format!(
        "state={here}createContainer.json; \
         bundle=$(sed 's/.*\"bundle\":\"\\([^\"]*\\)\".*/\\1/' $state); \
         grep -q '\"path\":\"rootfs\"' $bundle/config.json || exit 11; \
         root=$bundle/rootfs; \
         cat $root/opt/lib/file > {here}seen || exit 12; \
         test -c $root/dev/null && test -d $root/proc/1 || exit 13; \
         test -d $root/shared || exit 14; \
         readlink /proc/self/ns/mnt > {here}createContainer.ns; \
         echo made by a hook > $root/etc/from-hook; \
         echo $$ > {here}pid; hostname > {here}hostname"
    )
}

#[test]
fn hooks_run_at_their_stage_in_their_namespaces() {
    let specs = Specs::new();
    let source = specs.source("lib", "a library\n");
    specs.device(json!({"mounts": [bind(&source, "/opt/lib", &["ro", "rbind"])], "hooks": all_moments(&specs)}));
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("hooked-pod");
    let mut config = given("main", &["sh", "-c", "echo idle > /shared/ran; sleep 100000"], &["d"]);
    config.annotations.insert("tests.example/note".into(), "told".into());
    config.mounts = vec![v1::Mount {
        container_path: "/shared".into(),
        host_path: specs.path("").display().to_string(),
        ..Default::default()
    }];
    let id = client.try_create(&pod, config).unwrap();
    assert_eq!(text(&specs, "order"), "prestart\ncreateRuntime\ncreateContainer\n");
    assert_eq!(text(&specs, "seen"), "a library\n");
    let first = daemon.pids(&id)[0];
    let own = fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    let inside = fs::read_link(format!("/proc/{first}/ns/mnt")).unwrap().display().to_string();
    assert_eq!(text(&specs, "createContainer.ns").trim(), inside, "in the container's mount namespace");
    assert_ne!(text(&specs, "createRuntime.ns").trim(), inside);
    assert_eq!(text(&specs, "hostname").trim(), "hooked-pod");
    assert!(text(&specs, "pid").trim().parse::<u32>().unwrap() < 100, "in its PID namespace too");
    for (name, status, pid) in
        [("prestart", "creating", first), ("createRuntime", "creating", first), ("createContainer", "creating", 1)]
    {
        let state = read(&specs, &format!("{name}.json"));
        assert_eq!(
            (&state["status"], &state["pid"], &state["id"]),
            (&json!(status), &json!(pid), &json!(id)),
            "{name}"
        );
        assert_eq!(state["annotations"]["tests.example/note"], "told");
        assert_eq!(state["ociVersion"], "1.2.0");
    }

    client.start(&id).unwrap();
    assert_eq!(text(&specs, "order").lines().skip(3).collect::<Vec<_>>(), ["startContainer", "poststart"]);
    let state = read(&specs, "startContainer.json");
    assert_eq!((&state["status"], &state["pid"]), (&json!("created"), &json!(1)));
    let state = read(&specs, "poststart.json");
    assert_eq!((&state["status"], &state["pid"]), (&json!("running"), &json!(first)));
    assert_eq!(text(&specs, "poststart.ns").trim(), own, "in crisp's own mount namespace");
    assert_eq!(client.exec_script(&id, "cat /etc/from-hook"), "made by a hook\n");

    client.stop(&id, 0).unwrap();
    assert!(!text(&specs, "order").contains("poststop"), "poststop runs at removal, not at stop");
    client.remove(&id).unwrap();
    assert!(text(&specs, "order").ends_with("poststart\npoststop\nran\n"), "{}", text(&specs, "order"));
    assert_eq!(read(&specs, "poststop.json")["status"], "stopped");
}

#[test]
fn a_container_with_hooks_is_otherwise_like_any_other() {
    let specs = Specs::new();
    let source = specs.source("lib", "a library\n");
    specs.device(
        json!({"mounts": [bind(&source, "/opt/lib", &["ro", "rbind"])], "hooks": [hook("createContainer", "true")]}),
    );
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let look = "cat /opt/lib/file; ls -l /proc/kcore | cut -c1; stat -c %a /proc/keys; cat /etc/hostname; pwd; \
        touch /proc/sys/kernel/hostname; ls /sys/fs/cgroup; ls -a /proc/self/fd | wc -l; cat /proc/self/mountinfo | wc -l; \
        grep -E '^(Cap|Seccomp:|NoNew|Uid|Groups)' /proc/self/status; readlink /proc/self/cwd /proc/1/root";
    let look = look.replace("| cut -c1", "| head -c 1");
    let seen = |name: &str, devices: &[&str]| {
        let mut config = given(name, &["sh", "-c", &look], devices);
        if devices.is_empty() {
            config.mounts = vec![v1::Mount {
                container_path: "/opt/lib".into(),
                host_path: source.display().to_string(),
                readonly: true,
                ..Default::default()
            }];
        }
        config.working_dir = "/made/for/me".into();
        security(&mut config).readonly_rootfs = true;
        let ended = client.finish_config(&pod, config);
        (ended.stdout, ended.stderr)
    };
    assert_eq!(seen("hooked", &["d"]), seen("plain", &[]));

    let mut config = given("terminal", &["sh", "-c", "echo $(tty); ls -l /dev/console; cat /opt/lib/file"], &["d"]);
    config.tty = true;
    let ended = client.finish_config(&pod, config);
    assert!(ended.stdout.contains("/dev/") && ended.stdout.contains("a library"), "{}", ended.stdout);
    assert_eq!(ended.status.exit_code, 0);
}

#[test]
fn hooks_run_in_pods_with_shared_or_host_namespaces() {
    let specs = Specs::new();
    let here = specs.path("");
    let script = format!(
        "readlink /proc/self/ns/pid > {0}pids; cat > {0}state; \
        pid=$(sed -E 's/.*\"pid\":([0-9]*).*/\\1/' {0}state); readlink /proc/$pid/ns/mnt > {0}mounts",
        here.display()
    );
    specs.device(
        json!({"env": ["D=1"], "hooks": [hook("createContainer", &script), hook("startContainer", "echo $D > /d")]}),
    );
    let daemon = specs.daemon();
    let client = daemon.client();
    for mode in [v1::NamespaceMode::Pod, v1::NamespaceMode::Node] {
        let pod = daemon.run_pod_with(&format!("pod-{}", mode as i32), |config| {
            pod_namespaces(config).pid = mode.into();
            if mode == v1::NamespaceMode::Node {
                pod_namespaces(config).network = mode.into();
                pod_namespaces(config).ipc = mode.into();
            }
        });
        let mut config = given("main", &IDLE, &["d"]);
        let spaces = pod.config.linux.as_ref().unwrap().security_context.as_ref().unwrap().namespace_options.clone();
        security(&mut config).namespace_options = spaces;
        let id = client.run_config(&pod, config);
        // Otherwise other processes in the shared PID namespace could inspect the hook.
        assert_eq!(text(&specs, "pids").trim(), fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap());
        // The pid in the hook's state has the container's mounts. In a shared PID namespace that process
        // forks the container's first process.
        let mounts = fs::read_link(format!("/proc/{}/ns/mnt", daemon.pids(&id)[0])).unwrap();
        assert_eq!(text(&specs, "mounts").trim(), mounts.to_str().unwrap());
        if mode == v1::NamespaceMode::Node {
            assert_eq!(read(&specs, "state")["pid"], daemon.pids(&id)[0]);
        }
        assert_eq!(client.exec_script(&id, "cat /d"), "\n", "a hook has only its own variables");
    }
}

#[test]
fn a_start_container_hook_has_the_containers_privileges() {
    let specs = Specs::new();
    let inside = json!({"hookName": "startContainer", "path": "/bin/sh",
        "args": ["sh", "-c", "cat /proc/self/status > /shared/status; echo $D > /shared/d; echo x > /dev/full-of-it; true"]});
    specs.device(json!({"env": ["D=from the device"], "hooks": [inside]}));
    let daemon = specs.daemon();
    let pod = daemon.run_pod("pod");
    fs::create_dir(specs.path("shared")).unwrap();
    std::os::unix::fs::chown(specs.path("shared"), Some(1000), Some(1000)).unwrap();
    let mut config = given("main", &["cat", "/proc/self/status"], &["d"]);
    config.mounts = vec![v1::Mount {
        container_path: "/shared".into(),
        host_path: specs.path("shared").display().to_string(),
        ..Default::default()
    }];
    let context = security(&mut config);
    context.run_as_user = Some(v1::Int64Value { value: 1000 });
    context.no_new_privs = true;
    let profile_type = v1::security_profile::ProfileType::RuntimeDefault.into();
    context.seccomp = Some(v1::SecurityProfile { profile_type, ..Default::default() });
    let ended = daemon.client().finish_config(&pod, config);
    let rights = |status: &str| {
        let kept = ["Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp"];
        let lines = status.lines().filter(|line| kept.iter().any(|word| line.starts_with(word)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let hooks = rights(&text(&specs, "shared/status"));
    assert!(
        hooks.contains(&"Uid:\t1000\t1000\t1000\t1000".to_owned()) && hooks.contains(&"Seccomp:\t2".to_owned()),
        "{hooks:?}"
    );
    assert_eq!(hooks, rights(&ended.stdout), "exactly the privileges of the container's program");
    assert_eq!(text(&specs, "shared/d"), "from the device\n", "a hook without its own variables has the container's");
}

#[test]
fn a_failed_hook_fails_the_request_with_its_output_and_leaves_nothing() {
    let specs = Specs::new();
    let here = specs.path("");
    let (daemon, mut names) = (specs.daemon(), 0);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    for moment in BEFORE {
        for (script, words) in [
            ("echo first; echo the reason >&2; exit 3", "exit status 3: first\nthe reason"),
            ("kill -9 $$", if moment == "createContainer" { "exit status 137" } else { "killed by signal 9" }),
        ] {
            names += 1;
            let stop = hook("poststop", &format!("echo {moment} >> {}stopped", here.display()));
            specs.device(json!({"hooks": [hook(moment, "true"), hook(moment, script), stop]}));
            let refusal = client.try_create(&pod, given(&format!("c{names}"), &["true"], &["d"])).unwrap_err();
            assert!(
                refusal.message().contains(&format!("{moment} hook /bin/sh of the container: {words}")),
                "{refusal:?}"
            );
            daemon.wait_until_like(&before);
        }
    }
    assert_eq!(text(&specs, "stopped").lines().count(), 6, "poststop ran after each failed create");

    for moment in ["startContainer", "poststart"] {
        specs.device(json!({"hooks": [hook(moment, "echo the reason >&2; exit 3")]}));
        let id = client.try_create(&pod, given(moment, &IDLE, &["d"])).unwrap();
        let refusal = client.start(&id).unwrap_err();
        assert!(
            refusal.message().contains(&format!("{moment} hook /bin/sh of the container: exit status 3: the reason")),
            "{refusal:?}"
        );
        let status = client.status(&id);
        assert_eq!(status.state(), v1::ContainerState::ContainerExited);
        assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
        wait_for("its processes to exit", seconds(5), || daemon.pids(&id).is_empty().then_some(()));
        client.remove(&id).unwrap();
        daemon.wait_until_like(&before);
    }

    specs.device(json!({"hooks": [{"hookName": "startContainer", "path": "/not/there"}]}));
    let id = client.try_create(&pod, given("missing", &IDLE, &["d"])).unwrap();
    let refusal = client.start(&id).unwrap_err();
    assert!(refusal.message().contains("startContainer hook /not/there"), "{refusal:?}");
    assert!(refusal.message().contains("no such file"), "{refusal:?}");
}

#[test]
fn a_hook_that_exceeds_its_timeout_is_killed_with_its_children() {
    let specs = Specs::new();
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    let sleeps = |moment: &str| {
        // A copy of sleep with its own name, so that the test can count these processes.
        let mut hook = hook(
            moment,
            &format!("echo begun; cp /bin/sleep {0}nap; {0}nap 10000 & {0}nap 10000", specs.path("").display()),
        );
        hook["timeout"] = json!(1);
        hook
    };
    let naps = || kernel_state::processes().iter().filter(|process| process.name == "nap").count();
    for moment in BEFORE {
        specs.device(json!({"hooks": [sleeps(moment)]}));
        let begun = Instant::now();
        let refusal = client.try_create(&pod, given(moment, &["true"], &["d"])).unwrap_err();
        assert!(
            refusal
                .message()
                .contains(&format!("{moment} hook /bin/sh of the container: did not end within 1 s: begun")),
            "{refusal:?}"
        );
        assert!(begun.elapsed() < seconds(20), "{:?}", begun.elapsed());
        daemon.wait_until_like(&before);
        wait_for("the hook to exit", seconds(5), || (naps() == 0).then_some(()));
    }
    specs.device(json!({"hooks": [sleeps("poststart")]}));
    let id = client.try_create(&pod, given("poststart", &IDLE, &["d"])).unwrap();
    let refusal = client.start(&id).unwrap_err();
    assert!(
        refusal.message().contains("poststart hook /bin/sh of the container: did not end within 1 s"),
        "{refusal:?}"
    );
    wait_for("the hook to exit", seconds(5), || (naps() == 0).then_some(()));
    specs.device(json!({"hooks": [sleeps("poststop")]}));
    let id = client.try_create(&pod, given("poststop", &IDLE, &["d"])).unwrap();
    client.remove(&id).unwrap();
    wait_for("the hook to exit", seconds(5), || (naps() == 0).then_some(()));
    assert!(daemon.env.read_log().contains("did not end within 1 s"), "logged, and the removal succeeds");
}

#[test]
fn poststop_hooks_run_after_the_loss_of_shim_or_daemon() {
    let specs = Specs::new();
    let here = specs.path("");
    let note = |name: &str| hook(name, &format!("echo {name} >> {}order", here.display()));
    specs.device(json!({"hooks": [note("createRuntime"), note("poststop")]}));
    let mut daemon = Daemon::with_failpoints(TestEnv::with_settings(&specs.settings(false)), "create.launch=kill");
    let pod = daemon.run_pod("pod");
    daemon.client().try_create(&pod, given("cut-off", &["true"], &["d"])).unwrap_err();
    daemon.wait_ended();
    assert_eq!(text(&specs, "order"), "createRuntime\n");
    daemon.revive();
    wait_for("the incomplete container to be removed", seconds(10), || {
        (text(&specs, "order") == "createRuntime\npoststop\n").then_some(())
    });

    let id = daemon.client().run_config(&pod, given("orphan", &IDLE, &["d"]));
    for shim in daemon.shims() {
        crate::support::harness::kill(shim, rustix::process::Signal::KILL);
    }
    wait_for("the container to be marked as exited", seconds(10), || {
        let status = daemon.client().status(&id);
        (status.state() == v1::ContainerState::ContainerExited).then_some(())
    });
    daemon.client().remove(&id).unwrap();
    assert_eq!(text(&specs, "order"), "createRuntime\npoststop\n".repeat(2));
}
