//! Full file systems: that of the state, and that of the writable layers.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;

use cri_api::v1::{ContainerState, PodSandboxState};
use rustix::mount::{MountFlags, mount};
use tonic::Code;

use crate::support::client::container;
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::update::{assert_limits, limits};

/// A daemon with one of its directories on a small file system, which is removed with the test
/// environment.
fn with_little_room(directory: impl FnOnce(&TestEnv) -> PathBuf) -> TestEnv {
    let env = TestEnv::new();
    let disk = env.dir().join("disk");
    fs::create_dir(&disk).unwrap();
    let options = CString::new("mode=0700,size=2m").unwrap();
    mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
    std::os::unix::fs::symlink(&disk, directory(&env)).unwrap();
    env
}

/// Fills the file system until it is dropped.
struct Filling(PathBuf);

impl Filling {
    fn of(env: &TestEnv) -> Self {
        let path = env.dir().join("disk/filling");
        let mut file = File::create(&path).unwrap();
        let full = loop {
            if let Err(error) = file.write_all(&[1; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        Self(path)
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// Checks that the error is the full disk.
fn assert_full(refusal: &tonic::Status) {
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
    assert!(refusal.message().contains("No space left"), "{refusal:?}");
}

#[test]
fn a_full_state_directory_refuses_new_pods_and_keeps_running_ones_readable() {
    let mut daemon = Daemon::on(with_little_room(TestEnv::state));
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(500, 64));
    let full = Filling::of(&daemon.env);
    let before = daemon.snapshot();
    let client = daemon.client();
    assert_full(&client.try_run_pod(daemon.pod_config("late")).unwrap_err());
    assert_full(&client.try_create(&pod, container("late", &["true"])).unwrap_err());
    daemon.wait_until_like(&before);
    assert_full(&client.update(&id, limits(700, 128)).unwrap_err());
    assert_limits(&daemon, &id, 500, 64);
    daemon.restart();
    let client = daemon.client();
    assert_eq!(client.exec_script(&id, "echo alive"), "alive\n");
    assert_eq!(client.status(&id).state(), ContainerState::ContainerRunning);
    assert_limits(&daemon, &id, 500, 64);
    drop(full);
    client.update(&id, limits(700, 128)).unwrap();
    assert_limits(&daemon, &id, 700, 128);
    daemon.run_pod("late");
}

#[test]
fn a_full_state_directory_does_not_prevent_removal() {
    let mut daemon = Daemon::on(with_little_room(TestEnv::state));
    let (pod, other) = (daemon.run_pod("pod"), daemon.run_pod("other"));
    let polite = ["sh", "-c", "trap 'exit 3' TERM; while :; do sleep 0.1; done"];
    let id = daemon.client().run(&pod, "main", &polite);
    let brief =
        daemon.client().run(&other, "brief", &["sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 7"]);
    let _full = Filling::of(&daemon.env);
    let client = daemon.client();
    client.exec_script(&brief, "echo > /tmp/end");
    assert_eq!(client.wait_exited(&brief).exit_code, 7);
    client.stop(&id, 30).unwrap();
    assert_eq!(client.status(&id).exit_code, 3);
    client.stop_pod(&pod.id).unwrap();
    assert_eq!(client.pod_status(&pod.id).state(), PodSandboxState::SandboxNotready);
    daemon.restart();
    let client = daemon.client();
    assert_eq!(client.pod_status(&pod.id).state(), PodSandboxState::SandboxNotready);
    assert_eq!((client.status(&id).exit_code, client.status(&brief).exit_code), (3, 7));
    client.remove(&id).unwrap();
    for pod in [&pod, &other] {
        client.remove_pod(&pod.id).unwrap();
    }
    assert!(client.pods().is_empty() && client.containers().is_empty());
}

#[test]
fn a_full_disk_of_writable_layers_keeps_containers_running_and_removable() {
    let daemon = Daemon::on(with_little_room(|env| env.root().join("containers")));
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    let full = Filling::of(&daemon.env);
    assert_eq!(client.exec_script(&id, "(echo more > /more) 2> /dev/null || echo full"), "full\n");
    let before = daemon.snapshot();
    assert_full(&client.try_create(&pod, container("late", &["true"])).unwrap_err());
    daemon.wait_until_like(&before);
    client.update(&id, limits(700, 128)).unwrap();
    assert_limits(&daemon, &id, 700, 128);
    drop(full);
    client.run_idle(&pod, "late");
    let _full = Filling::of(&daemon.env);
    client.remove(&id).unwrap();
    client.remove_pod(&pod.id).unwrap();
    assert!(client.containers().is_empty());
}
