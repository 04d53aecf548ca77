//! A pod and its containers, from the first request to the last.

use std::time::{SystemTime, UNIX_EPOCH};

use cri_api::v1;
use tonic::Code;

use crate::support::client::{container, namespaces, pod_namespaces, security};
use crate::support::harness::Daemon;
use crate::support::image_fixture::BOX;

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

#[test]
fn a_pod_with_a_container_runs_and_is_removed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let before = now();
    let pod = daemon.run_pod_with("web", |config| {
        config.labels.insert("app".into(), "web".into());
        config.annotations.insert("note".into(), "seen".into());
    });
    let status = client.pod_status(&pod.id);
    assert_eq!(status.state(), v1::PodSandboxState::SandboxReady);
    assert_eq!(status.metadata, pod.config.metadata);
    assert_eq!((status.labels, status.annotations), (pod.config.labels.clone(), pod.config.annotations.clone()));
    assert!((before..=now()).contains(&status.created_at));

    let id = client.create(&pod, "server", &["sh", "-c", "echo hello; exit 7"]);
    let created = client.status(&id);
    assert_eq!(created.state(), v1::ContainerState::ContainerCreated);
    assert_eq!((created.started_at, created.finished_at), (0, 0));
    client.start(&id).unwrap();
    let ended = client.wait_exited(&id);
    assert_eq!((ended.exit_code, ended.reason.as_str()), (7, "Error"));
    assert!(before <= ended.created_at && ended.created_at <= ended.started_at, "{ended:?}");
    assert!(ended.started_at <= ended.finished_at && ended.finished_at <= now(), "{ended:?}");
    assert_eq!(client.lines(&id)[0].text, "hello");

    client.remove(&id).unwrap();
    client.stop_pod(&pod.id).unwrap();
    assert_eq!(client.pod_status(&pod.id).state(), v1::PodSandboxState::SandboxNotready);
    client.remove_pod(&pod.id).unwrap();
    assert!(client.pods().is_empty() && client.containers().is_empty());
}

#[test]
fn a_containers_status_repeats_the_request() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sleep", "1000"]);
    config.labels.insert("a".into(), "b".into());
    config.annotations.insert("c".into(), "d".into());
    config.metadata.as_mut().unwrap().attempt = 3;
    config.image.as_mut().unwrap().user_specified_image = "box".into();
    let host = daemon.env.dir().join("volume");
    std::fs::create_dir(&host).unwrap();
    config.mounts.push(v1::Mount {
        container_path: "/volume".into(),
        host_path: host.display().to_string(),
        readonly: true,
        ..Default::default()
    });
    let id = client.run_config(&pod, config.clone());
    let status = client.status(&id);
    assert_eq!(status.id, id);
    assert_eq!(status.metadata, config.metadata);
    assert_eq!((&status.labels, &status.annotations), (&config.labels, &config.annotations));
    assert_eq!(status.mounts, config.mounts);
    assert_eq!(status.image, config.image);
    assert!(status.image_id.starts_with("sha256:"), "{}", status.image_id);
    assert!(status.image_ref.contains("sha256:"), "{}", status.image_ref);
    let log = daemon.env.logs().join("pod/main.log");
    assert_eq!(status.log_path, log.display().to_string());
    let user = status.user.unwrap().linux.unwrap();
    assert_eq!((user.uid, user.gid), (0, 0));
    assert_eq!((status.exit_code, status.finished_at, status.reason.as_str()), (0, 0, ""));
}

#[test]
fn exit_codes_are_those_of_the_program_or_128_plus_the_signal() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    for (script, code, reason) in [
        ("exit 0", 0, "Completed"),
        ("exit 1", 1, "Error"),
        ("exit 255", 255, "Error"),
        ("sh -c 'kill -9 $$'; exit $?", 137, "Error"),
    ] {
        let ended = daemon.client().script(&pod, &format!("c{code}"), script);
        assert_eq!((ended.status.exit_code, ended.status.reason.as_str()), (code, reason), "{script}");
        daemon.client().remove(&ended.id).unwrap();
    }
}

#[test]
fn a_first_process_killed_by_a_signal_exits_with_128_and_the_signal() {
    let daemon = Daemon::start();
    // The first process of a PID namespace of its own could only be killed by SIGKILL.
    let shared = || namespaces(v1::NamespaceMode::Pod);
    let pod = daemon.run_pod_with("pod", |config| *pod_namespaces(config) = shared());
    let mut config = container("main", &["sleep", "1000"]);
    security(&mut config).namespace_options = Some(shared());
    let id = daemon.client().run_config(&pod, config);
    crate::support::harness::kill(daemon.pids(&id)[0], rustix::process::Signal::SEGV);
    let status = daemon.client().wait_exited(&id);
    assert_eq!((status.exit_code, status.reason.as_str()), (139, "Error"));
}

#[test]
fn a_name_is_reserved_while_its_container_exists() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let first = client.create(&pod, "main", &["true"]);
    let refusal = client.try_create(&pod, container("main", &["true"])).unwrap_err();
    assert_eq!(refusal.code(), Code::AlreadyExists, "{refusal:?}");
    assert!(refusal.message().contains("main"), "{refusal:?}");

    let mut again = container("main", &["true"]);
    again.metadata.as_mut().unwrap().attempt = 1;
    let second = client.try_create(&pod, again).unwrap();
    assert_ne!(first, second);

    client.remove(&first).unwrap();
    client.create(&pod, "main", &["true"]);
}

#[test]
fn a_pods_name_is_reserved_while_it_exists() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let refusal = client.try_run_pod(pod.config.clone()).unwrap_err();
    assert_eq!(refusal.code(), Code::AlreadyExists, "{refusal:?}");
    assert!(refusal.message().contains("pod"), "{refusal:?}");

    let mut next = pod.config.clone();
    next.metadata.as_mut().unwrap().attempt = 1;
    let second = client.run_pod_of(next);
    client.stop_pod(&pod.id).unwrap();
    assert_eq!(client.try_run_pod(pod.config.clone()).unwrap_err().code(), Code::AlreadyExists);
    client.remove_pod(&pod.id).unwrap();
    let third = client.run_pod_of(pod.config.clone());
    assert_ne!(second.id, third.id);
}

#[test]
fn a_name_is_released_after_a_failure() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut bad = container("main", &["true"]);
    bad.mounts.push(v1::Mount {
        container_path: "/x".into(),
        host_path: "/etc/passwd/not-below-a-file".into(),
        ..Default::default()
    });
    for _ in 0..2 {
        let refusal = client.try_create(&pod, bad.clone()).unwrap_err();
        assert_ne!(refusal.code(), Code::AlreadyExists, "{refusal:?}");
    }
    client.create(&pod, "main", &["true"]);

    let mut bad = daemon.pod_config("other");
    bad.linux.as_mut().unwrap().sysctls.insert("net.no.such".into(), "1".into());
    for _ in 0..2 {
        let refusal = client.try_run_pod(bad.clone()).unwrap_err();
        assert_ne!(refusal.code(), Code::AlreadyExists, "{refusal:?}");
        assert!(refusal.message().contains("net.no.such"), "{refusal:?}");
    }
    daemon.run_pod("other");
}

#[test]
fn a_container_that_was_never_started_can_be_stopped_and_removed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    let id = client.create(&pod, "main", &["sleep", "1000"]);
    client.remove(&id).unwrap();
    daemon.wait_until_like(&before);
    let id = client.create(&pod, "main", &["sleep", "1000"]);
    client.stop(&id, 10).unwrap();
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerCreated);
    client.remove(&id).unwrap();
    daemon.wait_until_like(&before);
}

#[test]
fn removing_a_running_container_or_pod_kills_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    let id = client.run(&pod, "main", &["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]);
    client.remove(&id).unwrap();
    assert_eq!(client.try_status(&id).unwrap_err().code(), Code::NotFound);
    daemon.wait_until_like(&before);

    client.run(&pod, "main", &["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]);
    client.remove_pod(&pod.id).unwrap();
    assert!(client.pods().is_empty() && client.containers().is_empty());
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

#[test]
fn stop_and_remove_can_be_repeated_and_succeed_for_unknown_ids() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    for _ in 0..2 {
        client.stop(&id, 5).unwrap();
    }
    for _ in 0..2 {
        client.remove(&id).unwrap();
    }
    client.stop(&id, 5).unwrap();
    for _ in 0..2 {
        client.stop_pod(&pod.id).unwrap();
    }
    for _ in 0..2 {
        client.remove_pod(&pod.id).unwrap();
    }
    client.stop_pod(&pod.id).unwrap();
    let unknown = "f".repeat(64);
    client.stop(&unknown, 0).unwrap();
    client.remove(&unknown).unwrap();
    client.stop_pod(&unknown).unwrap();
    client.remove_pod(&unknown).unwrap();
}

#[test]
fn unknown_ids_are_not_found() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let unknown = "0123456789abcdef".repeat(4);
    let missing = crate::support::client::Pod { id: unknown.clone(), config: daemon.pod_config("pod") };
    let refusals = [
        client.try_status(&unknown).unwrap_err(),
        client.try_pod_status(&unknown).unwrap_err(),
        client.start(&unknown).unwrap_err(),
        client.reopen_log(&unknown).unwrap_err(),
        client.try_exec(&unknown, &["true"], 0).unwrap_err(),
        client.try_create(&missing, container("main", &["true"])).unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
        assert!(refusal.message().contains(&unknown), "{refusal:?}");
    }
}

#[test]
fn a_container_can_be_started_once() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    assert_eq!(client.start(&id).unwrap_err().code(), Code::FailedPrecondition);
    client.stop(&id, 5).unwrap();
    assert_eq!(client.start(&id).unwrap_err().code(), Code::FailedPrecondition);
}

#[test]
fn a_stopped_pod_refuses_new_containers() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let running = client.run_idle(&pod, "main");
    client.stop_pod(&pod.id).unwrap();
    assert_eq!(client.status(&running).state(), v1::ContainerState::ContainerExited);
    let refusal = client.try_create(&pod, container("next", &["true"])).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
}

#[test]
fn verbose_responses_contain_json() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let status = client.call(|mut c| async move { c.status(v1::StatusRequest { verbose: true }).await }).unwrap();
    for info in [client.try_status(&id).unwrap().info, client.try_pod_status(&pod.id).unwrap().info, status.info] {
        assert!(!info.is_empty());
        for (key, value) in info {
            serde_json::from_str::<serde_json::Value>(&value).unwrap_or_else(|e| panic!("{key}: {e}: {value}"));
        }
    }
    let quiet = v1::ContainerStatusRequest { container_id: id, verbose: false };
    let quiet = client.call(|mut c| async move { c.container_status(quiet).await }).unwrap();
    assert!(quiet.info.is_empty());
}

#[test]
fn the_runtime_reports_its_name_and_readiness() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let version = v1::VersionRequest { version: "0.1.0".into() };
    let version = client.call(|mut c| async move { c.version(version).await }).unwrap();
    assert_eq!((version.version.as_str(), version.runtime_name.as_str()), ("0.1.0", "crisp"));
    assert_eq!(version.runtime_api_version, "v1");
    assert!(!version.runtime_version.is_empty());

    let status = client.call(|mut c| async move { c.status(v1::StatusRequest { verbose: false }).await }).unwrap();
    assert!(status.info.is_empty());
    let conditions = status.status.unwrap().conditions;
    for name in ["RuntimeReady", "NetworkReady"] {
        let condition = conditions.iter().find(|condition| condition.r#type == name).unwrap();
        assert!(condition.status || name == "NetworkReady", "{condition:?}");
    }
    assert!(status.runtime_handlers.iter().any(|handler| handler.name.is_empty()));

    let config = client.call(|mut c| async move { c.runtime_config(v1::RuntimeConfigRequest {}).await }).unwrap();
    assert_eq!(config.linux.unwrap().cgroup_driver(), v1::CgroupDriver::Cgroupfs);
}

#[test]
fn the_images_command_runs_if_the_request_has_none() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("arguments", &[]);
    config.args = vec!["echo".into(), "from the arguments".into()];
    assert_eq!(client.finish_config(&pod, config).stdout, "from the arguments\n");

    let mut config = container("both", &["echo", "one"]);
    config.args = vec!["two".into()];
    assert_eq!(client.finish_config(&pod, config).stdout, "one two\n");

    // A shell that reads an empty input.
    let ended = client.finish_config(&pod, container("neither", &[]));
    assert_eq!((ended.status.exit_code, ended.status.image.unwrap().image.as_str()), (0, BOX));
}

#[test]
fn variables_come_from_the_image_and_the_container() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["env"]);
    for (key, value) in [("OWN", "a=b c"), ("PATH", "/bin:/own")] {
        config.envs.push(v1::KeyValue { key: key.into(), value: value.as_bytes().to_vec() });
    }
    let text = daemon.client().finish_config(&pod, config).stdout;
    for line in ["OWN=a=b c", "PATH=/bin:/own", "FROM_IMAGE=yes", "HOSTNAME=pod", "HOME=/root"] {
        assert_eq!(text.lines().filter(|l| *l == line).count(), 1, "{line} in:\n{text}");
    }
}

#[test]
fn containers_of_one_image_do_not_share_written_files() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let first = daemon.client().script(&pod, "first", "echo secret > /tmp/file && export A=secret && cat /tmp/file");
    assert_eq!(first.stdout, "secret\n");
    let second = daemon.client().script(&pod, "second", "ls /tmp; env | grep secret");
    assert_eq!(second.stdout, "");
}
