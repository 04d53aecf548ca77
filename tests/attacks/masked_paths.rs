//! Attacks on masked paths, and on the kernel file systems that mask them.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use cri_api::v1;
use rustix::fs::{PROC_SUPER_MAGIC, StatVfsMountFlags, statfs, statvfs};
use tar::EntryType;

use super::Outside;
use crate::support::client::{container, security};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;

const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The paths that the kubelet masks in every container.
pub(super) const MASKED: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// A path in a container, from the host.
fn inside(daemon: &Daemon, id: &str, path: &str) -> PathBuf {
    format!("/proc/{}/root{path}", daemon.pids(id)[0]).into()
}

fn hiding(name: &str, paths: &[&str]) -> v1::ContainerConfig {
    let mut config = container(name, &crate::support::client::IDLE);
    security(&mut config).masked_paths = paths.iter().map(|path| (*path).to_owned()).collect();
    config
}

/// Hidden as the kernel sees it: the null device, or an empty directory, and neither to be written.
fn assert_hidden(daemon: &Daemon, id: &str, path: &str) {
    let found = inside(daemon, id, path);
    let meta = fs::metadata(&found).unwrap();
    if meta.is_dir() {
        assert_eq!(fs::read_dir(&found).unwrap().count(), 0, "{path}");
        assert_eq!(u64::try_from(statfs(&found).unwrap().f_type).unwrap(), TMPFS_MAGIC, "{path}");
    } else {
        let null = fs::metadata("/dev/null").unwrap();
        assert!(meta.file_type().is_char_device(), "{path}");
        assert_eq!(meta.rdev(), null.rdev(), "{path}");
    }
    assert!(statvfs(&found).unwrap().f_flag.contains(StatVfsMountFlags::RDONLY), "{path} can be written");
}

#[test]
fn masked_paths_are_the_null_device_or_an_empty_directory_in_every_image() {
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    let images = [("plain", vec![]), ("links", vec!["dev/null", "dev/full", "dev/zero"])];
    for (name, links) in &images {
        let archive = Archive::new(&format!("crisp.test/{name}:1"));
        let target = outside.absolute("null");
        env.import(&links.iter().fold(archive.with_dir(&target), |archive, link| archive.with_link(link, &target)));
    }
    let devices = Archive::new("crisp.test/devices:1").on_top(Layer::new(|tar| {
        // Another device, a FIFO and a file under the names that count.
        tar.device(EntryType::Char, "dev/null", (1, 5));
        tar.entry(crate::support::layer_fixture::header(EntryType::Fifo, "dev/zero", 0o666), &[]);
        tar.file("proc/keys", 0o644, b"fake");
        tar.dir("sys/firmware", 0o755);
        tar.file("sys/firmware/fake", 0o644, b"fake");
    }));
    env.import(&devices);
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for name in ["plain", "links", "devices"] {
        for tty in [false, true] {
            let mut config = hiding(&format!("{name}-{tty}"), &MASKED);
            config.image.as_mut().unwrap().image = format!("crisp.test/{name}:1");
            config.tty = tty;
            let id = client.run_config(&pod, config);
            for path in MASKED.iter().filter(|path| inside(&daemon, &id, path).exists()) {
                assert_hidden(&daemon, &id, path);
            }
            for path in ["/proc/timer_list", "/proc/keys"] {
                assert!(inside(&daemon, &id, path).exists(), "{path} is not there to be hidden");
            }
        }
    }
    outside.check("hiding");
}

#[test]
fn a_container_cannot_unmount_or_change_masks() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_config(&pod, hiding("main", &["/proc/keys", "/proc/fs"]));
    for attack in [
        "umount /proc/keys",
        "umount /proc/fs",
        "mount -o remount,rw,bind /proc/fs",
        "rm /proc/keys",
        "chmod 777 /proc/keys",
        "chown 1000 /proc/keys",
        "touch /proc/fs/file",
        "chmod 700 /proc/fs",
        "busybox mknod /proc/fs/kmem c 1 2",
    ] {
        assert_ne!(client.exec(&id, &["sh", "-c", attack]).code, 0, "{attack}");
    }
    for path in ["/proc/keys", "/proc/fs"] {
        assert_hidden(&daemon, &id, path);
    }
    // A container may change its own null device.
    client.exec_script(&id, "chmod 600 /dev/null && chown 7 /dev/null");
    assert_hidden(&daemon, &id, "/proc/keys");
    let null = fs::metadata("/dev/null").unwrap();
    assert_eq!((null.permissions().mode() & 0o777, null.uid()), (0o666, 0));
}

#[test]
fn masked_and_read_only_paths_apply_inside_volumes() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let volume = daemon.env.dir().join("volume");
    fs::create_dir_all(volume.join("hidden/deep")).unwrap();
    fs::create_dir(volume.join("fixed")).unwrap();
    for file in ["secret", "hidden/deep/file", "fixed/file"] {
        fs::write(volume.join(file), Outside::SECRET).unwrap();
    }
    let bind = |host: &str, inside: &str| v1::Mount {
        container_path: inside.into(),
        host_path: host.into(),
        ..Default::default()
    };
    // A pod with the host's /sys does not see the masked paths in it.
    let mut config = hiding("main", &["/volume/secret", "/volume/hidden", "/sys/firmware", "/volume/none"]);
    config.mounts = vec![bind(volume.to_str().unwrap(), "/volume"), bind("/sys", "/sys")];
    security(&mut config).readonly_paths = vec!["/volume/fixed".into(), "/proc/sys".into(), "/volume/none".into()];
    let id = client.run_config(&pod, config);
    assert_hidden(&daemon, &id, "/volume/secret");
    assert_hidden(&daemon, &id, "/volume/hidden");
    if PathBuf::from("/sys/firmware").exists() {
        assert_hidden(&daemon, &id, "/sys/firmware");
    }
    assert_eq!(client.exec_script(&id, "cat /volume/fixed/file"), Outside::SECRET);
    for write in ["touch /volume/fixed/new", "echo x > /volume/fixed/file", "echo 1 > /proc/sys/kernel/msgmax"] {
        let done = client.exec(&id, &["sh", "-c", write]);
        assert!(done.code != 0 && done.stderr.contains("Read-only file system"), "{write}: {done:?}");
    }
    client.exec_script(&id, "echo mine > /volume/new");
    assert_eq!(fs::read_to_string(volume.join("secret")).unwrap(), Outside::SECRET);
    assert_eq!(fs::read_to_string(volume.join("hidden/deep/file")).unwrap(), Outside::SECRET);
}

#[test]
fn writes_to_proc_go_to_the_kernel_and_not_to_files_of_the_image() {
    const IMAGE: &str = "crisp.test/fake-proc:1";
    let fakes = [
        "proc/self/oom_score_adj",
        "proc/self/attr/exec",
        "proc/self/attr/apparmor/exec",
        "proc/thread-self/attr/exec",
        "proc/thread-self/attr/keycreate",
        "proc/1/oom_score_adj",
        "proc/sys/net/ipv4/ip_unprivileged_port_start",
        "proc/sys/kernel/shm_rmid_forced",
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory.max",
    ];
    let env = TestEnv::new();
    env.import(&Archive::new(IMAGE).on_top(Layer::new(|tar| {
        for fake in fakes {
            tar.file(fake, 0o666, b"fake");
        }
    })));
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        let sysctls = &mut config.linux.as_mut().unwrap().sysctls;
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "77".into());
        sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
    });
    let mut config = container("main", &crate::support::client::IDLE);
    config.image.as_mut().unwrap().image = IMAGE.into();
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { oom_score_adj: 777, memory_limit_in_bytes: 64 << 20, ..Default::default() });
    let id = client.run_config(&pod, config);
    let pid = daemon.pids(&id)[0];
    for place in ["/proc", "/proc/1", "/proc/sys/net/ipv4"] {
        let found = statfs(inside(&daemon, &id, place)).unwrap().f_type;
        assert_eq!(found, PROC_SUPER_MAGIC, "{place}");
    }
    let points = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let proc: Vec<&str> = points.lines().filter(|line| line.split(' ').nth(4) == Some("/proc")).collect();
    assert!(proc.len() == 1 && proc[0].contains(" - proc ") && proc[0].split(' ').nth(3) == Some("/"), "{proc:?}");
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap(), "777\n");
    assert_eq!(client.exec_script(&id, "cat /proc/self/oom_score_adj"), "777\n");
    let seen = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced";
    assert_eq!(client.exec_script(&id, seen), "77\n1\n");
    // Nothing was written to the files below the mounts: no file of the image was copied up.
    let upper = daemon.env.root().join("containers").join(&id).join("upper");
    for fake in fakes {
        assert!(!upper.join(fake).exists(), "{fake} was written");
    }
}
