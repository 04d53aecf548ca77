//! Usage of pods and containers, compared with files of the kernel.

mod lists;
mod pods;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cri_api::v1;

use crate::support::client::{Asked, Client, IDLE, container};
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::kernel_state;

const MIB: u64 = 1 << 20;

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

fn value(number: &Option<v1::UInt64Value>) -> u64 {
    number.as_ref().expect("this number is there").value
}

impl Client {
    fn try_container_stats(&self, id: &str) -> Asked<v1::ContainerStats> {
        let request = v1::ContainerStatsRequest { container_id: id.to_owned() };
        self.call(|mut c| async move { c.container_stats(request).await }).map(|answer| answer.stats.unwrap())
    }

    fn container_stats(&self, id: &str) -> v1::ContainerStats {
        self.try_container_stats(id).unwrap()
    }

    /// The first measurement of a layer may take a moment where the machine is busy.
    fn writable_layer(&self, id: &str) -> v1::FilesystemUsage {
        wait_for("the layer to be measured", seconds(10), || self.container_stats(id).writable_layer)
    }

    fn list_stats(&self, filter: Option<v1::ContainerStatsFilter>) -> Vec<v1::ContainerStats> {
        let request = v1::ListContainerStatsRequest { filter };
        self.call(|mut c| async move { c.list_container_stats(request).await }).unwrap().stats
    }

    /// The pieces that a stream comes in.
    fn stream_stats(&self, filter: Option<v1::ContainerStatsFilter>) -> Vec<Vec<v1::ContainerStats>> {
        let request = v1::StreamContainerStatsRequest { filter };
        let read = |mut c: v1::runtime_service_client::RuntimeServiceClient<_>| async move {
            pieces(c.stream_container_stats(request).await?, |answer| answer.container_stats).await
        };
        self.call(read).unwrap()
    }

    fn try_pod_stats(&self, id: &str) -> Asked<v1::PodSandboxStats> {
        let request = v1::PodSandboxStatsRequest { pod_sandbox_id: id.to_owned() };
        self.call(|mut c| async move { c.pod_sandbox_stats(request).await }).map(|answer| answer.stats.unwrap())
    }

    fn pod_stats(&self, id: &str) -> v1::LinuxPodSandboxStats {
        self.try_pod_stats(id).unwrap().linux.expect("the kubelet dereferences it unchecked")
    }

    fn list_pod_stats(&self, filter: Option<v1::PodSandboxStatsFilter>) -> Vec<v1::PodSandboxStats> {
        let request = v1::ListPodSandboxStatsRequest { filter };
        self.call(|mut c| async move { c.list_pod_sandbox_stats(request).await }).unwrap().stats
    }

    fn stream_pod_stats(&self, filter: Option<v1::PodSandboxStatsFilter>) -> Vec<Vec<v1::PodSandboxStats>> {
        let request = v1::StreamPodSandboxStatsRequest { filter };
        let read = |mut c: v1::runtime_service_client::RuntimeServiceClient<_>| async move {
            pieces(c.stream_pod_sandbox_stats(request).await?, |answer| answer.pod_sandbox_stats).await
        };
        self.call(read).unwrap()
    }
}

async fn pieces<R, T>(
    answer: tonic::Response<tonic::Streaming<R>>,
    open: fn(R) -> Vec<T>,
) -> Asked<tonic::Response<Vec<Vec<T>>>> {
    let (mut stream, mut all) = (answer.into_inner(), Vec::new());
    while let Some(message) = stream.message().await? {
        all.push(open(message));
    }
    Ok(tonic::Response::new(all))
}

fn ids(stats: &[v1::ContainerStats]) -> Vec<String> {
    stats.iter().map(|stats| stats.attributes.as_ref().unwrap().id.clone()).collect()
}

fn names(stats: &[v1::ContainerStats]) -> Vec<String> {
    let name = |stats: &v1::ContainerStats| stats.attributes.clone().unwrap().metadata.unwrap().name;
    let mut names: Vec<String> = stats.iter().map(name).collect();
    names.sort();
    names
}

fn pod_names(stats: &[v1::PodSandboxStats]) -> Vec<String> {
    let name = |stats: &v1::PodSandboxStats| stats.attributes.clone().unwrap().metadata.unwrap().name;
    let mut names: Vec<String> = stats.iter().map(name).collect();
    names.sort();
    names
}

/// The directory in which the kernel has `file` of a container's cgroup.
fn dir_with(daemon: &Daemon, container: &str, file: &str) -> Option<PathBuf> {
    let dirs = kernel_state::cgroups_under(daemon.env.cgroup());
    dirs.into_iter().find(|dir| dir.ends_with(container) && dir.join(file).exists())
}

fn kernel_number(daemon: &Daemon, container: &str, files: [&str; 2]) -> u64 {
    let file = files[usize::from(kernel_state::is_v2())];
    let dir = dir_with(daemon, container, file).unwrap();
    fs::read_to_string(dir.join(file)).unwrap().trim().parse().unwrap()
}

#[test]
fn a_running_container_has_every_value_that_the_kernel_has() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &IDLE);
    config.labels.insert("a".into(), "b".into());
    config.annotations.insert("c".into(), "d".into());
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() });
    let begin = now();
    let id = client.run_config(&pod, config.clone());
    client.wait_printed(&id, "idle");
    let stats = client.container_stats(&id);
    let known = v1::ContainerAttributes {
        id: id.clone(),
        metadata: config.metadata,
        labels: config.labels,
        annotations: config.annotations,
    };
    assert_eq!(stats.attributes, Some(known));

    let in_time = |timestamp: i64| assert!((begin..=now()).contains(&timestamp), "{timestamp}");
    let cpu = stats.cpu.unwrap();
    in_time(cpu.timestamp);
    assert!(value(&cpu.usage_core_nano_seconds) > 0);
    assert_eq!(cpu.usage_nano_cores, None, "there is nothing to compare the first reading with");
    let memory = stats.memory.unwrap();
    in_time(memory.timestamp);
    let (usage, working_set) = (value(&memory.usage_bytes), value(&memory.working_set_bytes));
    let kernels = kernel_number(&daemon, &id, ["memory.usage_in_bytes", "memory.current"]);
    assert!(usage > 0 && usage.abs_diff(kernels) <= MIB, "{usage} is not {kernels}");
    assert!(working_set <= usage);
    assert_eq!(value(&memory.available_bytes), 64 * MIB - working_set);
    assert!(memory.rss_bytes.is_some() && memory.page_faults.is_some() && memory.major_page_faults.is_some());
    let disk = client.writable_layer(&id);
    in_time(disk.timestamp);
    assert!(PathBuf::from(disk.fs_id.unwrap().mountpoint).is_dir());
    assert!(value(&disk.inodes_used) > 0 && disk.used_bytes.is_some());

    // Kernels differ in these: values of this kernel are reported, and no others.
    let has_swap = ["memory.memsw.usage_in_bytes", "memory.swap.current"].map(|file| dir_with(&daemon, &id, file));
    assert_eq!(stats.swap.is_some(), has_swap.iter().any(Option::is_some));
    if let Some(swap) = stats.swap {
        in_time(swap.timestamp);
        assert_eq!(value(&swap.swap_usage_bytes), 0);
    }
    let has = |file: &str| dir_with(&daemon, &id, file).is_some();
    assert_eq!((cpu.psi.is_some(), memory.psi.is_some()), (has("cpu.pressure"), has("memory.pressure")));
    assert_eq!(stats.io.as_ref().is_some_and(|io| io.psi.is_some()), has("io.pressure"));
    if let Some(psi) = cpu.psi {
        assert!(psi.some.is_some() && psi.full.is_some(), "{psi:?}");
    }
}

#[test]
fn available_memory_is_the_least_of_all_levels() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        let resources = v1::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() };
        config.linux.get_or_insert_default().resources = Some(resources);
    });
    let limited = |name: &str, mib: i64| {
        let mut config = container(name, &IDLE);
        let resources = v1::LinuxContainerResources { memory_limit_in_bytes: mib << 20, ..Default::default() };
        config.linux.as_mut().unwrap().resources = Some(resources);
        client.run_config(&pod, config)
    };
    let (free, large, small) = (client.run(&pod, "free", &IDLE), limited("large", 512), limited("small", 16));
    let memory = |id: &str| client.container_stats(id).memory.unwrap();
    let of_pod = client.pod_stats(&pod.id).memory.unwrap();
    let in_pod = 64 * MIB - value(&of_pod.working_set_bytes);
    assert_eq!(value(&of_pod.available_bytes), in_pod);
    for id in [&free, &large] {
        let available = value(&memory(id).available_bytes);
        assert!(available.abs_diff(in_pod) <= MIB, "{available} is not the {in_pod} bytes left in the pod");
    }
    let own = memory(&small);
    assert_eq!(value(&own.available_bytes), 16 * MIB - value(&own.working_set_bytes));
    let listed = client.list_stats(None);
    assert_eq!(listed.len(), 3);
    for stats in listed {
        let available = value(&stats.memory.unwrap().available_bytes);
        assert!(available <= in_pod + MIB, "{available} of {in_pod}");
    }
}

#[test]
fn cpu_time_grows_under_load_and_its_rate_is_reported() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let busy = client.run(&pod, "busy", &["sh", "-c", "while :; do :; done"]);
    let idle = client.run_idle(&pod, "idle");
    let time = |stats: &v1::ContainerStats| value(&stats.cpu.as_ref().unwrap().usage_core_nano_seconds);
    // This reads both containers too.
    let before = client.pod_stats(&pod.id);
    assert_eq!(before.cpu.as_ref().unwrap().usage_nano_cores, None);
    std::thread::sleep(Duration::from_millis(200));
    let first = client.container_stats(&busy);
    std::thread::sleep(Duration::from_millis(1500));
    let second = client.container_stats(&busy);
    assert!(time(&second) > time(&first) + 50_000_000, "{first:?} {second:?}");
    let (before, after) = (first.cpu.unwrap(), second.cpu.unwrap());
    let passed = u64::try_from(after.timestamp - before.timestamp).unwrap();
    let expected = (time(&second) - time(&first)) * 1000 / (passed / 1_000_000);
    let told = value(&after.usage_nano_cores);
    // Read within a moment of each other, not at the same one.
    assert!(told.abs_diff(expected) < expected / 5 + 10_000_000, "{told} is not {expected}");
    // A request within the cache's time gets the same sample. With slow responses there is no such request.
    let again = client.container_stats(&busy).cpu.unwrap();
    if again.timestamp - after.timestamp < 90_000_000 {
        assert_eq!(value(&again.usage_nano_cores), told);
    }

    let idle_after = client.container_stats(&idle);
    assert!(value(&idle_after.cpu.as_ref().unwrap().usage_nano_cores) < told / 2);
    let pod_after = client.pod_stats(&pod.id).cpu.unwrap();
    assert!(value(&pod_after.usage_nano_cores) > told / 2, "the pod has what its containers have");
    assert!(value(&pod_after.usage_core_nano_seconds) >= time(&second));
}

#[test]
fn memory_usage_follows_the_allocations_of_a_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let memory = || client.container_stats(&id).memory.unwrap();
    let before = memory();
    assert_eq!(before.available_bytes, None, "without a limit");
    client.exec_script(&id, "dd if=/dev/zero of=/dev/shm/file bs=1M count=32 2> /dev/null");
    let full = memory();
    let grown = |after: &v1::MemoryUsage, before: &v1::MemoryUsage| {
        value(&after.usage_bytes).saturating_sub(value(&before.usage_bytes))
    };
    assert!(grown(&full, &before) >= 30 * MIB, "{before:?} {full:?}");
    assert!(value(&full.working_set_bytes) >= value(&before.working_set_bytes) + 30 * MIB);
    let pods = client.pod_stats(&pod.id).memory.unwrap();
    assert!(value(&pods.usage_bytes) >= 32 * MIB, "{pods:?}");
    client.exec_script(&id, "rm /dev/shm/file");
    wait_for("most of it to be given back", seconds(10), || (grown(&full, &memory()) > 24 * MIB).then_some(()));
}

#[test]
fn anonymous_memory_and_page_faults_are_reported() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // The shell holds it all in one long string.
    let script = "x=$(yes 0123456789abcdef | head -c 16000000); echo full; sleep 100000 & wait";
    let id = client.run(&pod, "main", &["sh", "-c", script]);
    client.wait_printed(&id, "full");
    // The kernel adds these up at its leisure.
    let memory = wait_for("the kernel to have counted", seconds(20), || {
        let memory = client.container_stats(&id).memory.unwrap();
        (value(&memory.rss_bytes) >= 15_000_000 && value(&memory.page_faults) > 0).then_some(memory)
    });
    assert!(value(&memory.usage_bytes) >= 15_000_000 && value(&memory.working_set_bytes) >= 15_000_000, "{memory:?}");
}

#[test]
fn the_writable_layer_grows_with_written_files_and_is_reported_after_the_exit() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let disk = || client.writable_layer(&id);
    let before = disk();
    client.exec_script(
        &id,
        "dd if=/dev/zero of=/big bs=1M count=8 2> /dev/null; ln /big /name; mkdir /dir; touch /dir/a /dir/b",
    );
    let after = wait_for("the layer to be measured again", seconds(30), || {
        Some(disk()).filter(|now| value(&now.used_bytes) >= value(&before.used_bytes) + 8 * MIB)
    });
    assert!(value(&after.used_bytes) < value(&before.used_bytes) + 9 * MIB, "two names, one file: {after:?}");
    assert_eq!(value(&after.inodes_used), value(&before.inodes_used) + 4);
    assert!(after.timestamp > before.timestamp);
    assert_eq!(after.fs_id, before.fs_id);
    client.stop(&id, 5).unwrap();
    let ended = client.container_stats(&id);
    assert!(value(&ended.writable_layer.unwrap().used_bytes) >= 8 * MIB);
    assert!(client.list_stats(None).is_empty(), "but lists have only those that use something");
}
