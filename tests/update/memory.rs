//! Lowering memory limits: without an OOM kill, page cache first, and refusals with numbers.

use std::path::Path;

use tonic::Code;

use super::*;
use crate::support::harness::{seconds, wait_for};

/// A container whose first process holds this many megabytes.
pub(crate) fn holding(daemon: &Daemon, pod: &Pod, name: &str, mib: i64, limit: i64) -> String {
    // The shell keeps the text in a variable, a byte per letter; the later commands keep the shell
    // running.
    let script = format!("x=$(head -c {} /dev/zero | tr '\\0' a); echo holding; sleep 100000; echo $x", mib * MIB);
    let mut config = container(name, &["sh", "-c", &script]);
    config.linux.as_mut().unwrap().resources = Some(limits(1000, limit));
    let id = daemon.client().run_config(pod, config);
    daemon.client().wait_printed(&id, "holding");
    wait_for("the shell to wait", seconds(10), || (daemon.pids(&id).len() == 2).then_some(()));
    id
}

#[test]
fn a_limit_below_usage_is_rejected_with_numbers_and_kills_no_process() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // The copies in the pipe need memory too.
    let id = holding(&daemon, &pod, "main", 24, 256);
    let pids = daemon.pids(&id);
    for swap in [0, 12 * MIB] {
        let mut asked = limits(700, 12);
        asked.memory_swap_limit_in_bytes = if has_swap_limit(&daemon, &id) { swap } else { 0 };
        let refusal = client.update(&id, asked).unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
        let said = refusal.message();
        assert!(said.contains(&format!("memory limit ({}) below current usage (", 12 * MIB)), "{said}");
        assert!(said.contains("bytes cannot be reclaimed") && said.contains("/sys/fs/cgroup/"), "{said}");
        assert_limits(&daemon, &id, 1000, 256);
        assert_eq!((daemon.pids(&id), oom_kills(&daemon, &id).as_str()), (pids.clone(), "0"));
        if kernel_state::is_v2() {
            assert_eq!(
                fs::read_to_string(file(&daemon, &id, "memory.high")).unwrap(),
                "max\n",
                "memory.high is unlimited"
            );
        }
    }
    // With a sufficient limit it succeeds.
    client.update(&id, limits(700, 128)).unwrap();
    assert_limits(&daemon, &id, 700, 128);
    assert_eq!(daemon.pids(&id), pids);
}

fn has_swap_limit(daemon: &Daemon, id: &str) -> bool {
    let name = if kernel_state::is_v2() { "memory.swap.max" } else { "memory.memsw.limit_in_bytes" };
    kernel_state::cgroups_under(daemon.env.cgroup()).iter().any(|dir| dir.ends_with(id) && dir.join(name).exists())
}

/// Removes built files from the page cache, so that the next reader is charged for them.
fn forget_what_was_built(built: &Path) {
    for entry in fs::read_dir(built).unwrap().flatten() {
        if let Ok(file) = fs::File::open(entry.path()) {
            // Dirty pages stay in the cache.
            file.sync_data().ok();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).ok();
        }
    }
}

#[test]
fn page_cache_is_reclaimed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = limited("main", limits(1000, 256));
    // The build directory is on a disk; a tmpfs would use memory itself.
    let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    config.mounts = vec![v1::Mount {
        container_path: "/built".into(),
        host_path: built.display().to_string(),
        readonly: true,
        ..Default::default()
    }];
    let id = client.run_config(&pod, config);
    forget_what_was_built(&built);
    client.exec_script(
        &id,
        "for f in $(ls -S /built/*.rlib | head -n 12); do cat $f; done | head -c 80000000 > /dev/null",
    );
    let usage = if kernel_state::is_v2() { "memory.current" } else { "memory.usage_in_bytes" };
    let usage = || fs::read_to_string(file(&daemon, &id, usage)).unwrap().trim().parse::<i64>().unwrap();
    let cached = usage();
    assert!(cached > 32 * MIB, "only {cached} bytes of page cache");
    client.update(&id, limits(1000, 16)).unwrap_or_else(|e| panic!("{cached} bytes in use: {e:?}"));
    assert_limits(&daemon, &id, 1000, 16);
    assert!(usage() <= 16 * MIB);
    assert_eq!(oom_kills(&daemon, &id), "0");
}

#[test]
fn a_status_is_returned_while_memory_is_reclaimed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = holding(&daemon, &pod, "main", 24, 256);
    let socket = daemon.env.socket();
    let slow = id.clone();
    let updating = std::thread::spawn(move || Client::connect(&socket).update(&slow, limits(700, 12)));
    let begin = std::time::Instant::now();
    let mut looks = 0;
    while !updating.is_finished() {
        assert_eq!(client.in_force(&id).memory_limit_in_bytes, 256 * MIB, "no value between old and new");
        assert_eq!(client.containers().len(), 1);
        looks += 1;
        assert!(begin.elapsed() < seconds(30));
    }
    assert_eq!(updating.join().unwrap().unwrap_err().code(), Code::FailedPrecondition);
    assert!(looks > 0);
}

/// The limits of memory, and of memory and swap together, that the kernel has.
fn memory_and_swap(daemon: &Daemon, id: &str) -> (i64, i64) {
    let read = |name: &str| fs::read_to_string(file(daemon, id, name)).unwrap().trim().to_owned();
    let number = |text: String| text.parse::<i64>().unwrap_or_else(|_| panic!("{text} is not a limit"));
    if kernel_state::is_v2() {
        let memory = number(read("memory.max"));
        return (memory, memory + number(read("memory.swap.max")));
    }
    (number(read("memory.limit_in_bytes")), number(read("memory.memsw.limit_in_bytes")))
}

#[test]
fn a_container_whose_memory_alone_is_limited_may_not_swap() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    assert!(has_swap_limit(&daemon, &id), "this kernel does not count swap");
    let assert_both = |id: &str, mib: i64| {
        assert_eq!(memory_and_swap(&daemon, id), (mib * MIB, mib * MIB), "kernel");
        let told = client.in_force(id);
        assert_eq!((told.memory_limit_in_bytes, told.memory_swap_limit_in_bytes), (mib * MIB, mib * MIB), "status");
    };
    assert_both(&id, 64);
    // Memory alone, raised and lowered, and together with all other limits.
    for mib in [128, 96, 160] {
        let memory = v1::LinuxContainerResources { memory_limit_in_bytes: mib * MIB, ..Default::default() };
        client.update(&id, memory).unwrap();
        assert_both(&id, mib);
    }
    client.update(&id, limits(700, 32)).unwrap();
    assert_both(&id, 32);
    client.update(&id, limits(800, 32)).unwrap();
    assert_both(&id, 32);
    // A container without a limit gets its first one.
    let free = client.run_idle(&pod, "free");
    assert_eq!(client.in_force(&free).memory_swap_limit_in_bytes, 0);
    client.update(&free, limits(500, 64)).unwrap();
    assert_both(&free, 64);
}

#[test]
fn requested_swap_is_applied_and_kept() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // As CRI defines it, and as the kubelet's LimitedSwap requests it on v2.
    let mut asked = limits(500, 64);
    asked.memory_swap_limit_in_bytes = 80 * MIB;
    let id = client.run_limited(&pod, "typed", asked);
    assert_eq!(memory_and_swap(&daemon, &id), (64 * MIB, 80 * MIB));
    client.update(&id, limits(500, 48)).unwrap();
    let (memory, both) = memory_and_swap(&daemon, &id);
    assert!(memory == 48 * MIB && both > memory, "{memory} {both}");
    if kernel_state::is_v2() {
        let mut asked = limits(500, 64);
        asked.unified.insert("memory.swap.max".into(), (16 * MIB).to_string());
        let id = client.run_limited(&pod, "raw", asked);
        assert_eq!(memory_and_swap(&daemon, &id), (64 * MIB, 80 * MIB));
        client.update(&id, limits(500, 96)).unwrap();
        assert_eq!(memory_and_swap(&daemon, &id), (96 * MIB, 112 * MIB));
    }
}

#[test]
fn a_status_has_no_cpuset_if_none_was_requested() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    let told = client.in_force(&id);
    assert_eq!((told.cpuset_cpus.as_str(), told.cpuset_mems.as_str()), ("", ""));
    client.update(&id, v1::LinuxContainerResources { cpuset_cpus: "0".into(), ..Default::default() }).unwrap();
    let told = client.in_force(&id);
    assert_eq!((told.cpuset_cpus.as_str(), told.cpuset_mems.as_str()), ("0", ""));
}
