//! Volumes that a container's own image declares.

use std::fs;
use std::path::PathBuf;

use cri_api::v1;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;
use tar::EntryType;
use tonic::Code;

use crate::container::image_volumes::{DATA, daemon_with, data_in_layers, forget_image, image_mount, layers, refused};
use crate::support::client::{IDLE, container, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, times};
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::{Layer, header};

const VOLUMES: &str = "crisp.test/volumes:1";
/// A capability of a file, as the kernel keeps it.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A container of `image`.
fn of(image: &str, name: &str, command: &[&str]) -> v1::ContainerConfig {
    let mut config = container(name, command);
    config.image.as_mut().unwrap().image = image.into();
    config
}

fn with_volumes(paths: &[&str]) -> Archive {
    let volumes: serde_json::Map<_, _> = paths.iter().map(|path| ((*path).to_owned(), json!({}))).collect();
    Archive::new(VOLUMES).with("Volumes", json!(volumes))
}

/// A directory with something of every kind, in two layers, and one for another user.
fn volume_layers(archive: Archive) -> Archive {
    let lower = Layer::new(|tar| {
        let mut own = header(EntryType::Directory, "data", 0o2750);
        own.set_uid(1000);
        own.set_gid(2000);
        tar.entry(own, &[]);
        tar.file("data/file", 0o640, b"text\n");
        tar.hard_link("data/same", "data/file");
        tar.symlink("data/link", "../../etc/passwd");
        tar.entry(header(EntryType::Fifo, "data/fifo", 0o600), &[]);
        tar.dir("data/below", 0o711);
        tar.file("data/below/gone", 0o644, b"");
        tar.xattr("security.capability", &NET_RAW);
        tar.file("data/able", 0o600, b"");
    });
    archive.on_top(lower).on_top(Layer::new(|tar| tar.file("data/below/.wh.gone", 0o644, b"")))
}

#[test]
fn an_image_volume_begins_as_a_copy_and_is_writable_in_a_read_only_root() {
    let archive = volume_layers(with_volumes(&["/data", "/data/new", "relative"]));
    let mut daemon = daemon_with(&[archive]);
    let pod = daemon.run_pod("pod");
    let mut config = of(VOLUMES, "main", &IDLE);
    security(&mut config).readonly_rootfs = true;
    security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
    let id = daemon.client().run_config(&pod, config);
    let client = daemon.client();
    assert!(client.status(&id).mounts.is_empty(), "the status has requested mounts only");
    let look = "cd /data; stat -c '%n %a %u:%g %F %Y' file able below fifo link new /relative";
    let changed = crate::support::layer_fixture::CHANGED;
    let expected = format!(
        "file 640 0:0 regular file {changed}\n\
        able 600 0:0 regular empty file {changed}\nbelow 711 0:0 directory {changed}\n\
        fifo 600 0:0 fifo {changed}\nlink 777 0:0 symbolic link {changed}\n"
    );
    let seen = client.exec_script(&id, look);
    assert!(seen.starts_with(&expected), "{seen}");
    let rest: Vec<_> = seen[expected.len()..].lines().map(|line| line.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(rest, ["new 755 0:0 directory", "/relative 755 0:0 directory"]);
    assert_eq!(client.exec_script(&id, "stat -c '%a %u:%g' /data"), "2750 1000:2000\n");
    assert_eq!(
        client.exec_script(&id, "cd /data; stat -c %h file same; stat below/gone 2> /dev/null || echo gone"),
        "2\n2\ngone\n"
    );
    client.exec_script(&id, "echo mine > /data/mine");
    assert_ne!(client.exec(&id, &["touch", "/etc/x"]).code, 0);
    let other = client.run_config(&pod, of(VOLUMES, "other", &IDLE));
    assert_eq!(client.exec_script(&other, "ls /data/mine 2> /dev/null || echo none"), "none\n");
    let volume = daemon.env.root().join("containers").join(&id).join("volumes/0");
    let mut value = [0; 32];
    assert_eq!(rustix::fs::getxattr(volume.join("able"), "security.capability", &mut value[..]), Ok(NET_RAW.len()));
    assert_eq!(value[..NET_RAW.len()], NET_RAW);
    daemon.restart();
    assert_eq!(daemon.client().exec_script(&id, "cat /data/mine"), "mine\n");
    daemon.client().remove(&id).unwrap();
    assert!(!volume.exists());
}

#[test]
fn mounts_of_the_request_replace_volumes_of_the_image() {
    let daemon =
        daemon_with(&[volume_layers(with_volumes(&["/data", "/top/below", "/proc", "/sys/fs/cgroup", "/dev"]))]);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = daemon.env.dir().join("host");
    fs::create_dir(&host).unwrap();
    let host_mount = |at: &str| v1::Mount {
        container_path: at.into(),
        host_path: host.display().to_string(),
        readonly: true,
        ..Default::default()
    };
    let mut config = of(VOLUMES, "main", &["sh", "-c", "ls /data /top; ls /dev/null /proc/self/comm"]);
    config.mounts = vec![host_mount("/data/"), host_mount("/top")];
    assert_eq!(client.finish_config(&pod, config).stdout, "/data:\n\n/top:\n/dev/null\n/proc/self/comm\n");
    assert_eq!(fs::read_dir(&host).unwrap().count(), 0, "nothing is created in the client's volume");
}

#[test]
fn image_volumes_contain_no_files_of_the_host() {
    let env = TestEnv::new();
    let outside = env.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret\n").unwrap();
    let target = outside.display().to_string();
    let archive = with_volumes(&["/absolute", "/climbing", "/through/deep", "/dangling"])
        .with_link("absolute", &target)
        .with_link("climbing", &format!("../../../../../../../..{target}"))
        .with_link("through", env.dir().to_str().unwrap())
        .with_link("dangling", "no/such/place");
    env.import(&archive);
    let magic = Archive::new("crisp.test/magic:1").with("Volumes", json!({ "/self": {} }));
    env.import(&magic.with_link("self", "/proc/self/root"));
    let daemon = Daemon::on(env);
    let pod = daemon.run_pod("pod");
    // Each is where its link leads inside of the container, and empty.
    let script = format!("find /absolute/ /climbing/ /through/ /dangling/ {target} /no/such/place");
    let seen = daemon.client().finish_config(&pod, of(VOLUMES, "main", &["busybox", "sh", "-c", &script])).stdout;
    let mut seen: Vec<&str> = seen.lines().collect();
    let mut expected = vec!["/absolute/", "/climbing/", "/through/", "/through/deep", "/through/outside", "/dangling/"];
    expected.extend([target.as_str(), "/no/such/place"]);
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    let refusal = refused(&daemon, &pod, of("crisp.test/magic:1", "magic", &["true"]));
    assert!(refusal.message().contains("/self"), "{refusal:?}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert!(!daemon.env.dir().join("deep").exists());
}

#[test]
fn invalid_image_volumes_are_refused_and_leave_nothing() {
    let image = |n: usize| format!("crisp.test/bad-{n}:1");
    let many: Vec<String> = (0..2000).map(|n| format!("/v{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let bad: [&[&str]; 6] = [&["/../../etc"], &["/data/.."], &["/"], &["/etc/passwd"], &["/etc/passwd/x"], &many];
    let bad = &bad[..times(bad.len(), 2)];
    let archives: Vec<Archive> = (0..bad.len())
        .map(|n| {
            let mut archive = with_volumes(bad[n]);
            archive.name = image(n);
            archive
        })
        .collect();
    let daemon = daemon_with(&archives);
    let pod = daemon.run_pod("pod");
    for (n, paths) in bad.iter().enumerate() {
        let refusal = refused(&daemon, &pod, of(&image(n), "main", &["true"]));
        assert_eq!(refusal.code(), Code::InvalidArgument, "{paths:?}: {refusal:?}");
        let words = if paths.len() > 1 { "2000" } else { paths[0] };
        assert!(refusal.message().contains(words), "{refusal:?}");
    }
}

#[test]
fn an_image_volume_on_a_full_disk_is_refused_and_leaves_nothing() {
    let env = TestEnv::new();
    let big = vec![7; 8 << 20];
    env.import(&with_volumes(&["/data"]).on_top(Layer::new(|tar| tar.file("data/big", 0o644, &big))));
    let small: PathBuf = env.root().join("containers");
    fs::create_dir_all(&small).unwrap();
    mount("crisp-test", &small, "tmpfs", MountFlags::empty(), Some(c"size=4m")).unwrap();
    let daemon = Daemon::on(env);
    let pod = daemon.run_pod("pod");
    let refusal = refused(&daemon, &pod, of(VOLUMES, "main", &["true"]));
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
    assert!(refusal.message().contains("\"/data\"") && refusal.message().contains("No space left"), "{refusal:?}");
    assert_eq!(daemon.client().script(&pod, "main", "echo fine").stdout, "fine\n", "others go on");
    daemon.client().remove_everything();
    unmount(&small, UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_daemon_killed_while_it_fills_image_volumes_leaves_nothing() {
    for point in ["create.volumes", "create.bundle", "create.launch"] {
        let env = TestEnv::new();
        env.import(&data_in_layers());
        env.import(&volume_layers(with_volumes(&["/data"])));
        let mut daemon = Daemon::with_failpoints(env, &format!("{point}=kill"));
        let pod = daemon.run_pod("pod");
        let (before, all) = (daemon.snapshot(), layers(&daemon));
        let config = |name| v1::ContainerConfig {
            mounts: vec![image_mount(DATA, "", "/image")],
            ..of(VOLUMES, name, &["sh", "-c", "cat /data/file /image/sub/a"])
        };
        daemon.client().try_create(&pod, config("main")).unwrap_err();
        daemon.wait_ended();
        daemon.revive();
        daemon.wait_until_like(&before);
        assert_eq!(daemon.client().finish_config(&pod, config("main")).stdout, "text\nnew a\n", "{point}");
        daemon.client().remove_everything();
        forget_image(daemon.client(), DATA);
        assert_eq!(layers(&daemon), all - 3, "{point}");
    }
}
