//! Attacks by a container with `CAP_SYS_PTRACE` on processes on their way into its PID namespace.
//! The attacker is `tests/examples/tracer.rs`, run inside.

use cri_api::v1::{self, NamespaceMode};

use crate::support::client::{Pod, container, namespaces, pod_namespaces, security};
use crate::support::harness::{Daemon, program, times};

/// A container that may trace others, with the default seccomp profile.
fn tracing(daemon: &Daemon, name: &str, mode: NamespaceMode, command: &[&str]) -> v1::ContainerConfig {
    let mut config = container(name, command);
    let mut mount = |host_path: &str, container_path: &str| {
        let (host_path, container_path) = (host_path.to_owned(), container_path.to_owned());
        config.mounts.push(v1::Mount { container_path, host_path, readonly: true, ..Default::default() });
    };
    mount(program("examples/tracer").to_str().unwrap(), "/tracer");
    for libraries in ["/lib", "/lib64"].into_iter().filter(|dir| std::path::Path::new(dir).exists()) {
        mount(libraries, libraries);
    }
    let security = security(&mut config);
    security.namespace_options = Some(namespaces(mode));
    let add_capabilities = vec!["SYS_PTRACE".to_owned()];
    security.capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
    let profile_type = v1::security_profile::ProfileType::RuntimeDefault.into();
    security.seccomp = Some(v1::SecurityProfile { profile_type, localhost_ref: String::new() });
    assert!(daemon.env.dir().is_absolute());
    config
}

fn tracer(daemon: &Daemon, name: &str, mode: NamespaceMode) -> v1::ContainerConfig {
    let host = daemon.env.dir().display().to_string();
    tracing(daemon, name, mode, &["/tracer", &host])
}

fn pod_with_shared_pids(daemon: &Daemon) -> Pod {
    daemon.run_pod_with("pod", |config| *pod_namespaces(config) = namespaces(NamespaceMode::Pod))
}

/// Checks that the attacker reached only its own files; it must have traced some processes before
/// they executed a program.
fn assert_nothing_reached(daemon: &Daemon, attacker: &str, what: &str) {
    let lines: Vec<String> = daemon.client().lines(attacker).into_iter().map(|line| line.text).collect();
    let reached: Vec<&String> = lines.iter().filter(|line| line.starts_with("reached ")).collect();
    assert!(reached.is_empty(), "{what}: {reached:#?}");
    assert!(lines.iter().any(|line| line.starts_with("seized ")), "{what}: no process was seized: {lines:#?}");
}

#[test]
fn a_container_that_traces_entering_commands_gains_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let attacker = client.run_config(&pod, tracer(&daemon, "tracer", NamespaceMode::Container));
    client.wait_printed(&attacker, "looking");
    for _ in 0..times(300, 20) {
        client.exec(&attacker, &["true"]);
    }
    assert_nothing_reached(&daemon, &attacker, "exec");
    let lines = client.lines(&attacker);
    assert!(
        lines.iter().any(|line| line.text == "seized crisp-shim"),
        "all commands were programs already: {lines:#?}"
    );
}

#[test]
fn a_container_that_traces_entering_containers_of_its_pod_gains_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = pod_with_shared_pids(&daemon);
    let attacker = client.run_config(&pod, tracer(&daemon, "tracer", NamespaceMode::Pod));
    client.wait_printed(&attacker, "looking");
    for round in 0..times(100, 5) {
        let mut config = tracing(&daemon, &format!("victim-{round}"), NamespaceMode::Pod, &["sleep", "100000"]);
        config.tty = round % 4 == 0;
        let id = client.run_config(&pod, config);
        client.exec(&id, &["true"]);
        client.stop(&id, 0).unwrap();
        client.remove(&id).unwrap();
    }
    assert_nothing_reached(&daemon, &attacker, "create, start and exec");
}

#[test]
fn a_container_that_traces_a_container_joining_its_pid_namespace_gains_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let attacker = client.run_config(&pod, tracer(&daemon, "tracer", NamespaceMode::Container));
    client.wait_printed(&attacker, "looking");
    for round in 0..times(60, 5) {
        let name = format!("debugger-{round}");
        let mut config = tracing(&daemon, &name, NamespaceMode::Target, &["sleep", "100000"]);
        security(&mut config).namespace_options.as_mut().unwrap().target_id = attacker.clone();
        let id = client.run_config(&pod, config);
        assert_eq!(client.exec_script(&id, "cat /proc/1/comm"), "tracer\n");
        client.stop(&id, 0).unwrap();
        client.remove(&id).unwrap();
    }
    assert_nothing_reached(&daemon, &attacker, "a container that joins");
}

#[test]
fn a_created_container_has_no_more_rights_than_a_running_one() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = pod_with_shared_pids(&daemon);
    let config = tracing(&daemon, "waits", NamespaceMode::Pod, &["sleep", "100000"]);
    let id = client.try_create(&pod, config).unwrap();
    let look = || {
        let pid = daemon.pids(&id)[0];
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let wanted = ["Cap", "Seccomp:", "NoNewPrivs", "NSpid", "Uid", "Groups"];
        let lines = status.lines().filter(|line| wanted.iter().any(|start| line.starts_with(start)));
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let fds: Vec<String> =
            fds.map(|fd| std::fs::read_link(fd.unwrap().path()).unwrap().display().to_string()).collect();
        (pid, lines.map(str::to_owned).collect::<Vec<_>>(), fds)
    };
    let (pid, created, fds) = look();
    assert!(fds.iter().all(|fd| fd.starts_with("pipe:") || fd == "/dev/null"), "{fds:?}");
    client.start(&id).unwrap();
    let (still, running, _) = look();
    assert_eq!((pid, &created), (still, &running));
    assert!(created.iter().any(|line| line == "Seccomp:\t2"), "{created:?}");
}

/// Without the calls by which a process is born, and settles: crisp needs them after the filter is
/// loaded.
#[test]
fn a_seccomp_profile_without_fork_applies_to_commands_and_other_containers() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let profile = daemon.env.dir().join("lonely.json");
    let refused = ["clone", "clone3", "fork", "vfork", "setsid", "prctl", "ioctl"];
    let rule = serde_json::json!({ "names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": 1 });
    let text = serde_json::json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule] });
    std::fs::write(&profile, text.to_string()).unwrap();
    for (name, mode) in [("own", NamespaceMode::Container), ("shared", NamespaceMode::Pod)] {
        let pod = daemon.run_pod_with(name, |config| *pod_namespaces(config) = namespaces(mode));
        let mut config = container("lonely", &["sleep", "100000"]);
        let security = security(&mut config);
        security.namespace_options = Some(namespaces(mode));
        let profile_type = v1::security_profile::ProfileType::Localhost.into();
        security.seccomp = Some(v1::SecurityProfile { profile_type, localhost_ref: profile.display().to_string() });
        let id = client.run_config(&pod, config);
        assert_eq!(client.exec_script(&id, "read -r line < /proc/self/comm; echo $line"), "sh\n", "{name}");
        assert_eq!(client.exec(&id, &["grep", "^Seccomp:", "/proc/self/status"]).stdout, "Seccomp:\t2\n", "{name}");
        let forks = client.exec(&id, &["sh", "-c", "(true); true"]);
        assert_ne!(forks.code, 0, "{name}: a process was born");
    }
}
