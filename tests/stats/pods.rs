//! PodSandboxStats: usage of the pod's cgroup, its containers and its network.

use std::collections::BTreeMap;

use cri_api::v1;

use super::{MIB, names, pod_names, value};
use crate::support::client::{IDLE, container, pod_namespaces, security};
use crate::support::harness::{Daemon, seconds, wait_for};

#[test]
fn a_pods_stats_are_those_of_its_cgroup_and_of_its_containers() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let kubelets = daemon.env.pod_cgroup("kubelets");
    let own = daemon.run_pod_with("own", |config| drop(config.labels.insert("whose".into(), "crisp".into())));
    let given = daemon.run_pod_with("given", |config| config.linux.as_mut().unwrap().cgroup_parent = kubelets.clone());
    for pod in [&own, &given] {
        for name in ["one", "two"] {
            client.run_idle(pod, name);
        }
        client.script(pod, "exited", "true");
        let answer = client.try_pod_stats(&pod.id).unwrap();
        let attributes = answer.attributes.unwrap();
        assert_eq!((attributes.id, attributes.metadata), (pod.id.clone(), pod.config.metadata.clone()));
        assert_eq!((attributes.labels, answer.windows), (pod.config.labels.clone(), None));
        let stats = answer.linux.unwrap();
        assert_eq!(names(&stats.containers), ["one", "two"]);
        // A shell and its sleep in each.
        assert_eq!(value(&stats.process.unwrap().process_count), 4);
        let memory = |stats: &Option<v1::MemoryUsage>| value(&stats.as_ref().unwrap().usage_bytes);
        let cpu = |stats: &Option<v1::CpuUsage>| value(&stats.as_ref().unwrap().usage_core_nano_seconds);
        // The containers are read after their pod.
        let of_containers: u64 = stats.containers.iter().map(|stats| memory(&stats.memory)).sum();
        assert!(memory(&stats.memory) + MIB >= of_containers, "{stats:?}");
        assert!(
            cpu(&stats.cpu) > 0 && cpu(&stats.cpu) + 500_000_000 > stats.containers.iter().map(|c| cpu(&c.cpu)).sum()
        );
        assert_eq!(stats.io.is_some(), stats.containers[0].io.is_some());
    }

    assert_eq!(pod_names(&client.list_pod_stats(None)), ["given", "own"]);
    let found = |filter| pod_names(&client.list_pod_stats(Some(filter)));
    let none = v1::PodSandboxStatsFilter::default;
    assert_eq!(found(v1::PodSandboxStatsFilter { id: given.id[..20].to_owned(), ..none() }), ["given"]);
    let labels = BTreeMap::from([("whose".to_owned(), "crisp".to_owned())]);
    assert_eq!(found(v1::PodSandboxStatsFilter { label_selector: labels, ..none() }), ["own"]);
    assert!(found(v1::PodSandboxStatsFilter { id: "0".repeat(64), ..none() }).is_empty());

    client.stop_pod(&own.id).unwrap();
    let stopped = client.pod_stats(&own.id);
    assert!(stopped.containers.is_empty() && stopped.network.is_none() && stopped.cpu.is_some(), "{stopped:?}");
    assert_eq!(pod_names(&client.list_pod_stats(None)), ["given"], "lists have only those that are ready");
    client.remove_pod(&given.id).unwrap();
    daemon.env.remove_pod_cgroup(&kubelets);
}

#[test]
fn network_usage_is_that_of_the_pod_and_absent_with_the_hosts_network() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &IDLE);
    security(&mut config).capabilities =
        Some(v1::Capability { add_capabilities: vec!["NET_ADMIN".into()], ..Default::default() });
    let id = client.run_config(&pod, config);
    assert_eq!(client.pod_stats(&pod.id).network, None, "loopback alone");
    // Which kinds of interface there are depends on the kernel.
    let add = "ip link add eth0 type veth || ip link add eth0 type dummy; for i in $(ls /sys/class/net); do ip link set $i up; done";
    let added = client.exec(&id, &["sh", "-c", add]);
    assert_eq!(added.code, 0, "{added:?}");
    // The kernel looks for its neighbours by itself.
    let network = wait_for("something to be sent", seconds(20), || {
        let network = client.pod_stats(&pod.id).network.unwrap();
        (value(&network.default_interface.as_ref().unwrap().tx_bytes) > 0).then_some(network)
    });
    let default = network.default_interface.clone().unwrap();
    assert_eq!(default.name, "eth0");
    assert_eq!((value(&default.rx_errors), value(&default.tx_errors)), (0, 0));
    assert!(default.rx_bytes.is_some() && network.timestamp > 0);
    assert!(network.interfaces.iter().all(|other| other.name != "eth0" && other.name != "lo"), "{network:?}");

    let host = daemon.run_pod_with("host", |config| pod_namespaces(config).network = v1::NamespaceMode::Node.into());
    client.run_idle(&host, "main");
    assert_eq!(client.pod_stats(&host.id).network, None);
    let listed = client.list_pod_stats(None);
    let networks: Vec<bool> = listed.iter().map(|pod| pod.linux.as_ref().unwrap().network.is_some()).collect();
    assert_eq!(networks.iter().filter(|has| **has).count(), 1);
}
