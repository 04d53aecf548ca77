//! Networks with the plugins of the distribution.

use std::fs;
use std::path::PathBuf;

use cri_api::v1;
use serde_json::json;
use tonic::Code;

use super::{address, fetch, fetch_from_host, readiness, serve, update_addresses};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};

/// The directory in which the plugin host-local keeps allocated addresses.
fn reservations(env: &TestEnv) -> PathBuf {
    env.dir().join("ipam")
}

/// A network by the plugins bridge, host-local and portmap.
fn network(env: &TestEnv, name: &str, subnet: &str) -> String {
    json!({
        "cniVersion": "1.0.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "dataDir": reservations(env),
                    "ranges": [[{ "subnet": subnet }]], "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
        ],
    })
    .to_string()
}

fn configure(env: &TestEnv, file: &str, text: &str) {
    // As tools write it: by rename, so the file is complete.
    let draft = env.dir().join("draft");
    fs::write(&draft, text).unwrap();
    fs::rename(draft, env.cni().join(file)).unwrap();
}

fn with_network(name: &str) -> Daemon {
    let env = TestEnv::connected("");
    configure(&env, "10-net.conflist", &network(&env, name, "10.88.0.0/24"));
    Daemon::on(env)
}

/// Returns the allocated addresses.
fn given_out(daemon: &Daemon, name: &str) -> Vec<String> {
    let entries = fs::read_dir(reservations(&daemon.env).join(name)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("10.")).collect()
}

#[test]
fn pods_are_attached_by_plugins_and_leave_nothing() {
    let daemon = with_network("net");
    let (one, two) = (
        daemon.run_pod_with("one", |config| {
            let (container_port, host_port) = (8080, 12080);
            config.port_mappings = vec![v1::PortMapping { container_port, host_port, ..Default::default() }];
        }),
        daemon.run_pod("two"),
    );
    serve(&daemon, &one);
    let b = serve(&daemon, &two);
    let at = address(&daemon, &one);
    assert!(at.starts_with("10.88.0."), "{at}");
    assert_eq!(fetch(&daemon, &b, &format!("http://{at}:8080/")), "one\n");
    assert_eq!(fetch_from_host(&daemon, "http://127.0.0.1:12080/"), "one\n");
    let condition = readiness(&daemon);
    assert!(condition.status && condition.message.contains("net"), "{condition:?}");
    assert_eq!(given_out(&daemon, "net").len(), 2);
    daemon.client().remove_everything();
    assert_eq!(given_out(&daemon, "net"), Vec::<String>::new());
    assert_eq!(fs::read_dir(daemon.env.root().join("cni")).into_iter().flatten().count(), 0);
    daemon.env.host().script("ip link delete cni0");
}

#[test]
fn with_cni_alone_the_node_waits_for_a_network() {
    let daemon = Daemon::on(TestEnv::connected("[network]\nmode = \"cni\""));
    let condition = readiness(&daemon);
    assert!(!condition.status && !condition.message.is_empty(), "{condition:?}");
    let refusal = daemon.client().try_run_pod(daemon.pod_config("pod")).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    daemon.env.wait_until_empty(Some(daemon.pid()));
    // The first valid configuration by name, whatever other files exist.
    configure(&daemon.env, "00-broken.conflist", "{ \"name\": ");
    configure(&daemon.env, "20-second.conflist", &network(&daemon.env, "second", "10.89.0.0/24"));
    configure(&daemon.env, "10-first.conflist", &network(&daemon.env, "first", "10.88.0.0/24"));
    wait_for("the node to be ready", seconds(10), || readiness(&daemon).status.then_some(()));
    let pod = daemon.run_pod("pod");
    assert!(address(&daemon, &pod).starts_with("10.88.0."));
    daemon.client().remove_everything();
    daemon.env.host().script("ip link delete cni0");
}

#[test]
fn a_pod_is_detached_from_the_network_it_was_attached_to() {
    let mut daemon = with_network("old");
    let pod = daemon.run_pod("pod");
    assert_eq!(given_out(&daemon, "old").len(), 1);
    fs::remove_file(daemon.env.cni().join("10-net.conflist")).unwrap();
    configure(&daemon.env, "10-new.conflist", &network(&daemon.env, "new", "10.90.0.0/24"));
    daemon.restart();
    daemon.client().stop_pod(&pod.id).unwrap();
    assert_eq!(given_out(&daemon, "old"), Vec::<String>::new());
    daemon.client().remove_everything();
    daemon.env.host().script("ip link delete cni0");
}

#[test]
fn addresses_of_pods_before_a_reboot_are_released() {
    let mut daemon = with_network("net");
    daemon.run_pod("pod");
    assert_eq!(given_out(&daemon, "net").len(), 1);
    daemon.kill9();
    daemon.env.power_off();
    daemon.revive();
    wait_for("the address to be given back", seconds(10), || given_out(&daemon, "net").is_empty().then_some(()));
    daemon.env.host().script("ip link delete cni0");
}

#[test]
fn a_template_is_rendered_with_the_pod_cidrs() {
    let env = TestEnv::connected("");
    let template = env.dir().join("template");
    let daemon = {
        let text = network(&env, "templated", "{{.PodCIDR}}");
        fs::write(&template, text).unwrap();
        let config = fs::read_to_string(env.config()).unwrap();
        fs::write(env.config(), format!("{config}template = {template:?}\n")).unwrap();
        Daemon::on(env)
    };
    update_addresses(&daemon, "10.91.0.0/24").unwrap();
    let pod = daemon.run_pod("pod");
    assert!(address(&daemon, &pod).starts_with("10.91.0."));
    daemon.client().remove_everything();
    daemon.env.host().script("ip link delete cni0");
}
