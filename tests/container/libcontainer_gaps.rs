//! Features that libcontainer lacks or implements incorrectly, and crisp provides. Others are
//! tested in [`crate::cgroups`] (cgroup mounts, hierarchies, freezer), [`crate::mounts`]
//! (propagation), [`crate::container::privileges`] (seccomp, groups, capabilities),
//! [`crate::container::exec`] (failed exec), [`crate::namespaces`] (host names),
//! [`crate::failures`] (messages) and [`crate::requests`] (refusals).

use std::fs;

use cri_api::v1;
use rustix::process::Resource;
use sha2::{Digest as _, Sha256};

use crate::support::client::{Pod, container, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, program};
use crate::support::image_fixture::Archive;
use crate::support::kernel_state;

fn scored(name: &str, oom_score_adj: i64) -> v1::ContainerConfig {
    let mut config = container(name, &crate::support::client::IDLE);
    let resources = v1::LinuxContainerResources { oom_score_adj, ..Default::default() };
    config.linux.as_mut().unwrap().resources = Some(resources);
    config
}

fn score(pid: i32) -> i32 {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

/// Whether the daemon may set a score below its own.
fn may_lower(daemon: &Daemon) -> bool {
    let held = u64::from_str_radix(&kernel_state::status(daemon.pid())["CapEff"], 16).unwrap();
    held & (1 << 24) != 0
}

#[test]
fn an_oom_score_applies_to_its_container_only() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let shim = daemon.shims()[0];
    let (before, own) = (score(shim), score(daemon.pid()));
    let plain = client.run_idle(&pod, "plain");
    assert_eq!(score(daemon.pids(&plain)[0]), own, "a container without a score must not have the shim's");
    assert_eq!(client.exec_script(&plain, "cat /proc/self/oom_score_adj"), format!("{own}\n"));
    let high = client.run_config(&pod, scored("high", 567));
    assert_eq!(score(daemon.pids(&high)[0]), 567);
    assert_eq!(client.exec_script(&high, "cat /proc/self/oom_score_adj"), "567\n");
    assert_eq!((score(shim), score(daemon.pid())), (before, own));
    let next = client.run_config(&pod, scored("next", 12));
    assert_eq!(score(daemon.pids(&next)[0]), 12);
}

#[test]
fn a_negative_oom_score_is_set_or_a_warning_is_logged() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_config(&pod, scored("low", -997));
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerRunning);
    if may_lower(&daemon) {
        assert_eq!(score(daemon.pids(&id)[0]), -997);
    } else {
        assert!(daemon.env.read_log().contains("oom_score_adj"), "{}", daemon.env.read_log());
    }
}

#[test]
fn a_required_negative_oom_score_that_cannot_be_set_is_refused() {
    let daemon = Daemon::with_settings("[container]\noom_score_adj = \"require\"\n");
    let pod = daemon.run_pod("pod");
    match daemon.client().try_create(&pod, scored("low", -997)) {
        Ok(id) => assert!(may_lower(&daemon) && score(daemon.pids(&id)[0]) == -997),
        Err(refusal) => assert!(!may_lower(&daemon) && refusal.message().contains("oom_score_adj"), "{refusal:?}"),
    }
}

#[test]
fn resource_limits_are_those_of_the_daemon() {
    // CRI has no field for them: the test checks that they are unchanged.
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let ended = daemon.client().script(&pod, "main", "ulimit -H -n; ulimit -S -n");
    let own = rustix::process::getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(lines[0], text(own.maximum));
    assert!(lines[1] == text(own.current) || lines[1] == lines[0], "{lines:?}");
}

#[test]
fn a_missing_working_directory_is_created() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for (name, user) in [("root", 0), ("user", 1000)] {
        let mut config = container(name, &["pwd"]);
        config.working_dir = "/not/there/yet".into();
        security(&mut config).run_as_user = Some(v1::Int64Value { value: user });
        assert_eq!(client.finish_config(&pod, config).stdout, "/not/there/yet\n");
    }
}

#[test]
fn a_working_directory_that_is_a_descriptor_of_the_host_is_refused() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for number in 3..12 {
        let mut config = container(&format!("c{number}"), &["sh", "-c", "pwd; ls"]);
        config.working_dir = format!("/proc/self/fd/{number}");
        let id = match client.try_create(&pod, config) {
            Ok(id) => id,
            Err(refusal) => {
                assert!(refusal.message().contains("/proc/self/fd"), "{refusal:?}");
                continue;
            }
        };
        let refusal = client.start(&id).unwrap_err();
        assert!(refusal.message().contains("/proc/self/fd"), "{refusal:?}");
        client.remove(&id).unwrap();
    }
}

#[test]
fn no_descriptor_leaks_into_a_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // The fourth is the directory itself, while it is read.
    let ended = client.finish_config(&pod, container("main", &["ls", "/proc/self/fd"]));
    assert_eq!(ended.stdout, "0\n1\n2\n3\n");
    let id = client.run_idle(&pod, "idle");
    assert_eq!(client.exec(&id, &["ls", "/proc/self/fd"]).stdout, "0\n1\n2\n3\n");
    let mut terminal = container("tty", &["ls", "/proc/self/fd"]);
    terminal.tty = true;
    let words: Vec<String> =
        client.finish_config(&pod, terminal).stdout.split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["0", "1", "2", "3"]);
}

#[test]
fn every_user_of_a_container_can_reopen_its_standard_streams() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sh", "-c", "echo out > /dev/stdout; echo err > /dev/stderr"]);
    security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
    let ended = client.finish_config(&pod, config);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "err\n"));

    let mut config = container("idle", &crate::support::client::IDLE);
    security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
    let id = client.run_config(&pod, config);
    let done = client.exec(&id, &["sh", "-c", "echo out > /dev/stdout; echo err > /dev/stderr"]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));

    let mut config = container("tty", &["sh", "-c", "echo out > /dev/stdout; echo tty > /dev/tty"]);
    security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
    config.tty = true;
    assert_eq!(client.finish_config(&pod, config).stdout, "out\r\ntty\r\n");
}

#[test]
fn an_unused_stdin_is_at_its_end() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    assert_eq!(daemon.client().finish_config(&pod, container("main", &["wc", "-c"])).stdout, "0\n");
}

/// A pod in which a container may do anything.
fn privileged(daemon: &Daemon) -> (Pod, v1::ContainerConfig) {
    let pod = daemon.run_pod_with("pod", |config| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    });
    let mut config = container("main", &crate::support::client::IDLE);
    security(&mut config).privileged = true;
    (pod, config)
}

#[test]
fn a_container_cannot_open_the_shims_program() {
    let hash = || Sha256::digest(fs::read(program("crisp-shim")).unwrap());
    let before = hash();
    let env = TestEnv::new();
    env.import(&Archive::new("crisp.test/self:1").with_link("bin/self", "/proc/self/exe"));
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let (pod, mut config) = privileged(&daemon);
    config.image.as_mut().unwrap().image = "crisp.test/self:1".into();
    let attack = "while :; do for exe in /proc/[0-9]*/exe; do echo x >> $exe; echo x > $exe; done; done 2> /dev/null";
    config.command = vec!["sh".into(), "-c".into(), attack.into()];
    let id = client.run_config(&pod, config.clone());
    for _ in 0..10 {
        // In any case it is not that of the host.
        client.try_exec(&id, &["self"], 5).ok();
        client.try_exec(&id, &["/proc/self/exe"], 5).ok();
    }
    client.remove(&id).unwrap();
    // As the first process, too.
    config.metadata.as_mut().unwrap().name = "self".into();
    config.command = vec!["/bin/self".into()];
    let id = client.try_create(&pod, config).unwrap();
    client.start(&id).ok();
    client.wait_exited(&id);
    assert_eq!(hash(), before);
    assert_eq!(client.script(&pod, "after", "echo fine").stdout, "fine\n");
}

#[test]
fn a_container_cannot_find_the_shim_through_its_processes() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let seen = client.exec_script(&id, "cat /proc/[0-9]*/comm; readlink /proc/1/exe");
    assert!(!seen.contains("crisp"), "{seen}");
    assert!(seen.contains("/bin/busybox"), "{seen}");
}

#[test]
fn programs_start_without_blocked_or_ignored_signals() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let first = client.finish_config(&pod, container("main", &["cat", "/proc/self/status"])).stdout;
    let id = client.run_idle(&pod, "idle");
    let second = client.exec(&id, &["cat", "/proc/self/status"]).stdout;
    for status in [first, second] {
        let status = kernel_state::status_lines(&status);
        let bits = |key: &str| u64::from_str_radix(&status[key], 16).unwrap();
        // 32 and 33 are the C library's own, and it leaves them ignored in whatever it starts.
        assert_eq!((bits("SigBlk"), bits("SigIgn") & !(0b11 << 31)), (0, 0));
    }
}
