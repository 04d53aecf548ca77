//! Volumes: visibility, write access and mount propagation.

use std::fs;
use std::path::{Path, PathBuf};

use cri_api::v1;
use cri_api::v1::MountPropagation;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::support::client::{container, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, times};
use crate::support::image_fixture::Archive;
use crate::support::kernel_state;

fn volume(host: &Path, inside: &str) -> v1::Mount {
    v1::Mount { container_path: inside.into(), host_path: host.display().to_string(), ..Default::default() }
}

fn make_dir(daemon: &Daemon, name: &str) -> PathBuf {
    let dir = daemon.env.dir().join(name);
    fs::create_dir(&dir).unwrap();
    dir
}

/// A directory with shared propagation. Removed with the test environment.
fn shared_dir(daemon: &Daemon) -> PathBuf {
    let dir = make_dir(daemon, "shared");
    mount("crisp-test", &dir, "tmpfs", MountFlags::empty(), None).unwrap();
    mount_change(&dir, MountPropagationFlags::SHARED).unwrap();
    dir
}

fn mount_below(dir: &Path, name: &str) {
    let inner = dir.join(name);
    fs::create_dir_all(&inner).unwrap();
    mount("crisp-test", &inner, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(inner.join("file"), "mounted\n").unwrap();
}

fn may_mount(config: &mut v1::ContainerConfig) {
    let add_capabilities = vec!["SYS_ADMIN".to_owned()];
    security(config).capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
}

#[test]
fn a_volume_is_shared_with_the_host_and_a_read_only_one_cannot_be_written() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = make_dir(&daemon, "volume");
    fs::write(host.join("in"), "from outside\n").unwrap();
    let mut config = container("main", &crate::support::client::IDLE);
    config.mounts = vec![
        volume(&host, "/volume"),
        v1::Mount { readonly: true, ..volume(&host, "/deep/in/here") },
        volume(&host.join("in"), "/etc/one-file"),
    ];
    let id = client.run_config(&pod, config);
    assert_eq!(client.exec_script(&id, "cat /volume/in /deep/in/here/in /etc/one-file"), "from outside\n".repeat(3));
    client.exec_script(&id, "echo from inside > /volume/out");
    assert_eq!(fs::read_to_string(host.join("out")).unwrap(), "from inside\n");
    let write = client.exec(&id, &["touch", "/deep/in/here/file"]);
    assert!(write.code != 0 && write.stderr.contains("Read-only file system"), "{write:?}");
}

#[test]
fn volumes_are_stacked_by_path_in_any_order_of_the_request() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let (outer, inner) = (make_dir(&daemon, "outer"), make_dir(&daemon, "inner"));
    fs::write(outer.join("o"), "").unwrap();
    fs::write(inner.join("i"), "").unwrap();
    let mut config = container("main", &["sh", "-c", "ls /data /data/below"]);
    config.mounts = vec![volume(&inner, "/data/below"), volume(&outer, "/data")];
    let text = daemon.client().finish_config(&pod, config).stdout;
    assert_eq!(text, "/data:\nbelow\no\n\n/data/below:\ni\n");
}

#[test]
fn later_mounts_of_the_host_do_not_appear_in_a_private_volume() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = shared_dir(&daemon);
    mount_below(&host, "before");
    let mut config = container("main", &crate::support::client::IDLE);
    config.mounts = vec![volume(&host, "/volume")];
    may_mount(&mut config);
    let id = client.run_config(&pod, config);
    mount_below(&host, "after");
    assert_eq!(client.exec_script(&id, "cat /volume/before/file; ls /volume/after"), "mounted\n");
    client.exec_script(&id, "mkdir /volume/own && mount -t tmpfs x /volume/own");
    assert!(!kernel_state::mounts_under(&host).contains(&host.join("own")));
}

#[test]
fn host_to_container_propagation_works_in_one_direction() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = shared_dir(&daemon);
    let mut config = container("main", &crate::support::client::IDLE);
    let propagation = MountPropagation::PropagationHostToContainer.into();
    config.mounts = vec![v1::Mount { propagation, ..volume(&host, "/volume") }];
    may_mount(&mut config);
    let id = client.run_config(&pod, config);
    mount_below(&host, "after");
    assert_eq!(client.exec_script(&id, "cat /volume/after/file"), "mounted\n");
    client.exec_script(&id, "mkdir /volume/own && mount -t tmpfs x /volume/own");
    assert!(!kernel_state::mounts_under(&host).contains(&host.join("own")));
}

#[test]
fn bidirectional_propagation_brings_the_containers_mounts_to_the_host() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = shared_dir(&daemon);
    let mut config = container("main", &crate::support::client::IDLE);
    let propagation = MountPropagation::PropagationBidirectional.into();
    config.mounts = vec![v1::Mount { propagation, ..volume(&host, "/volume") }];
    may_mount(&mut config);
    let id = client.run_config(&pod, config);
    mount_below(&host, "after");
    assert_eq!(client.exec_script(&id, "cat /volume/after/file"), "mounted\n");
    client.exec_script(&id, "mkdir /volume/own && mount -t tmpfs x /volume/own && echo inside > /volume/own/file");
    assert_eq!(fs::read_to_string(host.join("own/file")).unwrap(), "inside\n");
}

#[test]
fn propagation_from_a_private_mount_is_refused_by_path() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let host = make_dir(&daemon, "private");
    mount("crisp-test", &host, "tmpfs", MountFlags::empty(), None).unwrap();
    mount_change(&host, MountPropagationFlags::PRIVATE).unwrap();
    let mut config = container("main", &["true"]);
    let propagation = MountPropagation::PropagationBidirectional.into();
    config.mounts = vec![v1::Mount { propagation, ..volume(&host, "/volume") }];
    let refusal = daemon.client().try_create(&pod, config).unwrap_err();
    assert!(refusal.message().contains(&host.display().to_string()), "{refusal:?}");
    assert!(refusal.message().contains("shared"), "{refusal:?}");
}

#[test]
fn mounts_below_are_read_only_only_if_requested_recursively() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = shared_dir(&daemon);
    mount_below(&host, "sub");
    let mut config = container("main", &crate::support::client::IDLE);
    config.mounts = vec![
        v1::Mount { readonly: true, ..volume(&host, "/plain") },
        v1::Mount { readonly: true, recursive_read_only: true, ..volume(&host, "/all") },
    ];
    let id = client.run_config(&pod, config);
    assert_ne!(client.exec(&id, &["touch", "/plain/x"]).code, 0);
    assert_eq!(client.exec(&id, &["touch", "/plain/sub/x"]).code, 0);
    assert_ne!(client.exec(&id, &["touch", "/all/x"]).code, 0);
    let deep = client.exec(&id, &["touch", "/all/sub/x"]);
    assert!(deep.code != 0 && deep.stderr.contains("Read-only file system"), "{deep:?}");
}

#[test]
fn a_read_only_root_is_read_only_and_its_volumes_are_not() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = make_dir(&daemon, "volume");
    let mut config = container("main", &crate::support::client::IDLE);
    config.mounts = vec![volume(&host, "/made/for/it")];
    security(&mut config).readonly_rootfs = true;
    let id = client.run_config(&pod, config);
    for path in ["/file", "/etc/passwd", "/tmp/file"] {
        let write = client.exec(&id, &["touch", path]);
        assert!(write.code != 0 && write.stderr.contains("Read-only file system"), "{path}: {write:?}");
    }
    client.exec_script(&id, "touch /made/for/it/file /dev/shm/file");
}

#[test]
fn links_in_an_image_do_not_lead_mounts_out_of_it() {
    let env = TestEnv::new();
    let outside = env.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    let target = outside.display().to_string();
    let archive = Archive::new("crisp.test/links:1")
        .with_link("absolute", &target)
        .with_link("climbing", &format!("../../../../../..{target}"));
    env.import(&archive);
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = make_dir(&daemon, "volume");
    fs::write(host.join("file"), "volume\n").unwrap();
    for (number, link) in ["/absolute/new", "/climbing/new", "/absolute"].into_iter().enumerate() {
        let mut config = container(&format!("c{number}"), &["cat", &format!("{link}/file")]);
        config.image.as_mut().unwrap().image = "crisp.test/links:1".into();
        config.mounts = vec![volume(&host, link)];
        match client.try_create(&pod, config) {
            Ok(id) => {
                client.start(&id).unwrap();
                client.wait_exited(&id);
                assert_eq!(client.lines(&id)[0].text, "volume");
            }
            Err(refusal) => assert!(refusal.message().contains(link), "{refusal:?}"),
        }
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "a file was created on the host");
    assert!(kernel_state::mounts_under(&outside).is_empty());
}

#[test]
fn links_at_the_mount_points_of_kernel_file_systems_do_not_lead_to_the_host() {
    const NAMES: [&str; 4] = ["dev", "proc", "sys", "dev/shm"];
    let env = TestEnv::new();
    let outside = env.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    let image = |name: &str| format!("crisp.test/no-{}:1", name.replace('/', "-"));
    let names = &NAMES[..times(NAMES.len(), 1)];
    for name in names {
        // The place exists in the image as well, so that following the link inside would do no
        // harm.
        let target = outside.display().to_string();
        env.import(&Archive::new(&image(name)).with_dir(&target).with_link(name, &target));
    }
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for name in names {
        let mut config = container(&name.replace('/', "-"), &["cat", "/proc/self/comm"]);
        config.image.as_mut().unwrap().image = image(name);
        // Refused, or mounted where the link leads inside the container; never on the host.
        if let Ok(id) = client.try_create(&pod, config) {
            client.start(&id).ok();
            client.wait_exited(&id);
        }
        let made: Vec<_> = fs::read_dir(&outside).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(made.is_empty(), "with a link for /{name}, created on the host: {made:?}");
        assert!(kernel_state::mounts_under(&outside).is_empty());
    }
}

#[test]
fn masked_paths_are_hidden_and_read_only_paths_cannot_be_written() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &crate::support::client::IDLE);
    security(&mut config).masked_paths = vec!["/proc/keys".into(), "/sys/firmware".into(), "/no/such/path".into()];
    security(&mut config).readonly_paths = vec!["/proc/sys".into(), "/no/such/path".into()];
    let id = client.run_config(&pod, config);
    assert_eq!(client.exec_script(&id, "cat /proc/keys; ls /sys/firmware"), "");
    let write = client.exec(&id, &["sh", "-c", "echo 1 > /proc/sys/kernel/msgmax"]);
    assert!(write.code != 0 && write.stderr.contains("Read-only file system"), "{write:?}");
    let write = client.exec(&id, &["sh", "-c", "echo x > /sys/kernel/mm/ksm/run || touch /sys/x"]);
    assert!(write.code != 0 && write.stderr.contains("Read-only file system"), "{write:?}");
}

#[test]
fn volumes_over_etc_and_dev_do_not_hide_the_pods_files() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let etc = daemon.env.dir().join("etc");
    fs::create_dir(&etc).unwrap();
    let mut config = container(
        "main",
        &[
            "/bin/sh",
            "-c",
            "cat /etc/hostname; grep -c ' /dev/shm ' /proc/mounts; ls /dev/null /dev/fd/ > /dev/null && echo dev",
        ],
    );
    config.mounts.push(v1::Mount {
        container_path: "/etc".into(),
        host_path: etc.display().to_string(),
        ..Default::default()
    });
    config.mounts.push(v1::Mount { container_path: "/dev".into(), host_path: "/dev".into(), ..Default::default() });
    let ended = client.finish_config(&pod, config);
    assert!(ended.stdout.ends_with("dev\n"), "{}", ended.stdout);
}
