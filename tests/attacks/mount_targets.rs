//! Attacks by files of an image at the mount points of kernel file systems and devices, and by
//! paths that lead there.

use std::fs;
use std::path::PathBuf;

use cri_api::v1;
use tar::EntryType;

use super::Outside;
use super::masked_paths::MASKED;
use crate::support::client::{Pod, container, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, times};
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;

/// Creates a container of `image` and runs it, if possible. Its terminal and its volumes add paths
/// that are resolved in the image.
fn try_all(daemon: &Daemon, pod: &Pod, image: &str) -> usize {
    let client = daemon.client();
    let mut ran = 0;
    for tty in [false, true] {
        let mut config = container("main", &["true"]);
        config.image.as_mut().unwrap().image = image.to_owned();
        config.tty = tty;
        security(&mut config).masked_paths = MASKED.map(str::to_owned).into();
        config.devices = ["/dev/asked", "/dev/deep/asked"]
            .map(|path| v1::Device {
                container_path: path.into(),
                host_path: "/dev/null".into(),
                permissions: "rw".into(),
            })
            .into();
        if let Ok(id) = client.try_create(pod, config) {
            ran += usize::from(client.start(&id).is_ok());
            client.remove(&id).unwrap();
        }
    }
    ran
}

#[test]
fn links_below_dev_create_or_change_nothing_on_the_host() {
    const NAMES: [&str; 14] = [
        "null", "console", "ptmx", "shm", "mqueue", "fd", "stdin", "stdout", "tty", "random", "core", "kcore", "asked",
        "deep",
    ];
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    let image = |place: usize| format!("crisp.test/dev-{place}:1");
    // The place of terminals is a link itself, or holds one.
    let cases = [
        (outside.absolute("file"), "dev/pts"),
        (outside.climbing("dir"), "dev/pts/ptmx"),
        (outside.absolute("dir/made"), "dev/pts"),
    ];
    let cases = &cases[..times(cases.len(), 1)];
    for (place, (target, terminals)) in cases.iter().enumerate() {
        let layer = Layer::new(|tar| {
            NAMES.iter().for_each(|name| tar.symlink(&format!("dev/{name}"), target));
            tar.symlink(terminals, target);
        });
        env.import(&Archive::new(&image(place)).on_top(layer));
    }
    let daemon = Daemon::on(env);
    let pod = daemon.run_pod("pod");
    for (place, (target, _)) in cases.iter().enumerate() {
        // Files of an image in /dev are never visible: each container has its own /dev.
        assert_eq!(try_all(&daemon, &pod, &image(place)), 2, "{target}");
        outside.check(target);
    }
}

#[test]
fn mount_points_of_kernel_file_systems_that_are_not_directories_are_refused() {
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    let names = ["proc", "sys", "dev"];
    let kinds = ["link", "climbing", "dangling", "file", "fifo", "device"];
    let kinds = &kinds[..times(kinds.len(), 2)];
    let image = |name: &str, kind: &str| format!("crisp.test/{name}-{kind}:1");
    for name in names {
        for kind in kinds {
            let layer = Layer::new(|tar| {
                // First the directory that is below has to go.
                tar.file(&format!(".wh.{name}"), 0o644, b"");
                match *kind {
                    "link" => tar.symlink(name, &outside.absolute("dir")),
                    "climbing" => tar.symlink(name, &outside.climbing("dir")),
                    "dangling" => tar.symlink(name, &outside.absolute("made")),
                    "file" => tar.file(name, 0o644, b""),
                    "fifo" => tar.entry(crate::support::layer_fixture::header(EntryType::Fifo, name, 0o644), &[]),
                    _ => tar.device(EntryType::Char, name, (1, 3)),
                }
            });
            env.import(&Archive::new(&image(name, kind)).on_top(layer));
        }
    }
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    for name in names {
        for kind in kinds {
            let mut config = container("main", &["true"]);
            config.image.as_mut().unwrap().image = image(name, kind);
            let refusal = client.try_create(&pod, config).unwrap_err();
            assert!(refusal.message().contains(&format!("/{name}")), "{name} {kind}: {refusal:?}");
            outside.check(&format!("{name} {kind}"));
        }
    }
    daemon.wait_until_like(&before);
}

#[test]
fn volumes_over_proc_are_refused_by_every_path_and_link() {
    const IMAGE: &str = "crisp.test/to-proc:1";
    let env = TestEnv::new();
    let archive = Archive::new(IMAGE).with_dir("deep").with_link("p", "/proc").with_link("up", "deep/../proc/self");
    env.import(&archive.with_link("root", "/").with_link("dot", "deep/.."));
    let volume = env.dir().join("volume");
    fs::create_dir(&volume).unwrap();
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    let places = [
        "/proc/",
        "//proc",
        "/./proc",
        "/deep/../proc",
        "/proc/..",
        "/p",
        "/p/sys",
        "/p/self/attr",
        "/up",
        "/up/attr",
        "/proc/1/attr",
        "/proc/thread-self",
        "/root",
        "/dot",
        "/dot/proc",
        "/..",
    ];
    for place in places {
        let mut config = container("main", &["true"]);
        config.image.as_mut().unwrap().image = IMAGE.into();
        config.mounts.push(v1::Mount {
            container_path: place.into(),
            host_path: volume.display().to_string(),
            ..Default::default()
        });
        let refusal = client.try_create(&pod, config).expect_err(place);
        assert!(refusal.message().contains(place.trim_end_matches('/')), "{place}: {refusal:?}");
    }
    daemon.wait_until_like(&before);
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
}

#[test]
fn devices_are_created_inside_the_root_for_every_path_and_image() {
    const IMAGE: &str = "crisp.test/devices:1";
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    env.import(&Archive::new(IMAGE).with_link("away", &outside.absolute("dir")).with_link("root", "/"));
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let places = [
        "/dev/../away/made".to_owned(),
        "/dev/../away/target".to_owned(),
        format!("/dev/../../../..{}", outside.absolute("made")),
        "/dev/fd/made".to_owned(),
        "/dev/stdin".to_owned(),
        "/dev/core".to_owned(),
        "/dev/pts/made".to_owned(),
        "/dev/null/made".to_owned(),
        "/away/made".to_owned(),
        "/proc/made".to_owned(),
        "/etc/made".to_owned(),
    ];
    for place in places {
        let mut config = container("main", &["true"]);
        config.image.as_mut().unwrap().image = IMAGE.into();
        config.devices =
            vec![v1::Device { container_path: place.clone(), host_path: "/dev/null".into(), permissions: "rw".into() }];
        // Refused, or created where the path leads inside the root.
        if let Ok(id) = client.try_create(&pod, config) {
            client.start(&id).ok();
            client.wait_exited(&id);
            client.remove(&id).unwrap();
        }
        outside.check(&place);
        assert!(!PathBuf::from("/dev/made").exists() && !PathBuf::from("/etc/made").exists(), "{place}");
    }
}
