//! The systemd driver, with systemd as PID 1: `hack/dev e2e systemd` boots it.
//!
//! `systemctl` shows the properties that systemd has, the kernel's files show the active limits.

use std::fs;
use std::process::Command;

use cri_api::v1;
use tonic::Code;

use crate::support::client::{Pod, container};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::{cgroup_fixture, kernel_state};
use crate::update::{file, limited, limits};

fn systemctl(arguments: &[&str]) -> String {
    let output = Command::new("systemctl").args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "systemctl {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns properties of a unit, in this order.
fn show<const N: usize>(unit: &str, names: [&str; N]) -> [String; N] {
    let list = names.join(",");
    let text = systemctl(&["show", "--property", &list, unit]);
    names.map(|name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{unit} has no {name}: {text}")).to_owned()
    })
}

/// Returns systemd's units and transient files of a daemon's pods and containers.
fn known_to_systemd(env: &TestEnv) -> Vec<String> {
    let stem = env.cgroup()[1..].trim_end_matches(".slice");
    let (slices, transient) = (format!("{stem}-*.slice"), "/run/systemd/transient");
    let units = systemctl(&["list-units", "--all", "--plain", "--no-legend", "crisp-*.scope", &slices]);
    let files = fs::read_dir(transient).into_iter().flatten().flatten();
    let files = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ours = |name: &String| name.starts_with("crisp-") || name.starts_with(stem);
    units.lines().map(str::to_owned).chain(files.filter(ours)).collect()
}

fn wait_until_systemd_knows_nothing(env: &TestEnv) {
    let mut known = Vec::new();
    wait_for("systemd to remove all units", seconds(5), || {
        known = known_to_systemd(env);
        known.is_empty().then_some(())
    });
}

fn start() -> Daemon {
    let first = fs::read_to_string("/proc/1/comm").unwrap();
    assert_eq!(first, "systemd\n", "these tests are for `hack/dev e2e systemd`");
    Daemon::on(TestEnv::under_systemd())
}

/// Creates the slice of a burstable pod as the kubelet does, and returns the path that it sends.
fn kubelets_slice(daemon: &Daemon) -> String {
    let top = daemon.env.cgroup();
    let stem = top[1..].trim_end_matches(".slice");
    let slice = format!("{stem}-burstable-pod12_34.slice");
    systemctl(&["start", &slice]);
    // systemd does not manage every v1 controller; for the others the kubelet creates the cgroup.
    daemon.env.pod_cgroup(&format!("{stem}-burstable.slice/{slice}"))
}

fn end_kubelets_slice(path: &str) {
    let (above, slice) = path.rsplit_once('/').unwrap();
    systemctl(&["stop", slice, above.rsplit_once('/').unwrap().1]);
    cgroup_fixture::remove_all(above);
}

fn run_pod_in(daemon: &Daemon, parent: &str) -> Pod {
    daemon.run_pod_with("pod", |config| config.linux.as_mut().unwrap().cgroup_parent = parent.to_owned())
}

fn scope(id: &str) -> String {
    format!("crisp-{id}.scope")
}

/// Returns the cgroup of a process: on v1, that of the memory controller.
fn cgroup_of(pid: i32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let controller = if kernel_state::is_v2() { "" } else { "memory" };
    let mut lines = text.lines().map(|line| line.splitn(3, ':').skip(1).collect::<Vec<_>>());
    lines.find(|fields| fields[0] == controller).unwrap()[1].to_owned()
}

/// Returns the processes of a container without the scope holder.
fn pids(daemon: &Daemon, id: &str) -> Vec<i32> {
    let all = daemon.pids(&scope(id));
    all.into_iter().filter(|pid| kernel_state::status(*pid)["Name"] != "crisp-keep").collect()
}

fn value(daemon: &Daemon, cgroup: &str, name: &str) -> String {
    fs::read_to_string(file(daemon, cgroup, name)).unwrap().trim().to_owned()
}

/// Returns limits from the files of a cgroup on v2 or v1: quota and period, weight, memory.
fn in_force(daemon: &Daemon, cgroup: &str) -> [String; 3] {
    let value = |name| value(daemon, cgroup, name);
    if kernel_state::is_v2() {
        [value("cpu.max"), value("cpu.weight"), value("memory.max")]
    } else {
        let cpu = format!("{} {}", value("cpu.cfs_quota_us"), value("cpu.cfs_period_us"));
        [cpu, value("cpu.shares"), value("memory.limit_in_bytes")]
    }
}

/// Returns the same three as properties of systemd; its quota is per second.
fn properties(unit: &str) -> [String; 3] {
    if kernel_state::is_v2() {
        show(unit, ["CPUQuotaPerSecUSec", "CPUWeight", "MemoryMax"])
    } else {
        show(unit, ["CPUQuotaPerSecUSec", "CPUShares", "MemoryLimit"])
    }
}

fn texts<const N: usize>(words: [&str; N]) -> [String; N] {
    words.map(str::to_owned)
}

/// Returns `weight` on v2 and `shares` on v1.
fn weight(shares: &'static str, weight: &'static str) -> &'static str {
    if kernel_state::is_v2() { weight } else { shares }
}

#[test]
fn limits_of_a_scope_are_set_in_kernel_and_systemd_and_survive_a_reload() {
    let daemon = start();
    let client = daemon.client();
    let parent = kubelets_slice(&daemon);
    let pod = run_pod_in(&daemon, &parent);
    let mut asked = limits(250, 64);
    asked.cpuset_cpus = "0".to_owned();
    if kernel_state::is_v2() {
        // As sent by the kubelet; "max" means no limit.
        let raw = [("memory.high", "max"), ("memory.min", "4194304"), ("memory.oom.group", "1"), ("pids.max", "100")];
        asked.unified = raw.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    }
    let id = client.run_config(&pod, limited("main", asked));
    let scope = scope(&id);

    // The container and its processes are in the given slice, in a scope named by its id.
    let first = pids(&daemon, &id)[0];
    assert_eq!(cgroup_of(first), format!("{parent}/{scope}"));
    client.exec_script(&id, "sleep 1000 > /dev/null 2>&1 &");
    let all = pids(&daemon, &id);
    assert!(all.len() >= 2 && all.iter().all(|pid| cgroup_of(*pid) == cgroup_of(first)), "{all:?}");
    assert_eq!(show(&scope, ["ActiveState", "Delegate"]), texts(["active", "yes"]));

    // The limits at creation, then after an update.
    assert_eq!(in_force(&daemon, &scope), texts(["25000 100000", weight("256", "35"), "67108864"]));
    assert_eq!(properties(&scope), texts(["250ms", weight("256", "35"), "67108864"]));
    client.update(&id, limits(500, 96)).unwrap();
    let changed = texts(["50000 100000", weight("512", "59"), "100663296"]);
    assert_eq!(in_force(&daemon, &scope), changed);
    let known = texts(["500ms", weight("512", "59"), "100663296"]);
    assert_eq!(properties(&scope), known);
    // An update that the kernel rejects does not change the properties of systemd.
    let impossible = v1::LinuxContainerResources { cpuset_cpus: "1000".to_owned(), ..limits(900, 128) };
    client.update(&id, impossible).unwrap_err();
    assert_eq!((in_force(&daemon, &scope), properties(&scope)), (changed.clone(), known.clone()));

    // The limits stay after systemd has written all files again.
    let files = if kernel_state::is_v2() {
        vec!["memory.min", "memory.high", "memory.oom.group", "pids.max", "cpuset.cpus"]
    } else {
        vec![]
    };
    let values = || files.iter().map(|name| value(&daemon, &scope, name)).collect::<Vec<_>>();
    let before = values();
    let no_disk = "mknod /tmp/disk b 8 0 && ! head -c 1 /tmp/disk 2> /tmp/why && cat /tmp/why && rm /tmp/disk";
    let denied = client.exec_script(&id, no_disk);
    assert!(denied.contains("Operation not permitted"), "{denied}");
    systemctl(&["daemon-reload"]);
    wait_for("limits without a systemd property to be restored", seconds(5), || (values() == before).then_some(()));
    assert_eq!((in_force(&daemon, &scope), properties(&scope)), (changed, known));
    let log = daemon.env.read_log();
    assert!(!log.contains("does not answer"), "systemd did not respond while busy: {log}");
    assert_eq!(client.exec_script(&id, no_disk), denied);
    assert_eq!(client.exec_script(&id, "echo > /dev/null && echo ok"), "ok\n");
    let shown = client.in_force(&id);
    assert_eq!((shown.cpu_quota, shown.cpu_shares, shown.memory_limit_in_bytes), (50_000, 512, 96 << 20));

    client.remove_pod(&pod.id).unwrap();
    end_kubelets_slice(&parent);
    wait_until_systemd_knows_nothing(&daemon.env);
}

#[test]
fn a_quota_is_exact_in_the_kernel_although_systemd_rounds_to_percents() {
    let daemon = start();
    let client = daemon.client();
    let config = client.call(|mut c| async move { c.runtime_config(v1::RuntimeConfigRequest {}).await }).unwrap();
    assert_eq!(config.linux.unwrap().cgroup_driver(), v1::CgroupDriver::Systemd);
    for (bad, why) in [("/kubepods/pod1", "slice"), ("/kubepods/kubepods-pod1.slice", "where systemd puts")] {
        let mut config = daemon.pod_config("bad");
        config.linux.as_mut().unwrap().cgroup_parent = bad.to_owned();
        let refusal = client.try_run_pod(config).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        assert!(refusal.message().contains("config.linux.cgroup_parent"), "{refusal:?}");
        assert!(refusal.message().contains(why), "{refusal:?}");
    }

    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(123, 64));
    let scope = scope(&id);
    let first = limits(123, 64);
    let cpu = format!("{} 100000", first.cpu_quota);
    assert_eq!((&in_force(&daemon, &scope)[0], properties(&scope)[0].as_str()), (&cpu, "130ms"));
    // With new shares systemd writes its rounded quota again; crisp keeps the exact one.
    client.update(&id, v1::LinuxContainerResources { cpu_shares: 512, ..Default::default() }).unwrap();
    assert_eq!((&in_force(&daemon, &scope)[0], properties(&scope)[0].as_str()), (&cpu, "130ms"));
    assert_eq!(properties(&scope)[1], weight("512", "59"));
    systemctl(&["daemon-reload"]);
    let noticed = "reason=\"systemd_reload\"";
    wait_for("the daemon to restore the limits", seconds(5), || daemon.env.read_log().contains(noticed).then_some(()));
    assert_eq!(in_force(&daemon, &scope)[0], cpu);
    // A value written by another program is kept and reported as the actual limit.
    let max = if kernel_state::is_v2() { ("memory.max", "50331648") } else { ("memory.limit_in_bytes", "50331648") };
    fs::write(file(&daemon, &scope, max.0), max.1).unwrap();
    assert_eq!(client.in_force(&id).memory_limit_in_bytes, 48 << 20);
    // Remove the limit.
    client.update(&id, v1::LinuxContainerResources { cpu_quota: -1, ..Default::default() }).unwrap();
    assert_eq!(properties(&scope)[0], "infinity");
    let none = in_force(&daemon, &scope)[0].clone();
    assert!(none == "max 100000" || none == "-1 100000", "{none}");
    client.remove_pod(&pod.id).unwrap();
    wait_until_systemd_knows_nothing(&daemon.env);
}

#[test]
fn a_pod_cgroup_created_by_crisp_is_a_slice_and_reports_oom_kills() {
    let daemon = start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| config.linux.as_mut().unwrap().resources = Some(limits(1000, 128)));
    let stem = daemon.env.cgroup()[1..].trim_end_matches(".slice");
    let slice = format!("{stem}-pod{}.slice", pod.id);
    assert_eq!(show(&slice, ["ActiveState"]), ["active"]);
    assert_eq!(in_force(&daemon, &slice)[2], (128 << 20).to_string());
    assert_eq!(properties(&slice)[2], (128 << 20).to_string());
    client.update_pod(&pod.id, limits(1000, 192), limits(0, 0)).unwrap();
    assert_eq!(
        (&in_force(&daemon, &slice)[2], &properties(&slice)[2]),
        (&(192 << 20).to_string(), &(192 << 20).to_string())
    );

    // An OOM kill ends all processes of the container; the reason is still reported.
    let script = "x=0123456789abcdef; while :; do x=$x$x; done";
    let mut config = container("main", &["sh", "-c", script]);
    let mut tight = v1::LinuxContainerResources { memory_limit_in_bytes: 24 << 20, ..Default::default() };
    if kernel_state::is_v2() {
        tight.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    config.linux.as_mut().unwrap().resources = Some(tight);
    let ended = client.finish_config(&pod, config);
    assert_eq!((ended.status.reason.as_str(), ended.status.exit_code), ("OOMKilled", 137), "{:?}", ended.stderr);
    client.remove(&ended.id).unwrap();
    assert_eq!(show(&scope(&ended.id), ["ActiveState"]), ["inactive"]);
    client.stop_pod(&pod.id).unwrap();
    client.remove_pod(&pod.id).unwrap();
    wait_until_systemd_knows_nothing(&daemon.env);
}

#[test]
fn after_a_daemon_is_killed_the_next_one_reuses_or_removes_its_scopes() {
    let mut daemon = start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_limited(&pod, "main", limits(250, 64));
    let before = pids(&daemon, &id);
    daemon.restart();
    assert_eq!(pids(&daemon, &id), before, "the container keeps running");
    daemon.client().update(&id, limits(500, 96)).unwrap();
    assert_eq!(properties(&scope(&id))[0], "500ms");
    assert_eq!(daemon.client().exec_script(&id, "echo alive"), "alive\n");

    // Kill the daemon while a new scope is still empty.
    daemon.kill9();
    daemon.revive_with_failpoints("create.cgroup=kill");
    // With the pod's history of resizes, and without the closed journal of the last one.
    let whole = daemon.snapshot();
    daemon.client().try_create(&pod, container("other", &["true"])).unwrap_err();
    daemon.wait_ended();
    let scopes = || systemctl(&["list-units", "--all", "--plain", "--no-legend", "crisp-*.scope"]).lines().count();
    assert_eq!(scopes(), 2);
    daemon.revive();
    daemon.wait_until_like(&whole);
    assert_eq!(scopes(), 1);
    daemon.client().remove_pod(&pod.id).unwrap();
    wait_until_systemd_knows_nothing(&daemon.env);
}
