//! Mount options of a volume apply to the whole volume, and to nothing else.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cri_api::v1;
use rustix::mount::{MountFlags, mount};
use tonic::Code;

use crate::container::image_volumes::{DATA, daemon_with, data_in_layers, image_mount};
use crate::support::client::{Client, IDLE, container};
use crate::support::harness::Daemon;

fn volume(host: &Path, inside: &str, options: &[&str]) -> v1::Mount {
    v1::Mount {
        container_path: inside.into(),
        host_path: host.display().to_string(),
        mount_options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Default::default()
    }
}

/// A directory on a file system of its own, with another file system in it. Both go with the
/// ground.
fn host_dir(daemon: &Daemon) -> PathBuf {
    let dir = daemon.env.dir().join("volume");
    fs::create_dir(&dir).unwrap();
    mount("crisp-test", &dir, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::create_dir(dir.join("below")).unwrap();
    mount("crisp-test", dir.join("below"), "tmpfs", MountFlags::empty(), None).unwrap();
    for tool in [dir.join("tool"), dir.join("below/tool")] {
        fs::write(&tool, "#!/bin/sh\necho it runs\n").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    }
    dir
}

/// Returns the flags of the mount at `path` from the kernel's mount table in the container.
fn flags(client: &Client, id: &str, path: &str) -> Vec<String> {
    let line = client.exec_script(id, &format!("grep ' {path} ' /proc/self/mountinfo"));
    line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect()
}

#[test]
fn nothing_is_executed_from_a_noexec_volume_or_a_mount_in_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = host_dir(&daemon);
    let mut config = container("main", &IDLE);
    config.mounts = vec![volume(&host, "/free", &[]), volume(&host, "/bound", &["noexec"])];
    let id = client.run_config(&pod, config);
    for tool in ["/free/tool", "/free/below/tool"] {
        assert_eq!(client.exec_script(&id, tool), "it runs\n");
    }
    for tool in ["/bound/tool", "/bound/below/tool"] {
        let refusal = client.try_exec(&id, &[tool], 0).unwrap_err();
        assert!(refusal.message().contains("permission denied"), "{tool}: {refusal:?}");
    }
    assert_eq!(client.exec_script(&id, "cat /bound/tool | sh"), "it runs\n", "it is read all the same");
}

#[test]
fn devices_on_a_nodev_volume_cannot_be_opened() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = host_dir(&daemon);
    let mut config = container("main", &IDLE);
    config.mounts = vec![volume(&host, "/free", &[]), volume(&host, "/bound", &["nodev"])];
    let id = client.run_config(&pod, config);
    client
        .exec_script(&id, "mknod /free/null c 1 3 && mknod /free/below/null c 1 3 && cat /free/null /free/below/null");
    for null in ["/bound/null", "/bound/below/null"] {
        let opened = client.exec(&id, &["cat", null]);
        assert!(opened.code != 0 && opened.stderr.contains("Permission denied"), "{null}: {opened:?}");
    }
}

#[test]
fn mount_options_apply_to_the_mounts_that_request_them_only() {
    let daemon = daemon_with(&[data_in_layers()]);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let host = host_dir(&daemon);
    let cases: [(&str, &[&str]); 6] = [
        ("/plain", &[]),
        ("/tight", &["nosuid", "nodev", "noexec"]),
        ("/suid", &["nosuid"]),
        ("/noatime", &["noatime"]),
        ("/strict", &["strictatime"]),
        ("/dirs", &["nodiratime", "relatime"]),
    ];
    let mut config = container("main", &IDLE);
    config.mounts = cases.iter().map(|(path, options)| volume(&host, path, options)).collect();
    config.mounts.push(v1::Mount { readonly: true, ..volume(&host, "/read", &["noexec"]) });
    config.mounts.push(v1::Mount { mount_options: vec!["noexec".into()], ..image_mount(DATA, "", "/image") });
    let asked = config.mounts.clone();
    let id = client.run_config(&pod, config);
    for (path, options) in cases {
        for path in [path.to_owned(), format!("{path}/below")] {
            let found = flags(client, &id, &path);
            for option in ["nosuid", "nodev", "noexec", "noatime", "nodiratime"] {
                assert_eq!(
                    found.iter().any(|f| f == option),
                    options.contains(&option),
                    "{option} at {path}: {found:?}"
                );
            }
            // The kernel lists neither for a mount with strict times.
            let lazy = !options.contains(&"strictatime") && !options.contains(&"noatime");
            assert_eq!(found.iter().any(|f| f == "relatime"), lazy, "{path}: {found:?}");
            assert!(found.contains(&"rw".to_owned()), "{path}: {found:?}");
        }
    }
    let read = flags(client, &id, "/read");
    assert!(read.contains(&"ro".to_owned()) && read.contains(&"noexec".to_owned()), "{read:?}");
    let image = flags(client, &id, "/image");
    assert!(["ro", "nosuid", "nodev", "noexec"].iter().all(|f| image.iter().any(|g| g == f)), "{image:?}");
    assert!(client.try_exec(&id, &["/image/tool"], 0).unwrap_err().message().contains("permission denied"));
    let shown = client.status(&id).mounts;
    for mount in &asked {
        let found = shown.iter().find(|m| m.container_path == mount.container_path).unwrap();
        assert_eq!(found.mount_options, mount.mount_options, "{}", mount.container_path);
    }
}

#[test]
fn unknown_mount_options_are_refused_and_known_ones_reported() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let status = client.call(|mut c| async move { c.status(v1::StatusRequest::default()).await }).unwrap();
    assert!(status.features.unwrap().mount_options);
    let pod = daemon.run_pod("pod");
    for option in ["exec", "ro", "remount", "size=1", "noexec,exec"] {
        let mut config = container("main", &["true"]);
        config.mounts = vec![volume(daemon.env.dir(), "/v", &["nodev", option])];
        let refusal = client.try_create(&pod, config).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        let named = refusal.message().starts_with(&format!("config.mounts[0].mount_options[1]: {option:?}"));
        assert!(named, "{refusal:?}");
    }
}
