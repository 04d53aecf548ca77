//! Pods and their networks, in a network namespace in place of the host's.

mod bridge;
mod cni;
mod plugins;
mod ports;

use cri_api::v1;

use crate::support::client::{Pod, container};
use crate::support::harness::{Daemon, seconds, wait_for};

/// Runs a web server in `pod` that returns the pod's name, and waits until it listens.
fn serve(daemon: &Daemon, pod: &Pod) -> String {
    let name = &pod.config.hostname;
    let script = format!("mkdir /www; echo {name} >/www/index.html; busybox httpd -f -p 8080 -h /www & wait");
    let id = daemon.client().run_config(pod, container("web", &["sh", "-c", &script]));
    wait_for("the web server", seconds(20), || {
        (daemon.client().exec(&id, &["busybox", "wget", "-qO-", "http://127.0.0.1:8080/"]).code == 0).then_some(())
    });
    id
}

/// The address of a pod that has one of each kind at most; the first one counts.
fn address(daemon: &Daemon, pod: &Pod) -> String {
    let ip = daemon.client().pod_status(&pod.id).network.unwrap().ip;
    assert!(!ip.is_empty(), "the pod has no address");
    ip
}

/// Returns the response for a URL to `container`.
fn fetch(daemon: &Daemon, container: &str, url: &str) -> String {
    daemon.client().exec(container, &["busybox", "timeout", "5", "busybox", "wget", "-qO-", url]).stdout
}

/// Returns the response for a URL to a process of the host.
fn fetch_from_host(daemon: &Daemon, url: &str) -> String {
    let answer = daemon
        .env
        .host()
        .command("/bin/busybox")
        .args(["timeout", "5", "busybox", "wget", "-qO-", url])
        .output()
        .unwrap();
    String::from_utf8(answer.stdout).unwrap()
}

/// The condition NetworkReady.
fn readiness(daemon: &Daemon) -> v1::RuntimeCondition {
    let request = v1::StatusRequest { verbose: false };
    let answer = daemon.client().call(|mut c| async move { c.status(request).await }).unwrap();
    answer.status.unwrap().conditions.into_iter().find(|condition| condition.r#type == "NetworkReady").unwrap()
}

fn update_addresses(daemon: &Daemon, cidr: &str) -> Result<(), tonic::Status> {
    let network_config = Some(v1::NetworkConfig { pod_cidr: cidr.to_owned() });
    let request = v1::UpdateRuntimeConfigRequest { runtime_config: Some(v1::RuntimeConfig { network_config }) };
    daemon.client().call(|mut c| async move { c.update_runtime_config(request).await }).map(drop)
}
