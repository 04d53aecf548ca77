//! Volumes of pods with user namespaces: owners, flags, submounts, propagation.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use cri_api::v1;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};

use super::{FIRST, able, as_user, idle, ids, line, run_pod};
use crate::support::client::{IDLE, container};
use crate::support::harness::Daemon;

fn volume(host: &Path, inside: &str, ids: Vec<v1::IdMapping>) -> v1::Mount {
    v1::Mount {
        container_path: inside.into(),
        host_path: host.display().to_string(),
        uid_mappings: ids.clone(),
        gid_mappings: ids,
        ..Default::default()
    }
}

/// A directory with a file of root's and one of another user's.
fn make_dir(daemon: &Daemon, name: &str) -> PathBuf {
    let dir = daemon.env.dir().join(name);
    fs::create_dir(&dir).unwrap();
    for (name, id) in [("root", 0), ("user", 1000)] {
        fs::write(dir.join(name), name).unwrap();
        chown(dir.join(name), Some(id), Some(id)).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    dir
}

fn owner(path: PathBuf) -> u32 {
    fs::symlink_metadata(path).unwrap().uid()
}

#[test]
fn an_idmapped_volume_has_the_same_owners_inside_and_on_the_host() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let host = make_dir(&daemon, "volume");
    let with = |mut config: v1::ContainerConfig| {
        config.mounts = vec![
            volume(&host, "/volume", ids()),
            volume(&host.join("user"), "/etc/one-file", ids()),
            v1::Mount { readonly: true, ..volume(&host, "/read", ids()) },
            v1::Mount { readonly: true, recursive_read_only: true, ..volume(&host, "/recursive", ids()) },
            volume(&host, "/bare", vec![]),
            volume(&host, "/shifted", vec![line(0, FIRST + 7, 2000)]),
        ];
        client.run_config(&pod, config)
    };
    let (root, user) = (with(idle("root")), with(as_user(idle("user"), 1000)));
    let seen = client
        .exec_script(&root, "cd /volume; stat -c %u:%g . root user; stat -c %u:%g /etc/one-file /read/user; cat user");
    assert_eq!(seen, "0:0\n0:0\n1000:1000\n1000:1000\n1000:1000\nuser");
    client.exec_script(&root, "echo x > /volume/by-root; chown 3000 /volume/root");
    assert_eq!(
        client.exec_script(&user, "cat /etc/one-file; echo y >> /volume/user; stat -c %u /shifted/by-root"),
        "user7\n"
    );
    let owners = ["by-root", "root", "user"].map(|name| owner(host.join(name)));
    assert_eq!(owners, [0, 3000, 1000]);
    // Files of an unmapped owner in the container, since the client requests no mapping.
    assert_eq!(client.exec_script(&root, "stat -c %u /bare/user; ls /bare | wc -l"), "65534\n3\n");
    for path in ["/bare/user", "/bare/x", "/read/x", "/recursive/x"] {
        let done = client.exec(&root, &["sh", "-c", &format!("echo x >> {path}")]);
        assert!(done.code != 0, "{path}: {done:?}");
    }
    let status = client.status(&root);
    assert_eq!((&status.mounts[0].uid_mappings, &status.mounts[4].uid_mappings), (&ids(), &vec![]));
}

#[test]
fn root_with_cap_sys_admin_cannot_remove_the_flags_of_a_volume() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let host = make_dir(&daemon, "volume");
    let below = host.join("below");
    fs::create_dir(&below).unwrap();
    fs::write(below.join("covered"), "").unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("crisp-test", &below, "tmpfs", flags, None).unwrap();
    let pod = run_pod(&daemon, "pod");
    let mut config = able(idle("main"), "SYS_ADMIN");
    config.mounts = vec![
        v1::Mount { readonly: true, ..volume(&host, "/read", ids()) },
        v1::Mount { readonly: true, ..volume(&host.join("root"), "/etc/one-file", ids()) },
        volume(&host, "/write", ids()),
    ];
    let id = client.run_config(&pod, config);
    let own = "mkdir /own && mount -t tmpfs own /own && mount -o remount,bind,ro /own && mount -o remount,bind,rw /own";
    client.exec_script(&id, own);
    for change in [
        "mount -o remount,bind,rw /read",
        "mount -o remount,bind,rw /etc/one-file",
        "mount -o remount,bind,rw,exec /write/below",
        "umount /write/below",
        "mount --bind /read /own && mount -o remount,bind,rw /own",
    ] {
        let done = client.exec(&id, &["sh", "-c", change]);
        assert!(done.code != 0, "{change}: {done:?}");
    }
    client.exec(&id, &["sh", "-c", "touch /read/new /own/new; echo x > /etc/one-file"]);
    assert!(!host.join("new").exists());
    assert_eq!(fs::read_to_string(host.join("root")).unwrap(), "root");
    client.exec_script(&id, "touch /write/new");
    assert!(host.join("new").exists());
}

#[test]
fn mounts_below_a_volume_are_idmapped_if_possible() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let (able_one, unable) = (make_dir(&daemon, "able"), make_dir(&daemon, "unable"));
    for dir in [&able_one, &unable] {
        fs::create_dir(dir.join("below")).unwrap();
    }
    mount_bind(make_dir(&daemon, "bound"), able_one.join("below")).unwrap();
    mount("crisp-test", unable.join("below"), "proc", MountFlags::empty(), None).unwrap();
    let mut config = idle("main");
    config.mounts = vec![volume(&able_one, "/able", ids()), volume(&unable, "/unable", ids())];
    let id = client.run_config(&pod, config);
    let seen = client.exec_script(&id, "stat -c %u /able/root /able/below/user /unable/user /unable/below/uptime");
    assert_eq!(seen, "0\n1000\n1000\n65534\n");
    let log = daemon.env.read_log();
    let told = log.lines().filter(|line| line.contains("does not support ID-mapped mounts")).collect::<Vec<_>>();
    assert!(told.len() == 1 && told[0].contains("/unable"), "{told:?}");
}

#[test]
fn mounts_propagate_from_the_host_and_not_to_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let host = make_dir(&daemon, "shared");
    mount_bind(&host, &host).unwrap();
    mount_change(&host, MountPropagationFlags::SHARED).unwrap();
    fs::create_dir(host.join("later")).unwrap();
    let mut config = able(idle("main"), "SYS_ADMIN");
    let propagation = v1::MountPropagation::PropagationHostToContainer.into();
    config.mounts = vec![v1::Mount { propagation, ..volume(&host, "/volume", ids()) }];
    let id = client.run_config(&pod, config);
    mount("crisp-test", host.join("later"), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(host.join("later/file"), "mounted\n").unwrap();
    assert_eq!(client.exec_script(&id, "cat /volume/later/file"), "mounted\n");
    client.exec_script(&id, "mkdir /volume/own && mount -t tmpfs x /volume/own");
    assert!(!crate::support::kernel_state::mounts_under(&host).contains(&host.join("own")));
}

#[test]
fn a_file_system_without_idmapped_mounts_is_named_with_its_mount() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let before = daemon.snapshot();
    let mut config = idle("main");
    config.mounts = vec![volume(Path::new("/proc/fs"), "/volume", ids())];
    let refusal = client.try_create(&pod, config).unwrap_err();
    assert!(
        refusal.message().contains("mount at /volume: the file system of /proc/fs does not support ID-mapped mounts"),
        "{refusal:?}"
    );
    daemon.wait_until_like(&before);
}

#[test]
fn a_container_with_the_hosts_ids_can_have_an_idmapped_volume() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = make_dir(&daemon, "volume");
    let mut config = container("main", &IDLE);
    config.mounts = vec![volume(&host, "/volume", vec![line(0, 5000, 1), line(1000, 0, 1)])];
    let id = client.run_config(&pod, config);
    assert_eq!(client.exec_script(&id, "stat -c %u /volume /volume/root /volume/user"), "5000\n5000\n0\n");
    client.exec_script(&id, "echo x > /volume/new");
    assert_eq!(owner(host.join("new")), 1000);
}
