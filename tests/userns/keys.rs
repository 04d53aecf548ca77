//! Keys of the kernel: a user has a quota of them, and every container of that user has a session
//! keyring.

use std::fs;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use cri_api::v1;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use super::{line, mapped};
use crate::support::client::{IDLE, Pod, container, namespaces, pod_namespaces, security};
use crate::support::harness::{Daemon, seconds, wait_for};

/// Threads that are one user of the host, each with a session keyring, until there is no more.
struct FullQuota(Vec<(Sender<()>, JoinHandle<()>)>);

impl FullQuota {
    fn of(user: u32) -> Self {
        let mut held = Vec::new();
        loop {
            let ((stop, stopped), (tell, joined)) = (channel::<()>(), channel());
            let thread = std::thread::spawn(move || {
                let root = Uid::from_raw(0);
                // The kernel charges no quota for the first keyring of a process.
                sys::keyring::join_new().unwrap();
                set_thread_res_uid(Uid::from_raw(user), root, root).unwrap();
                tell.send(sys::keyring::join_new().is_ok()).unwrap();
                stopped.recv().ok();
            });
            held.push((stop, thread));
            if !joined.recv().unwrap() {
                return Self(held);
            }
        }
    }
}

impl Drop for FullQuota {
    fn drop(&mut self) {
        for (stop, thread) in self.0.drain(..) {
            drop(stop);
            thread.join().ok();
        }
    }
}

/// How many keys a user of the host has.
fn keys(user: u32) -> usize {
    let users = fs::read_to_string("/proc/key-users").unwrap();
    let line = users.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{user}:")));
    line.map_or(0, |line| line.split_whitespace().nth(1).unwrap().split('/').next().unwrap().parse().unwrap())
}

/// A pod whose root is a user of the host that no other pod has, so that no other test uses its key
/// quota.
fn pod_of(daemon: &Daemon, user: u32) -> (Pod, v1::ContainerConfig) {
    let ids = || mapped(vec![line(0, user, 65536)]);
    let pod = daemon.run_pod_with("pod", |config| pod_namespaces(config).userns_options = Some(ids()));
    let mut config = container("main", &IDLE);
    let spaces = namespaces(v1::NamespaceMode::Container);
    security(&mut config).namespace_options = Some(v1::NamespaceOption { userns_options: Some(ids()), ..spaces });
    (pod, config)
}

#[test]
fn containers_start_while_the_key_quota_is_used_up() {
    const USER: u32 = 1_700_000_000;
    let daemon = Daemon::start();
    let client = daemon.client();
    let (pod, config) = pod_of(&daemon, USER);
    let full = FullQuota::of(USER);
    let id = client.run_config(&pod, config);
    client.wait_printed(&id, "idle");
    assert_eq!(client.exec_script(&id, "echo fine"), "fine\n");
    let log = daemon.env.read_log();
    assert!(log.contains("no session keyring: the quota of keys of its user is used up"), "no warning:\n{log}");
    drop(full);
    wait_for("the keys to be freed", seconds(20), || (keys(USER) < 100).then_some(()));
    assert_eq!(client.exec_script(&id, "echo fine"), "fine\n");
}

#[test]
fn a_container_has_one_key_which_is_removed_with_it() {
    const USER: u32 = 1_700_065_536;
    let daemon = Daemon::start();
    let client = daemon.client();
    let (pod, config) = pod_of(&daemon, USER);
    assert_eq!(keys(USER), 0);
    let id = client.run_config(&pod, config);
    client.wait_printed(&id, "idle");
    for _ in 0..20 {
        client.exec(&id, &["true"]);
    }
    wait_for("the keys of commands to be freed", seconds(20), || (keys(USER) <= 1).then_some(()));
    assert_eq!(keys(USER), 1);
    client.stop(&id, 0).unwrap();
    client.remove(&id).unwrap();
    wait_for("the keys to be freed", seconds(20), || (keys(USER) == 0).then_some(()));
}
