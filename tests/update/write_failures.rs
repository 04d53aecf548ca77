//! Each write of a resize fails in turn; all earlier ones are undone.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use tonic::Code;

use super::*;
use crate::support::env::TestEnv;

#[test]
fn after_any_failed_write_all_values_are_as_before() {
    let mut failed = 0;
    loop {
        let point = format!("resize.write.{failed}");
        let daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}=fail"));
        let client = daemon.client();
        let pod = daemon.run_pod("pod");
        let id = client.run_limited(&pod, "main", limits(500, 64));
        let cpuset_before = cpuset_of(&daemon, &id);
        // Memory is lowered and CPU raised, so both kinds of writes occur.
        let mut asked = limits(700, 48);
        asked.cpuset_cpus = "0".into();
        match client.update(&id, asked) {
            Ok(()) => break,
            Err(refusal) => {
                assert!(refusal.message().contains(&point), "{refusal:?}");
                assert!(refusal.message().contains("writing the limit \""), "the value: {refusal:?}");
                assert!(refusal.message().contains("/sys/fs/cgroup/"), "the file: {refusal:?}");
                assert!(!refusal.message().contains("taken back"), "{refusal:?}");
            }
        }
        assert_limits(&daemon, &id, 500, 64);
        assert_eq!(cpuset_of(&daemon, &id), cpuset_before, "kernel");
        assert_eq!(client.in_force(&id).cpuset_cpus, "", "no cpuset was requested");
        failed += 1;
    }
    assert!(failed >= 4, "only {failed} writes were made to fail");
}

fn cpuset_of(daemon: &Daemon, id: &str) -> String {
    fs::read_to_string(file(daemon, id, "cpuset.cpus")).unwrap().trim().to_owned()
}

#[test]
fn a_change_that_cannot_be_recorded_is_not_made() {
    for point in ["resize.journal", "resize.applied"] {
        let daemon = Daemon::with_failpoints(TestEnv::new(), &format!("{point}=fail"));
        let client = daemon.client();
        let pod = daemon.run_pod("pod");
        let id = client.run_limited(&pod, "main", limits(500, 64));
        let refusal = client.update(&id, limits(700, 128)).unwrap_err();
        assert!(refusal.message().contains(point), "{refusal:?}");
        assert_limits(&daemon, &id, 500, 64);
    }
}

/// A file that cannot be written until this is dropped.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn new(path: &Path) -> Self {
        mount_bind(path, path).unwrap();
        let guard = Self(path.to_owned());
        mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
        guard
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

#[test]
fn a_read_only_file_is_named_and_other_writes_are_undone() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    let name = if kernel_state::is_v2() { "cpu.weight" } else { "cpu.shares" };
    let locked = ReadOnly::new(&file(&daemon, &id, name));
    let refusal = client.update(&id, limits(700, 48)).unwrap_err();
    assert!(refusal.message().contains(name) && refusal.message().contains("Read-only"), "{refusal:?}");
    assert_limits(&daemon, &id, 500, 64);
    drop(locked);
    client.update(&id, limits(700, 48)).unwrap();
    assert_limits(&daemon, &id, 700, 48);
}

#[test]
fn a_write_that_the_kernel_rejects_is_reported_with_its_errno() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    let mut asked = limits(700, 128);
    asked.cpuset_cpus = "1000".into();
    let refusal = client.update(&id, asked).unwrap_err();
    assert!(refusal.message().contains("writing the limit \"1000\" to ") && refusal.message().contains("cpuset.cpus"));
    assert!(refusal.message().contains("os error"), "{refusal:?}");
    assert_limits(&daemon, &id, 500, 64);
}

#[test]
fn a_cgroup_that_another_process_removed_is_only_an_error() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let ended = client.script(&pod, "ended", "true");
    client.update(&ended.id, limits(500, 64)).expect("the container has exited: nothing to change");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    // The processes move to the parent, so that the cgroup can be removed.
    for dir in kernel_state::cgroups_under(daemon.env.cgroup()).iter().filter(|dir| dir.ends_with(&id)) {
        for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap().lines() {
            let above = if kernel_state::is_v2() {
                kernel_state::hierarchies()[0].1.clone()
            } else {
                dir.parent().unwrap().into()
            };
            fs::write(above.join("cgroup.procs"), pid).unwrap();
        }
        fs::remove_dir(dir).unwrap();
    }
    let refusal = client.update(&id, limits(700, 128)).unwrap_err();
    assert_eq!(refusal.code(), Code::NotFound, "{refusal:?}");
    assert_eq!(client.status(&id).resources, None, "all or nothing");
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerRunning);
}
