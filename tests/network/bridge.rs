//! The built-in bridge, which is used without a CNI configuration.

use cri_api::v1;
use tonic::Code;

use super::{address, fetch, fetch_from_host, readiness, serve, update_addresses};
use crate::support::client::{Pod, pod_namespaces};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::netns::run;

fn connected(settings: &str) -> Daemon {
    Daemon::on(TestEnv::connected(settings))
}

#[test]
fn pods_reach_each_other_and_the_host_with_nothing_installed() {
    let daemon = connected("");
    let client = daemon.client();
    let (one, two) = (daemon.run_pod("one"), daemon.run_pod("two"));
    let (a, b) = (serve(&daemon, &one), serve(&daemon, &two));
    let (at_one, at_two) = (address(&daemon, &one), address(&daemon, &two));
    assert!(at_one.starts_with("10.213.") && at_two.starts_with("10.213.") && at_one != at_two);
    assert_eq!(fetch(&daemon, &b, &format!("http://{at_one}:8080/")), "one\n");
    assert_eq!(fetch(&daemon, &a, &format!("http://{at_two}:8080/")), "two\n");
    assert_eq!(fetch_from_host(&daemon, &format!("http://{at_one}:8080/")), "one\n");
    let seen = client.exec_script(&a, "busybox ip -o addr show dev eth0; busybox ip route; cat /etc/hosts");
    assert!(seen.contains(&format!("{at_one}/32")) && seen.contains("default via 10.213.0.1"), "{seen}");
    assert!(seen.contains(&format!("{at_one}\tone\n")), "the pod resolves its own name to its address: {seen}");
    let ping = client.exec_script(&a, "busybox ping -c 1 -W 5 10.213.0.1 >/dev/null && echo host");
    assert_eq!(ping, "host\n");
}

#[test]
fn the_node_is_ready_and_names_its_network() {
    let daemon = connected("");
    let condition = readiness(&daemon);
    assert!(condition.status && condition.message.contains("bridge"), "{condition:?}");
    let daemon = Daemon::start();
    let condition = readiness(&daemon);
    assert!(!condition.status && condition.reason == "NetworkOff", "{condition:?}");
}

#[test]
fn a_second_daemon_on_the_same_bridge_fails_with_a_remedy() {
    let mut first = connected("");
    let pod = first.run_pod("pod");
    let web = serve(&first, &pod);
    let url = format!("http://{}:8080/", address(&first, &pod));
    let mut second = Daemon::on(first.env.beside(""));
    let said = second.env.read_log();
    assert!(said.contains("network.bridge.name") && said.contains("network.mode"), "{said}");
    for restarted in [false, true] {
        let condition = readiness(&second);
        assert!(!condition.status && condition.message.contains("network.bridge.name"), "{condition:?}");
        let refusal = second.client().try_run_pod(second.pod_config("other")).unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
        assert!(readiness(&first).status, "restarted: {restarted}");
        assert_eq!(fetch_from_host(&first, &url), "pod\n");
        if !restarted {
            // The name is not free meanwhile.
            first.restart();
        }
    }
    assert_eq!(first.client().exec_script(&web, "echo alive"), "alive\n");
    let mut third = Daemon::on(first.env.beside("[network.bridge]\nname = \"other0\"\npools = [\"10.99.0.0/24\"]"));
    assert!(readiness(&third).status);
    third.kill9();
    third.env.host().script("ip link delete other0");
    // In another network namespace the name is free.
    assert!(readiness(&connected("")).status);
    // The first daemon that starts afterwards can have it.
    first.client().remove_everything();
    first.kill9();
    second.restart();
    assert!(readiness(&second).status);
}

#[test]
fn a_pod_with_the_hosts_network_gets_no_address_of_its_own() {
    let daemon = connected("");
    let pod = daemon.run_pod_with("pod", |config| {
        pod_namespaces(config).network = v1::NamespaceMode::Node.into();
        config.hostname.clear();
    });
    assert_eq!(daemon.client().pod_status(&pod.id).network.unwrap().ip, "");
    assert_eq!(daemon.env.links(), Vec::<String>::new(), "nothing was created for it");
}

#[test]
fn addresses_are_freed_with_their_pods_and_survive_a_restart() {
    let mut daemon = connected("[network.bridge]\npools = [\"10.99.0.0/29\"]");
    // Of eight addresses three are reserved: network, gateway and broadcast.
    let pods: Vec<_> = (0..5).map(|n| daemon.run_pod(&format!("pod-{n}"))).collect();
    let ips: Vec<String> = pods.iter().map(|pod| address(&daemon, pod)).collect();
    assert_eq!(ips.iter().collect::<std::collections::BTreeSet<_>>().len(), 5, "{ips:?}");
    let before = daemon.snapshot();
    let refusal = daemon.client().try_run_pod(daemon.pod_config("one-too-many")).unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
    daemon.wait_until_like(&before);
    daemon.restart();
    assert_eq!(pods.iter().map(|pod| address(&daemon, pod)).collect::<Vec<_>>(), ips);
    daemon.client().try_run_pod(daemon.pod_config("one-too-many")).unwrap_err();
    daemon.client().stop_pod(&pods[2].id).unwrap();
    assert_eq!(daemon.client().pod_status(&pods[2].id).network.unwrap().ip, "", "a stopped pod has no address");
    let config = daemon.pod_config("new");
    let id = wait_for("the address to be free", seconds(5), || daemon.client().try_run_pod(config.clone()).ok());
    let new = Pod { id, config };
    assert_eq!(address(&daemon, &new), ips[2]);
    let (a, b) = (serve(&daemon, &new), serve(&daemon, &pods[0]));
    assert_eq!(fetch(&daemon, &a, &format!("http://{}:8080/", ips[0])), "pod-0\n");
    assert_eq!(fetch(&daemon, &b, &format!("http://{}:8080/", ips[2])), "new\n");
}

#[test]
fn pods_have_an_address_of_each_pool() {
    let daemon = connected("[network.bridge]\npools = [\"10.99.0.0/24\", \"fd00:99::/64\"]");
    let (one, two) = (daemon.run_pod("one"), daemon.run_pod("two"));
    let network = daemon.client().pod_status(&one.id).network.unwrap();
    assert!(network.ip.starts_with("10.99.0."), "{network:?}");
    let six = &network.additional_ips[0].ip;
    assert!(six.starts_with("fd00:99::"), "{network:?}");
    serve(&daemon, &one);
    let b = serve(&daemon, &two);
    assert_eq!(fetch(&daemon, &b, &format!("http://[{six}]:8080/")), "one\n");
}

#[test]
fn packets_from_pods_leave_with_the_address_of_the_node() {
    let daemon = connected("");
    let pod = daemon.run_pod("pod");
    let id = serve(&daemon, &pod);
    // Another machine: a namespace without a route to the pods.
    let name = format!("{}-other", daemon.env.dir().file_name().unwrap().to_str().unwrap());
    let other = crate::support::netns::Host::new(name.clone());
    let host = daemon.env.host();
    run(host.command("ip").args(["link", "add", "out", "type", "veth", "peer", "name", "in", "netns", &name]));
    host.script("ip addr add 192.0.2.1/24 dev out; ip link set out up");
    other.script("ip addr add 192.0.2.2/24 dev in; ip link set in up");
    let mut server = other.command("/bin/busybox");
    let dir = daemon.env.dir().join("www");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("index.html"), "outside\n").unwrap();
    let mut server = server.args(["httpd", "-f", "-vv", "-p", "192.0.2.2:80", "-h"]).arg(&dir);
    server = server.stderr(std::fs::File::create(dir.join("log")).unwrap());
    let mut server = server.spawn().unwrap();
    let got = wait_for("an answer from outside", seconds(10), || {
        Some(fetch(&daemon, &id, "http://192.0.2.2/")).filter(|text| !text.is_empty())
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(got, "outside\n");
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    assert!(log.contains("192.0.2.1") && !log.contains("10.213."), "{log}");
}

#[test]
fn the_pod_cidrs_replace_the_pool() {
    let daemon = connected("");
    update_addresses(&daemon, "10.77.0.0/24").unwrap();
    let pod = daemon.run_pod("pod");
    assert!(address(&daemon, &pod).starts_with("10.77.0."));
    update_addresses(&daemon, "").unwrap();
    for bad in ["10.77.0.0", "10.77.0.0/33", "garbage", "10.1.0.0/16,10.2.0.0/16"] {
        let refusal = update_addresses(&daemon, bad).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{bad}: {refusal:?}");
        assert!(refusal.message().contains("runtime_config.network_config.pod_cidr"), "{refusal:?}");
    }
}

#[test]
fn the_dns_settings_of_a_pod_are_in_its_resolv_conf() {
    let daemon = connected("");
    let pod = daemon.run_pod_with("pod", |config| {
        config.dns_config = Some(v1::DnsConfig {
            servers: vec!["192.0.2.53".into()],
            searches: vec!["tests.example".into()],
            options: vec!["ndots:5".into()],
        });
    });
    let id = daemon.client().run_idle(&pod, "main");
    let text = daemon.client().exec_script(&id, "cat /etc/resolv.conf");
    assert_eq!(text, "nameserver 192.0.2.53\nsearch tests.example\noptions ndots:5\n");
}

#[test]
fn a_network_namespace_needs_no_process() {
    let mut daemon = connected("");
    let pod = daemon.run_pod("pod");
    let at = address(&daemon, &pod);
    daemon.restart();
    let id = serve(&daemon, &pod);
    daemon.client().stop(&id, 0).unwrap();
    let again = daemon.client().run_config(&pod, crate::support::client::container("again", &["sleep", "1000"]));
    assert!(daemon.client().exec_script(&again, "busybox ip -o addr show dev eth0").contains(&at));
}
