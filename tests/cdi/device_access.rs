//! Access to the device nodes of CDI devices.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;

use serde_json::json;

use super::{Specs, given, node};
use crate::support::client::{IDLE, security};

/// Tries to write and to read each node, and prints "yes" or "no" for each attempt.
const TRY: &str = "for n in $NODES; do \
    for how in 'if=/dev/null of='$n 'of=/dev/null if='$n; do \
    case $(dd count=1 conv=notrunc $how 2>&1) in *'not permitted'*) echo no;; *'No such device'*) echo yes;; *) echo ?;; esac; \
    done; done";

#[test]
fn nodes_have_their_declared_permissions_and_other_devices_are_denied() {
    let specs = Specs::new();
    specs.device(json!({"deviceNodes": [
        node("/dev/all", 1, ""),
        node("/dev/rw", 2, "rw"),
        node("/dev/read", 3, "r"),
        node("/dev/write", 4, "w"),
        node("/dev/none", 5, "none"),
    ]}));
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_config(&pod, given("main", &IDLE, &["d"]));
    let tried = |nodes: &str| client.exec_script(&id, &format!("NODES='{nodes}'; {TRY}")).replace('\n', " ");
    // Each node is written, then read.
    assert_eq!(tried("/dev/all /dev/rw /dev/read /dev/write /dev/none"), "yes yes yes yes no yes yes no no no ");
    // A node created by the container has the same access: to this device, and to no other.
    client.exec_script(
        &id,
        "busybox mknod /tmp-all c 240 1; busybox mknod /tmp-none c 240 5; busybox mknod /tmp-6 c 240 6",
    );
    assert_eq!(tried("/tmp-all /tmp-none /tmp-6"), "yes yes no no no no ");
    let plain = client.run_config(&pod, given("plain", &IDLE, &[]));
    client.exec_script(&plain, "busybox mknod /tmp-all c 240 1");
    assert_eq!(client.exec_script(&plain, &format!("NODES=/tmp-all; {TRY}")), "no\nno\n");
}

/// Returns a device of this host that containers do not have by default.
fn another() -> String {
    let own = ["console", "ptmx", "null", "zero", "full", "random", "urandom", "tty", "kmsg"];
    let entries = fs::read_dir("/dev").unwrap().map(Result::unwrap);
    let mut devices = entries.filter(|entry| entry.file_type().unwrap().is_char_device());
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    devices.find_map(|entry| Some(name(entry)).filter(|name| !own.contains(&name.as_str()))).unwrap()
}

#[test]
fn a_privileged_container_has_its_cdi_device_and_all_others() {
    let specs = Specs::new();
    specs.device(json!({"deviceNodes": [node("/dev/mine", 1, "r"), {"path": "/dev/kmsg", "hostPath": "/dev/null"}]}));
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    });
    let mut config = given("main", &IDLE, &["d"]);
    security(&mut config).privileged = true;
    let id = client.run_config(&pod, config);
    assert_eq!(client.exec_script(&id, &format!("NODES=/dev/mine; {TRY}")), "yes\nyes\n", "everything is allowed");
    assert_eq!(client.exec_script(&id, "stat -c '%t %T' /dev/kmsg"), "1 3\n", "the node of the CDI device is used");
    let shown = client.exec_script(&id, "ls /dev");
    let is_there = |name: &str| shown.lines().any(|line| line == name);
    assert!(is_there("mine") && is_there(&another()), "and the host's others are there: {shown}");
}
