//! Memory limits below the usage: applied or refused, without an OOM kill.

use std::fs;

use cri_api::v1;
use rustix::process::Signal;

use super::container::Container;
use super::resources::Shape;
use super::target::Target;
use super::views;
use crate::support::client::Pod;
use crate::support::harness::{kill, seconds, wait_for};

const MIB: i64 = 1 << 20;

/// A container of 192 MiB with a process that holds 96 MiB until it exits.
fn with_held<'t>(target: &'t Target, pod: &Pod) -> Container<'t> {
    // The process fills a buffer, and then blocks while writing it.
    let script = "trap 'exit 0' TERM; dd if=/dev/zero bs=96M count=1 2> /dev/null | sleep 100000 & wait";
    let resources = Shape::guaranteed(1000, 192).resources();
    let container = Container::run_config(target, pod, target.script("main", script), resources);
    wait_for("the memory to be held", seconds(20), || (views::usage(&container.cgroup) > 96 * MIB).then_some(()));
    container
}

#[test]
fn a_limit_below_usage_kills_no_process_and_a_refusal_changes_nothing() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = with_held(&target, &pod);
    let holder = container.process("dd").expect("a process that holds memory");
    // The request has more CPU too, which must not be applied alone.
    let answer = container.try_update(Shape::guaranteed(1500, 64).resources());
    assert_eq!(views::oom_kills(&container.cgroup), 0, "OOM kill after {answer:?}");
    assert_eq!(container.process("dd"), Some(holder), "the process that held the memory exited after {answer:?}");
    container.check();
}

#[test]
fn a_limit_below_usage_can_be_requested_repeatedly() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = with_held(&target, &pod);
    // The kubelet repeats the request every second.
    for _ in 0..3 {
        let answer = container.try_update(Shape::guaranteed(1000, 64).resources());
        assert_eq!(views::oom_kills(&container.cgroup), 0, "OOM kill after {answer:?}");
    }
    kill(container.process("dd").expect("a process that holds memory"), Signal::KILL);
    wait_for("the memory to be given back", seconds(10), || (views::usage(&container.cgroup) < 48 * MIB).then_some(()));
    container.update(Shape::guaranteed(1000, 64).resources());
}

#[test]
fn a_limit_above_usage_is_applied() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let mut container = with_held(&target, &pod);
    let holder = container.process("dd");
    for memory in [144, 256, 136] {
        container.update(Shape::guaranteed(1000, memory).resources());
    }
    assert!(holder.is_some() && container.process("dd") == holder);
}

/// Reads 128 MiB into the page cache: the directory to mount, and the script.
fn cached(target: &Target) -> (v1::Mount, &'static str) {
    let is_in_memory = rustix::fs::statfs(target.home()).unwrap().f_type == 0x0102_1994;
    if is_in_memory {
        // Files of a tmpfs are memory themselves. Files beside this program are not in the page
        // cache yet.
        let programs = std::env::current_exe().unwrap();
        let host_path = programs.parent().unwrap().display().to_string();
        let mount = v1::Mount { container_path: "/files".into(), host_path, readonly: true, ..Default::default() };
        return (mount, "cat /files/*.rmeta | head -c 134217728 > /dev/null");
    }
    let dir = target.home().join("files");
    fs::create_dir(&dir).unwrap();
    let mount =
        v1::Mount { container_path: "/files".into(), host_path: dir.display().to_string(), ..Default::default() };
    (mount, "dd if=/dev/zero of=/files/file bs=1M count=128 conv=fsync 2> /dev/null")
}

/// One test, since files that another test has read would not be charged again.
#[test]
fn page_cache_prevents_neither_a_lower_nor_a_higher_limit() {
    let target = Target::get();
    let pod = target.run_pod("pod");
    let (mount, script) = cached(&target);
    let mut config = target.idle("main");
    config.mounts.push(mount);
    let resources = Shape::guaranteed(1000, 256).resources();
    let mut container = Container::run_config(&target, &pod, config, resources);
    // The same after the page cache was dropped by another process.
    wait_for("the files to be in the page cache", seconds(30), || {
        target.client().exec_script(&container.id, script);
        (views::usage(&container.cgroup) > 100 * MIB).then_some(())
    });
    container.update(Shape::guaranteed(1000, 64).resources());
    assert!(views::usage(&container.cgroup) <= 64 * MIB);
    // The page cache fills the limit again.
    target.client().exec_script(&container.id, script);
    for memory in [96, 80, 192] {
        container.update(Shape::guaranteed(1000, memory).resources());
    }
}
