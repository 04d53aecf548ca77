//! Containers that cannot be created or started, and their errors.

use cri_api::v1;
use tonic::Code;

use crate::support::client::{Pod, container, security};
use crate::support::harness::{Daemon, seconds, wait_for};

/// Creates and starts; answers the first refusal, and the container's id where there is one.
fn refusal(daemon: &Daemon, pod: &Pod, config: v1::ContainerConfig) -> (tonic::Status, Option<String>) {
    match daemon.client().try_create(pod, config) {
        Err(refusal) => (refusal, None),
        Ok(id) => (daemon.client().start(&id).unwrap_err(), Some(id)),
    }
}

#[test]
fn a_missing_program_fails_to_start_by_name() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for (name, program, words) in [
        ("path", "no-such-program", "not found"),
        ("absolute", "/no/such/program", "no such file"),
        ("data", "/etc/passwd", "permission denied"),
        ("directory", "/etc", "permission denied"),
    ] {
        let id = client.create(&pod, name, &[program, "argument"]);
        let refusal = client.start(&id).unwrap_err();
        assert!(refusal.message().contains(program), "{refusal:?}");
        assert!(refusal.message().contains(words), "{refusal:?}");
        assert_ne!(refusal.code(), Code::NotFound, "the container exists: {refusal:?}");
        let status = client.wait_exited(&id);
        assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"), "{status:?}");
        assert!(status.message.contains(program), "{status:?}");
        assert!(status.finished_at > 0 && status.started_at == 0, "{status:?}");
        client.remove(&id).unwrap();
    }
}

#[test]
fn a_mount_of_a_directory_on_a_file_and_the_reverse_are_refused_by_path() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    let (dir, file) = (daemon.env.dir().join("a-dir"), daemon.env.dir().join("a-file"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(&file, "").unwrap();
    for (host, inside) in [(&dir, "/etc/passwd"), (&file, "/etc")] {
        let mut config = container("main", &["true"]);
        config.mounts.push(v1::Mount {
            container_path: inside.into(),
            host_path: host.display().to_string(),
            ..Default::default()
        });
        let (refusal, id) = refusal(&daemon, &pod, config);
        assert!(refusal.message().contains(inside), "{refusal:?}");
        assert_eq!(id, None, "refused at the start only");
        daemon.wait_until_like(&before);
    }
}

#[test]
fn a_mount_over_the_root_or_proc_is_refused() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let volume = daemon.env.dir().join("volume");
    std::fs::create_dir(&volume).unwrap();
    for inside in ["/", "/proc", "/proc/self", "/proc/sys/kernel"] {
        let mut config = container("main", &["true"]);
        config.mounts.push(v1::Mount {
            container_path: inside.into(),
            host_path: volume.display().to_string(),
            ..Default::default()
        });
        let (refusal, _) = refusal(&daemon, &pod, config);
        assert!(refusal.message().contains(inside), "{inside}: {refusal:?}");
    }
}

#[test]
fn a_device_mounted_over_a_directory_is_refused_with_one_message() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["true"]);
    let (container_path, host_path) = ("/dev".to_owned(), "/dev/null".to_owned());
    config.mounts.push(v1::Mount { container_path, host_path, ..Default::default() });
    let (refusal, _) = refusal(&daemon, &pod, config);
    let words = refusal.message().to_lowercase();
    assert!(words.contains("/dev: its source is not a directory, the target is a directory"), "{words}");
    assert_eq!(words.matches("not a directory").count(), 1, "{words}");
    assert!(!words.contains("invalid argument"), "{words}");
}

#[test]
fn an_unknown_user_is_named() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["true"]);
    security(&mut config).run_as_username = "nobody-here".into();
    let refusal = client.try_create(&pod, config).unwrap_err();
    assert!(refusal.message().contains("nobody-here"), "{refusal:?}");

    let mut config = container("main", &["id"]);
    security(&mut config).run_as_username = "user".into();
    let ended = client.finish_config(&pod, config);
    assert!(ended.stdout.starts_with("uid=1000(user) gid=1000(user) groups="), "{}", ended.stdout);
}

#[test]
fn a_missing_seccomp_profile_is_named() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let path = daemon.env.dir().join("no-profile.json").display().to_string();
    let mut config = container("main", &["true"]);
    security(&mut config).seccomp = Some(v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::Localhost.into(),
        localhost_ref: path.clone(),
    });
    let (refusal, id) = refusal(&daemon, &pod, config);
    assert!(refusal.message().contains(&path) && id.is_none(), "{refusal:?}");
}

#[test]
fn a_missing_device_is_named() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["true"]);
    let device =
        v1::Device { container_path: "/dev/x".into(), host_path: "/dev/no-such".into(), permissions: "rw".into() };
    config.devices.push(device);
    let (refusal, id) = refusal(&daemon, &pod, config);
    assert!(refusal.message().contains("/dev/no-such") && id.is_none(), "{refusal:?}");
}

#[test]
fn a_failed_create_leaves_nothing_behind() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    let mut config = container("main", &["true"]);
    // Found by the shim, after everything else is created.
    config.mounts.push(v1::Mount {
        container_path: "/proc/self".into(),
        host_path: "/tmp".into(),
        ..Default::default()
    });
    for _ in 0..3 {
        daemon.client().try_create(&pod, config.clone()).unwrap_err();
        daemon.wait_until_like(&before);
    }
    assert!(daemon.client().containers().is_empty());
    assert_eq!(daemon.client().script(&pod, "main", "echo fine").stdout, "fine\n");
}

#[test]
fn a_disconnected_client_leaves_nothing_unfinished() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let hasty = |name: &str, millis: u64| {
        let request =
            v1::RunPodSandboxRequest { config: Some(daemon.pod_config(name)), runtime_handler: String::new() };
        client.call(|mut c| async move {
            let mut request = tonic::Request::new(request);
            request.set_timeout(std::time::Duration::from_millis(millis));
            c.run_pod_sandbox(request).await
        })
    };
    for millis in [1, 2, 4, 8, 16, 32] {
        let name = format!("pod-{millis}");
        let answer = hasty(&name, millis);
        // Created completely or not at all: then the name is free, and a pod with it is complete.
        let pod = wait_for("the pod to be there or not", seconds(10), || {
            match client.try_run_pod(daemon.pod_config(&name)) {
                Ok(id) => Some(id),
                Err(refusal) if refusal.code() == Code::AlreadyExists => {
                    client.pods().into_iter().find(|pod| pod.metadata.as_ref().unwrap().name == name).map(|pod| pod.id)
                }
                Err(refusal) => panic!("{refusal:?} after {answer:?}"),
            }
        });
        let pod = Pod { id: pod, config: daemon.pod_config(&name) };
        assert_eq!(client.script(&pod, "main", "echo fine").stdout, "fine\n");
        client.remove_pod(&pod.id).unwrap();
    }
    daemon.env.wait_until_empty(Some(daemon.pid()));
}
