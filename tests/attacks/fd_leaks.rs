//! Attacks through descriptors that leak, and through links to them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use cri_api::v1;
use cri_api::v1::NamespaceMode;
use serde_json::json;

use super::Outside;
use crate::support::client::{Client, container, namespaces, pod_namespaces, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, times};
use crate::support::image_fixture::{Archive, BOX};

/// Returns the open files of a process, from the host's kernel.
fn descriptors(pid: i32) -> Vec<(String, PathBuf)> {
    let dir = format!("/proc/{pid}/fd");
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read_link(entry.path()).unwrap())
        })
        .collect();
    all.sort();
    all
}

fn names(pid: i32) -> Vec<String> {
    descriptors(pid).into_iter().map(|(name, _)| name).collect()
}

/// A launch with everything that needs descriptors: volumes, files, images, devices.
fn with_all_sorts(daemon: &Daemon, mut config: v1::ContainerConfig) -> v1::ContainerConfig {
    let volume = daemon.env.dir().join("volume");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("file"), "").unwrap();
    let bind = |host: PathBuf, inside: &str| v1::Mount {
        container_path: inside.into(),
        host_path: host.display().to_string(),
        ..Default::default()
    };
    config.mounts = vec![
        bind(volume.clone(), "/a"),
        bind(volume.clone(), "/b/c"),
        bind(volume.join("file"), "/file"),
        crate::container::image_volumes::image_mount(BOX, "", "/image"),
        crate::container::image_volumes::image_mount(BOX, "etc", "/image-etc"),
    ];
    config.devices = vec![v1::Device {
        container_path: "/dev/asked".into(),
        host_path: "/dev/null".into(),
        permissions: "r".into(),
    }];
    config
}

#[test]
fn programs_of_containers_start_with_three_descriptors() {
    let daemon = Daemon::start();
    let client = daemon.client();
    for mode in [NamespaceMode::Container, NamespaceMode::Pod, NamespaceMode::Node] {
        let pod = daemon.run_pod_with("pod", |config| *pod_namespaces(config) = namespaces(mode));
        for (name, tty, stdin) in [("plain", false, false), ("fed", false, true), ("terminal", true, true)] {
            let mut config = with_all_sorts(&daemon, container(name, &["sleep", "100000"]));
            security(&mut config).namespace_options = Some(namespaces(mode));
            (config.tty, config.stdin) = (tty, stdin);
            let id = client.run_config(&pod, config);
            let pid = daemon.pids(&id)[0];
            assert_eq!(names(pid), ["0", "1", "2"], "{name}: {:?}", descriptors(pid));
            // The fourth is the directory itself, while it is read.
            assert_eq!(client.exec(&id, &["ls", "/proc/self/fd"]).stdout, "0\n1\n2\n3\n");
        }
        client.stop_pod(&pod.id).unwrap();
        client.remove_pod(&pod.id).unwrap();
    }
}

/// Requests a container and returns its output if it runs.
pub(crate) fn outcome(
    client: &Client,
    pod: &crate::support::client::Pod,
    config: v1::ContainerConfig,
) -> Result<String, String> {
    let id = client.try_create(pod, config).map_err(|refusal| refusal.message().to_owned())?;
    let started = client.start(&id).map_err(|refusal| refusal.message().to_owned());
    let printed = started.map(|()| {
        client.wait_exited(&id);
        crate::support::client::text_of(&client.lines(&id), "stdout")
    });
    client.remove(&id).unwrap();
    printed
}

#[test]
fn create_refuses_a_working_directory_on_the_host() {
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    let image = |number: u32| format!("crisp.test/fd-{number}:1");
    let numbers: Vec<u32> = (3..64).step_by(times(1, 9)).collect();
    for number in &numbers[..3] {
        env.import(&Archive::new(&image(*number)).with("WorkingDir", json!(format!("/proc/self/fd/{number}"))));
    }
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let secret = outside.climbing("file");
    let show = ["sh", "-c", &format!("pwd; cat {secret}")];
    for (place, number) in numbers.iter().enumerate() {
        let mut config = with_all_sorts(&daemon, container("main", &show));
        match place {
            0..3 => config.image.as_mut().unwrap().image = image(*number),
            _ if number % 2 == 0 => config.working_dir = format!("/proc/self/fd/{number}"),
            _ => config.working_dir = format!("/proc/self/fd/{number}/../../.."),
        }
        let refusal = outcome(client, &pod, config).unwrap_err();
        assert!(refusal.contains("/proc/self/fd"), "{refusal}");
    }
    outside.check("working directories");
}

#[test]
fn exec_refuses_a_working_directory_on_the_host() {
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    let daemon = Daemon::on(env);
    let client = daemon.client();
    for mode in [NamespaceMode::Container, NamespaceMode::Node] {
        let pod = daemon.run_pod_with("pod", |config| *pod_namespaces(config) = namespaces(mode));
        let mut config = container("main", &crate::support::client::IDLE);
        config.working_dir = "/work".into();
        security(&mut config).namespace_options = Some(namespaces(mode));
        let id = client.run_config(&pod, config);
        let (shim, pid) = (daemon.shims()[0], daemon.pid());
        let mut places: Vec<String> = vec!["/proc/self/root".into(), "/proc/self/root/..".into()];
        places.extend((3..64).step_by(times(1, 20)).map(|number| format!("/proc/self/fd/{number}")));
        if mode == NamespaceMode::Node {
            places.extend([shim, pid].map(|pid| format!("/proc/{pid}/root")));
            places.extend([shim, pid].map(|pid| format!("/proc/{pid}/cwd")));
            places.extend((0..8).map(|fd| format!("/proc/{shim}/fd/{fd}")));
        }
        let reset = |to: &str| fs_in(&daemon, &id, "work", to);
        for place in places {
            reset(&place);
            let show = ["sh", "-c", &format!("pwd; cat {}", outside.climbing("file"))];
            // Refused, or where the link leads inside; never outside.
            if let Ok(done) = client.try_exec(&id, &show, 10) {
                let printed = String::from_utf8(done.stdout).unwrap();
                assert_eq!(printed, "/\n", "{place}");
                assert!(place.starts_with("/proc/self/root"), "{place} was entered");
            }
        }
        client.stop_pod(&pod.id).unwrap();
        client.remove_pod(&pod.id).unwrap();
    }
    outside.check("commands");
}

#[test]
fn programs_are_not_found_through_descriptors_of_crisp() {
    const TOOL: &str = "neighbours-tool";
    let daemon = Daemon::start();
    let client = daemon.client();
    let victim = client.run_idle(&daemon.run_pod("victim"), "main");
    client.exec_script(&victim, &format!("cp /bin/busybox /{TOOL}"));
    let root = format!("{}/root", daemon.pids(&victim)[0]);
    // The kernel resolves a program while crisp's descriptors are still open. A process that may
    // trace a process of the same user only needs its pid; a process that executes a program can
    // write to it later.
    let through = (3..128).map(|number| format!("/proc/self/fd/{number}/{root}"));
    let path = through.chain(["/bin".into()]).collect::<Vec<_>>().join(":");
    for mode in [NamespaceMode::Container, NamespaceMode::Pod] {
        let pod = daemon.run_pod_with("attacker", |config| *pod_namespaces(config) = namespaces(mode));
        let with_path = |name: &str, command: &[&str]| {
            let mut config = with_all_sorts(&daemon, container(name, command));
            security(&mut config).namespace_options = Some(namespaces(mode));
            config.envs.push(v1::KeyValue { key: "PATH".into(), value: path.as_bytes().to_vec() });
            client.try_create(&pod, config).unwrap()
        };
        let refusal = client.start(&with_path("first", &[TOOL])).unwrap_err();
        assert!(refusal.message().contains("not found"), "{refusal:?}");
        let idle = with_path("idle", &crate::support::client::IDLE);
        client.start(&idle).unwrap();
        let refusal = client.try_exec(&idle, &[TOOL], 10).unwrap_err();
        assert!(refusal.message().contains("not found"), "{refusal:?}");
        client.stop_pod(&pod.id).unwrap();
        client.remove_pod(&pod.id).unwrap();
    }
    assert!(client.try_exec(&victim, &[&format!("/{TOOL}")], 10).is_ok(), "it is there");
}

#[test]
fn a_command_cannot_change_the_hosts_null_device() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let host = fs::metadata("/dev/null").unwrap();
    let given = || client.exec_script(&id, "stat -Lc '%t:%T %d:%i' /proc/self/fd/0");
    assert_eq!(given(), client.exec_script(&id, "stat -c '%t:%T %d:%i' /dev/null"), "the container's own");
    client.exec_script(&id, "rm /dev/null; echo trap > /dev/null");
    assert_eq!(given(), format!("1:3 {}:{}\n", host.dev(), host.ino()), "the exec got another file");
    // If this ever succeeds, its mode is unchanged.
    for change in ["chmod 666", "chown 0:0", "touch"] {
        let done = client.exec(&id, &["sh", "-c", &format!("{change} /proc/self/fd/0")]);
        assert!(done.code != 0 && done.stderr.contains("Read-only"), "{change}: {done:?}");
    }
    assert_eq!(client.exec(&id, &["cat"]).stdout, "");
}

/// Replaces `name` in the root of a container by a link to `target`, as its own processes could.
fn fs_in(daemon: &Daemon, container: &str, name: &str, target: &str) {
    let path = format!("/proc/{}/root/{name}", daemon.pids(container)[0]);
    let old = fs::symlink_metadata(&path).unwrap();
    if old.is_dir() {
        fs::remove_dir(&path).unwrap()
    } else {
        fs::remove_file(&path).unwrap()
    }
    std::os::unix::fs::symlink(target, path).unwrap();
}
