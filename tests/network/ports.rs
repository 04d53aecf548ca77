//! Host ports that forward to pods.

use cri_api::v1;
use tonic::Code;

use super::{address, fetch, fetch_from_host, serve};
use crate::support::client::Pod;
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::netns::{Host, run};

fn mapping(protocol: v1::Protocol, container_port: i32, host_port: i32, host_ip: &str) -> v1::PortMapping {
    v1::PortMapping { protocol: protocol.into(), container_port, host_port, host_ip: host_ip.to_owned() }
}

fn tcp(container_port: i32, host_port: i32) -> v1::PortMapping {
    mapping(v1::Protocol::Tcp, container_port, host_port, "")
}

fn pod_with(daemon: &Daemon, name: &str, ports: Vec<v1::PortMapping>) -> Pod {
    daemon.run_pod_with(name, |config| config.port_mappings = ports)
}

/// A machine beside the host, which reaches it at 192.0.2.1.
fn neighbour(daemon: &Daemon) -> Host {
    let name = format!("{}-n", daemon.env.dir().file_name().unwrap().to_str().unwrap());
    let neighbour = Host::new(name.clone());
    let host = daemon.env.host();
    run(host.command("ip").args(["link", "add", "out", "type", "veth", "peer", "name", "in", "netns", &name]));
    host.script("ip addr add 192.0.2.1/24 dev out; ip link set out up");
    neighbour.script("ip addr add 192.0.2.2/24 dev in; ip link set in up");
    neighbour
}

#[test]
fn a_host_port_reaches_the_pod_from_everywhere() {
    let daemon = Daemon::on(TestEnv::connected(""));
    let pod = pod_with(&daemon, "pod", vec![tcp(8080, 12080)]);
    let id = serve(&daemon, &pod);
    let neighbour = neighbour(&daemon);
    let from = |host: &Host, at: &str| {
        let mut wget = host.command("/bin/busybox");
        String::from_utf8(wget.args(["timeout", "5", "busybox", "wget", "-qO-", at]).output().unwrap().stdout).unwrap()
    };
    wait_for("the neighbour to get an answer", seconds(10), || {
        (from(&neighbour, "http://192.0.2.1:12080/") == "pod\n").then_some(())
    });
    assert_eq!(fetch_from_host(&daemon, "http://127.0.0.1:12080/"), "pod\n", "from the host itself");
    assert_eq!(fetch_from_host(&daemon, "http://192.0.2.1:12080/"), "pod\n", "by another address of the host");
    assert_eq!(fetch(&daemon, &id, "http://192.0.2.1:12080/"), "pod\n", "from the pod itself");
    let other = daemon.run_pod("other");
    let other = serve(&daemon, &other);
    assert_eq!(fetch(&daemon, &other, "http://192.0.2.1:12080/"), "pod\n", "from another pod");
    daemon.client().stop_pod(&pod.id).unwrap();
    assert_eq!(from(&neighbour, "http://192.0.2.1:12080/"), "", "the port of a stopped pod is closed");
}

#[test]
fn a_host_port_at_one_address_does_not_affect_the_same_port_at_another() {
    let daemon = Daemon::on(TestEnv::connected(""));
    daemon.env.host().script("ip addr add 192.0.2.7/32 dev lo");
    let first = pod_with(&daemon, "first", vec![mapping(v1::Protocol::Tcp, 8080, 12080, "192.0.2.7")]);
    let second = pod_with(&daemon, "second", vec![mapping(v1::Protocol::Tcp, 8080, 12080, "127.0.0.1")]);
    serve(&daemon, &first);
    serve(&daemon, &second);
    assert_eq!(fetch_from_host(&daemon, "http://192.0.2.7:12080/"), "first\n");
    assert_eq!(fetch_from_host(&daemon, "http://127.0.0.1:12080/"), "second\n");
}

#[test]
fn a_port_of_another_pod_is_refused_with_its_name() {
    let daemon = Daemon::on(TestEnv::connected(""));
    let first = pod_with(&daemon, "first", vec![tcp(8080, 12080)]);
    let before = daemon.snapshot();
    for (protocol, host_ip, refused) in
        [(v1::Protocol::Tcp, "", true), (v1::Protocol::Tcp, "127.0.0.1", true), (v1::Protocol::Udp, "", false)]
    {
        let mut config = daemon.pod_config("second");
        config.port_mappings = vec![mapping(protocol, 80, 12080, host_ip)];
        match daemon.client().try_run_pod(config) {
            Err(refusal) if refused => {
                assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
                assert!(refusal.message().contains("12080") && refusal.message().contains(&first.id), "{refusal:?}");
                daemon.wait_until_like(&before);
            }
            Ok(pod) if !refused => drop(pod),
            other => panic!("{protocol:?} {host_ip}: {other:?}"),
        }
    }
}

#[test]
fn host_ports_work_after_a_restart_and_a_loss_of_the_rules() {
    let mut daemon = Daemon::on(TestEnv::connected(""));
    let pod = pod_with(&daemon, "pod", vec![tcp(8080, 12080)]);
    serve(&daemon, &pod);
    daemon.restart();
    assert_eq!(fetch_from_host(&daemon, "http://127.0.0.1:12080/"), "pod\n");
    daemon.env.host().script("nft flush ruleset");
    daemon.restart();
    assert_eq!(fetch_from_host(&daemon, "http://127.0.0.1:12080/"), "pod\n");
    assert!(!address(&daemon, &pod).is_empty());
}

/// A host port that a pod cannot have is refused by the name of its field, and leaves nothing.
fn refused(daemon: &Daemon, port: v1::PortMapping, field: &str) {
    let before = daemon.snapshot();
    let mut config = daemon.pod_config("refused");
    config.port_mappings = vec![port];
    let refusal = daemon.client().try_run_pod(config).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    assert!(refusal.message().contains(&format!("config.port_mappings: {field}")), "{refusal:?}");
    daemon.wait_until_like(&before);
}

#[test]
fn ports_of_the_host_and_of_the_daemon_are_refused() {
    let mut daemon = Daemon::on(TestEnv::connected(""));
    let pod = daemon.run_pod("pod");
    let url = daemon.client().forward_url(&pod.id);
    let (_, streaming) = url.split('/').nth(2).unwrap().rsplit_once(':').unwrap();
    let streaming: i32 = streaming.parse().unwrap();
    refused(&daemon, tcp(80, streaming), &format!("host_port {streaming}/TCP is in use"));
    let mut listener = daemon.env.host().command("/bin/busybox");
    let mut listener = listener.args(["httpd", "-f", "-p", "127.0.0.1:12081"]).spawn().unwrap();
    wait_for("the listener", seconds(10), || {
        let sockets = daemon.env.host().command("cat").arg("/proc/net/tcp").output().unwrap();
        String::from_utf8_lossy(&sockets.stdout).contains(":2F31 ").then_some(())
    });
    refused(&daemon, tcp(80, 12081), "host_port 12081/TCP is in use");
    listener.kill().unwrap();
    listener.wait().unwrap();
    // Now the pod holds the port, and no process can bind it, also with the next daemon.
    pod_with(&daemon, "web", vec![tcp(8080, 12081)]);
    for _ in 0..2 {
        let mut squatter = daemon.env.host().command("timeout");
        let squatted = squatter.args(["5", "/bin/busybox", "httpd", "-f", "-p", "12081"]).output().unwrap();
        let said = String::from_utf8_lossy(&squatted.stderr).into_owned();
        assert!(said.contains("in use"), "{said} {squatted:?}");
        daemon.restart();
    }
}

#[test]
fn addresses_that_are_not_the_hosts_are_refused() {
    let daemon = Daemon::on(TestEnv::connected(""));
    let pod = daemon.run_pod("pod");
    for foreign in ["192.0.2.99", &address(&daemon, &pod)] {
        let port = mapping(v1::Protocol::Tcp, 80, 12080, foreign);
        refused(&daemon, port, &format!("host_ip {foreign} is not an address of this host"));
    }
}
