//! Attacks on the host's mounts through volumes with bidirectional propagation.

use std::fs;
use std::path::{Path, PathBuf};

use cri_api::v1;
use cri_api::v1::MountPropagation;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use crate::support::client::{container, security};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;
use crate::support::kernel_state;

const IMAGE: &str = "crisp.test/etc-link:1";

/// A directory like the host's `/etc` or `/sys`: its mounts, and those below it, are shared.
/// Removed with the test environment.
fn shared(env: &TestEnv) -> PathBuf {
    let dir = env.dir().join("shared");
    fs::create_dir(&dir).unwrap();
    for point in [dir.clone(), dir.join("below")] {
        fs::create_dir_all(&point).unwrap();
        mount("crisp-test", &point, "tmpfs", MountFlags::empty(), None).unwrap();
        mount_change(&point, MountPropagationFlags::SHARED).unwrap();
        fs::create_dir_all(point.join("nested")).unwrap();
    }
    for file in ["hosts", "resolv.conf", "secret", "below/secret"] {
        fs::write(dir.join(file), "of the host\n").unwrap();
    }
    dir
}

fn both_ways(host: &Path, inside: &str) -> v1::Mount {
    let propagation = MountPropagation::PropagationBidirectional.into();
    v1::Mount { propagation, ..volume(host, inside) }
}

fn volume(host: &Path, inside: &str) -> v1::Mount {
    v1::Mount { container_path: inside.into(), host_path: host.display().to_string(), ..Default::default() }
}

#[test]
fn mounts_into_a_volume_for_a_container_do_not_propagate_to_the_host() {
    let env = TestEnv::new();
    env.import(&Archive::new(IMAGE).with_link("link", "/etc"));
    let host = shared(&env);
    let own = env.dir().join("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("file"), "own\n").unwrap();
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = kernel_state::mounts_under(&host);
    assert_eq!(before.len(), 2);
    // By its name, and by a link that only the image knows of.
    for (round, place) in ["/etc", "/link"].into_iter().enumerate() {
        let mut config = container(&format!("c{round}"), &crate::support::client::IDLE);
        config.image.as_mut().unwrap().image = IMAGE.into();
        config.mounts = vec![both_ways(&host, place), volume(&own, "/etc/nested"), volume(&own, "/etc/below/nested")];
        security(&mut config).masked_paths = vec!["/etc/secret".into(), "/etc/below/secret".into()];
        security(&mut config).readonly_paths = vec!["/etc/below".into()];
        let add_capabilities = vec!["SYS_ADMIN".to_owned()];
        security(&mut config).capabilities = Some(v1::Capability { add_capabilities, ..Default::default() });
        let id = client.run_config(&pod, config);
        assert_eq!(kernel_state::mounts_under(&host), before, "{place}: mounted on the host");
        // The container has all that it was to have.
        let seen = "cat /etc/hostname /etc/nested/file /etc/below/nested/file /etc/secret /etc/below/secret";
        assert_eq!(client.exec_script(&id, seen), "pod\nown\nown\n");
        assert_eq!(fs::read_to_string(host.join("secret")).unwrap(), "of the host\n");
        assert_eq!(fs::read_to_string(host.join("hosts")).unwrap(), "of the host\n");
        // The container's own mounts propagate, as requested, and so do those of the host.
        client.exec_script(&id, "mkdir /etc/mine && mount -t tmpfs x /etc/mine && echo mine > /etc/mine/file");
        assert_eq!(fs::read_to_string(host.join("mine/file")).unwrap(), "mine\n");
        client.exec_script(&id, "umount /etc/mine && busybox rmdir /etc/mine");
        fs::create_dir(host.join("hosts.d")).unwrap();
        mount("crisp-test", host.join("hosts.d"), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(host.join("hosts.d/file"), "later\n").unwrap();
        assert_eq!(client.exec_script(&id, "cat /etc/hosts.d/file"), "later\n");
        rustix::mount::unmount(host.join("hosts.d"), rustix::mount::UnmountFlags::empty()).unwrap();
        fs::remove_dir(host.join("hosts.d")).unwrap();
        client.remove(&id).unwrap();
        assert_eq!(kernel_state::mounts_under(&host), before, "{place}: left on the host");
    }
}
