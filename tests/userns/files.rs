//! The files of images and of the pod, the writable layer, devices and streams.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cri_api::v1;
use serde_json::json;
use tar::EntryType;

use super::{FIRST, able, as_user, idle, inside, run_pod, script};
use crate::container::image_volumes::{DATA, daemon_with, data_in_layers, image_mount};
use crate::support::client::security;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::{Layer, header};

const OWNED: &str = "crisp.test/owned:1";
/// A capability of a file, `NET_RAW` in the effective set, as the kernel keeps it.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// An image with files of others than root, one with its owner's rights and one with a capability.
fn owned() -> Archive {
    let busybox = fs::read("/bin/busybox").unwrap();
    let layer = Layer::new(|tar| {
        let mut home = header(EntryType::Directory, "home", 0o750);
        home.set_uid(1000);
        home.set_gid(2000);
        tar.entry(home, &[]);
        tar.owned_file("home/mine", (1000, 2000), crate::support::layer_fixture::CHANGED, b"text\n");
        tar.file("bin/busybox-root", 0o4755, &busybox);
        tar.xattr("security.capability", &NET_RAW);
        tar.file("bin/busybox-able", 0o755, &busybox);
        // A process that may become root needs no password.
        tar.file("etc/passwd", 0o644, b"root::0:0::/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n");
        tar.dir("data", 0o755);
        tar.owned_file("data/file", (1000, 2000), crate::support::layer_fixture::CHANGED, b"data\n");
    });
    Archive::new(OWNED).with("Volumes", json!({ "/data": {}, "/empty": {} })).on_top(layer)
}

fn of_owned(mut config: v1::ContainerConfig) -> v1::ContainerConfig {
    config.image.as_mut().unwrap().image = OWNED.into();
    config
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

#[test]
fn files_of_an_image_have_the_owners_of_the_image() {
    let daemon = daemon_with(&[owned()]);
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let id = client.run_config(&pod, of_owned(idle("main")));
    let seen =
        client.exec_script(&id, "stat -c '%n %u:%g %a' / /bin/busybox /root /tmp /home /home/mine /bin/busybox-root");
    let expected = "/ 0:0 755\n/bin/busybox 0:0 755\n/root 0:0 700\n/tmp 0:0 1777\n\
        /home 1000:2000 750\n/home/mine 1000:2000 640\n/bin/busybox-root 0:0 4755\n";
    assert_eq!(seen, expected);
    // Nothing is changed in the layers: another pod with other ids, or none, sees the same.
    let plain = daemon.run_pod("plain");
    let mut config = of_owned(crate::support::client::container("main", &crate::support::client::IDLE));
    security(&mut config).run_as_user = None;
    let plain = client.run_config(&plain, config);
    assert_eq!(client.exec_script(&plain, "stat -c %u:%g /home/mine"), "1000:2000\n");
}

#[test]
fn written_files_have_the_mapped_owner_on_disk() {
    let daemon = daemon_with(&[owned()]);
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let id = client.run_config(&pod, of_owned(idle("main")));
    client.exec_script(
        &id,
        "echo more >> /home/mine; echo new > /etc/new; chown 1000:2000 /etc/new; mkdir /var; rm /bin/busybox-able",
    );
    assert_eq!(
        client.exec_script(&id, "stat -c %u:%g /home/mine /etc/new /var; cat /home/mine"),
        "1000:2000\n1000:2000\n0:0\ntext\nmore\n"
    );
    let upper = daemon.env.root().join("containers").join(&id).join("upper");
    let (user, root) = ((FIRST + 1000, FIRST + 2000), (FIRST, FIRST));
    for (path, ids) in
        [("home/mine", user), ("etc/new", user), ("var", root), ("home", user), ("etc", root), ("", root)]
    {
        assert_eq!(owner(&upper.join(path)), ids, "{path}");
    }
    // It is measured, and removed with the container, as without a user namespace.
    let stats = || {
        let request = v1::ContainerStatsRequest { container_id: id.clone() };
        let stats = client.call(|mut c| async move { c.container_stats(request).await }).unwrap().stats.unwrap();
        stats.writable_layer.and_then(|layer| layer.inodes_used).filter(|inodes| inodes.value >= 6)
    };
    wait_for("the layer to be measured", seconds(30), stats);
    client.remove(&id).unwrap();
    assert!(!upper.exists());
}

#[test]
fn owners_modes_and_file_capabilities_apply() {
    let daemon = daemon_with(&[owned()]);
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let id = client.run_config(&pod, of_owned(as_user(idle("main"), 1000)));
    let status =
        crate::support::kernel_state::status_lines(&client.exec_script(&id, "busybox-able cat /proc/self/status"));
    assert_eq!((&*status["Uid"], &*status["CapEff"]), ("1000 1000 1000 1000", "0000000000002000"));
    let become_root = ["su", "-c", "id -u; ls /root"];
    assert_eq!(client.exec(&id, &[&["busybox-root"], &become_root[..]].concat()).stdout, "0\n");
    let refused = client.exec(&id, &[&["busybox"], &become_root[..]].concat());
    assert!(refused.code != 0 && refused.stdout.is_empty(), "{refused:?}");
}

#[test]
fn the_pods_files_and_shared_memory_belong_to_its_root() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let (a, b) = (client.run_config(&pod, idle("a")), client.run_config(&pod, as_user(idle("b"), 1000)));
    let files = "/etc/resolv.conf /etc/hostname /etc/hosts";
    assert_eq!(client.exec_script(&a, &format!("stat -c %u:%g {files}")), "0:0\n0:0\n0:0\n");
    client.exec_script(&a, "echo 127.0.0.9 more >> /etc/hosts");
    assert!(client.exec_script(&b, "cat /etc/hosts").ends_with("127.0.0.9 more\n"));
    let refused = client.exec(&b, &["sh", "-c", "echo x >> /etc/hosts"]);
    assert!(refused.stderr.contains("Permission denied"), "{refused:?}");
    assert_eq!(
        client.exec_script(&a, "stat -c '%u:%g %a' /dev/shm /dev /dev/pts /proc/1"),
        "0:0 1777\n0:0 755\n0:0 755\n0:0 555\n"
    );
    client.exec_script(&b, "echo shared > /dev/shm/file");
    assert_eq!(client.exec_script(&a, "cat /dev/shm/file; stat -c %u:%g /dev/shm/file"), "shared\n1000:1000\n");
}

#[test]
fn image_volumes_and_image_mounts_have_mapped_owners() {
    let daemon = daemon_with(&[owned(), data_in_layers()]);
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let mut config = of_owned(idle("main"));
    config.mounts = vec![
        image_mount(DATA, "", "/image"),
        image_mount(OWNED, "home/mine", "/one"),
        image_mount(OWNED, "data", "/two"),
    ];
    // As the kubelet does; another mapping is another view.
    (config.mounts[0].uid_mappings, config.mounts[0].gid_mappings) = (super::ids(), super::ids());
    let other = vec![super::line(0, FIRST + 50, 65000)];
    (config.mounts[2].uid_mappings, config.mounts[2].gid_mappings) = (other.clone(), other);
    security(&mut config).readonly_rootfs = true;
    let id = client.run_config(&pod, config);
    let seen =
        client.exec_script(&id, "stat -c '%n %u:%g' /data /data/file /empty /image /image/sub/a /one /two /two/file");
    let expected = "/data 0:0\n/data/file 1000:2000\n/empty 0:0\n/image 0:0\n/image/sub/a 0:0\n/one 1000:2000\n/two 50:50\n/two/file 1050:2050\n";
    assert_eq!(seen, expected);
    assert_eq!(
        client
            .exec_script(&id, "cat /image/sub/a; echo new > /data/new; echo more >> /data/file; stat -c %u /data/new"),
        "new a\n0\n"
    );
    let write = client.exec(&id, &["touch", "/image/x"]);
    assert!(write.stderr.contains("Read-only file system"), "{write:?}");
    // On disk these have the ids of the image, as the files they were copied from.
    let volumes = daemon.env.root().join("containers").join(&id).join("volumes");
    assert_eq!((owner(&volumes.join("0/new")), owner(&volumes.join("0/file"))), ((0, 0), (1000, 2000)));
}

#[test]
fn only_requested_devices_exist_and_none_can_be_created() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let device = |inside: &str, host: &str, permissions: &str| v1::Device {
        container_path: inside.into(),
        host_path: host.into(),
        permissions: permissions.into(),
    };
    let mut config = able(as_user(idle("main"), 0), "MKNOD");
    // Not where the host has it, and where the host has another.
    config.devices = vec![
        device("/dev/wanted", "/dev/kmsg", "r"),
        device("/dev/random", "/dev/full", "rw"),
        device("/dev/deep/er", "/dev/null", "rwm"),
    ];
    let id = client.run_config(&pod, config);
    let seen = client.exec_script(&id, "stat -c '%n %F %t:%T %u:%g' /dev/wanted /dev/random /dev/deep/er");
    let expected = "/dev/wanted character special file 1:b 0:0\n/dev/random character special file 1:7 0:0\n/dev/deep/er character special file 1:3 0:0\n";
    assert_eq!(seen, expected);
    assert_eq!(
        client.exec_script(&id, "head -c 2 /dev/zero | wc -c; echo x > /dev/deep/er; echo x > /dev/null"),
        "2\n"
    );
    let full = client.exec(&id, &["sh", "-c", "echo x > /dev/random"]);
    assert!(full.stderr.contains("No space left"), "{full:?}");
    let write = client.exec(&id, &["sh", "-c", "echo x > /dev/wanted"]);
    assert!(write.stderr.contains("not permitted"), "{write:?}");
    let make = client.exec(&id, &["busybox", "mknod", "/tmp/null", "c", "1", "3"]);
    assert!(make.stderr.contains("not permitted"), "{make:?}");
    for name in ["null", "zero", "full", "urandom", "tty"] {
        assert_eq!(
            client.exec_script(&id, &format!("test -c /dev/{name} && stat -c %a /dev/{name}")),
            "666\n",
            "{name}"
        );
    }
}

#[test]
fn standard_streams_and_terminals_belong_to_the_user() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let write = "echo out > /dev/stdout; echo err > /dev/stderr";
    for (name, user) in [("root", 0), ("user", 1000)] {
        let ended = client.finish_config(&pod, as_user(script(name, write), user));
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "err\n"), "{name}");
        let id = client.run_config(&pod, as_user(idle(&format!("{name}-idle")), user));
        let done = client.exec(&id, &["sh", "-c", write]);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"), "{name}");
        let mut config = as_user(
            script(
                &format!("{name}-tty"),
                "tty=$(readlink /proc/self/fd/0); stat -c '%u:%g' $tty; echo tty > /dev/tty; echo console > /dev/console",
            ),
            user,
        );
        config.tty = true;
        assert_eq!(client.finish_config(&pod, config).stdout, format!("{user}:5\r\ntty\r\nconsole\r\n"), "{name}");
    }
}

#[test]
fn masked_paths_and_a_read_only_root_work_in_a_user_namespace() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let mut config = able(idle("main"), "SYS_ADMIN");
    security(&mut config).masked_paths = vec!["/proc/keys".into(), "/proc/acpi".into(), "/sys/firmware".into()];
    security(&mut config).readonly_paths = vec!["/proc/sys".into(), "/tmp".into()];
    security(&mut config).readonly_rootfs = true;
    config.working_dir = "/not/there/yet".into();
    let id = client.run_config(&pod, config);
    assert_eq!(
        client.exec_script(&id, "cat /proc/keys; ls /sys/firmware; pwd; stat -c %u:%g ."),
        "/not/there/yet\n0:0\n"
    );
    for path in ["/x", "/tmp/x", "/proc/sys/kernel/domainname", "/not/there/yet/x"] {
        let write = client.exec(&id, &["sh", "-c", &format!("echo x > {path}")]);
        assert!(write.stderr.contains("Read-only file system"), "{path}: {write:?}");
    }
    let cgroups = client.exec_script(&id, "grep ' /sys/fs/cgroup' /proc/self/mountinfo");
    for line in cgroups.lines() {
        assert!(line.split(' ').nth(5).unwrap().starts_with("ro,"), "{line}");
    }
    let text = client.finish_config(&pod, inside("fds", &["ls", "/proc/self/fd"])).stdout;
    assert_eq!(text, "0\n1\n2\n3\n");
}
