//! Debian's plugins in temporary network namespaces; one of them is the host's, so no bridge or
//! rule is left on the machine.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use model::{PortMapping, Protocol};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use super::support::{TestEnv, pod, slow, words};
use crate::attachment::Pod;
use crate::cni::{AddError, PluginError};

/// Debian's directory of plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// Runs a test on a thread in a new network namespace, with all its children.
fn on_a_host<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let host = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        sys::netns::loopback_up().unwrap();
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    });
    if let Err(panicked) = host.join() {
        std::panic::resume_unwind(panicked);
    }
}

/// A network namespace that exists until this is dropped. Its server at port 80 sends a greeting.
struct Namespace {
    path: PathBuf,
    end: Option<mpsc::Sender<()>>,
    keeper: Option<std::thread::JoinHandle<()>>,
}

impl Namespace {
    fn new() -> Self {
        let (found, path) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let keeper = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let listener = TcpListener::bind("0.0.0.0:80").unwrap();
            listener.set_nonblocking(true).unwrap();
            let thread = fs::read_link("/proc/thread-self").unwrap();
            found.send(Path::new("/proc").join(thread).join("ns/net")).unwrap();
            while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_millis(20)) {
                if let Ok((mut client, _)) = listener.accept() {
                    client.write_all(b"hello").unwrap();
                }
            }
        });
        Self { path: path.recv().unwrap(), end: Some(end), keeper: Some(keeper) }
    }

    /// Returns the output of a command in the namespace.
    fn run(&self, command: &[&str]) -> String {
        let net = format!("--net={}", self.path.display());
        run(&[&["nsenter", &net, "--"], command].concat())
    }

    fn addresses(&self) -> String {
        self.run(&["ip", "-brief", "address"])
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.end.take();
        self.keeper.take().unwrap().join().unwrap();
    }
}

fn run(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const V4: &str = "10.88.7.0/24";
const V6: &str = "fd00:88:7::/64";

/// A node with a bridge network of these ranges, followed by further plugins.
fn node(ranges: &[&str], more: &[(&str, Value)]) -> TestEnv {
    let test_env = TestEnv::new();
    test_env.change(|settings| settings.bin_dirs = vec![PLUGINS.into(), test_env.path("bin")]);
    let ranges: Vec<_> = ranges.iter().map(|range| json!([{ "subnet": range }])).collect();
    let ipam = json!({ "type": "host-local", "dataDir": test_env.path("leases"), "ranges": ranges });
    let bridge = json!({ "bridge": "crisp-test0", "isGateway": true, "ipMasq": true, "ipam": ipam });
    let plugins = [&[("bridge", bridge)], more].concat();
    // The list offers a newer version than Debian 12 supports; the newest common one is used.
    let mut head = json!({ "cniVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] });
    // The portmap of Debian 12 lists IPv6 rules and fails if those of IPv4 are missing.
    head["disableCheck"] = json!(more.iter().any(|(plugin, _)| *plugin == "portmap"));
    test_env.list_of(&head, &plugins);
    test_env
}

/// The newest version that these plugins and crisp support.
fn newest() -> &'static str {
    let output = Command::new(Path::new(PLUGINS).join("bridge")).env("CNI_COMMAND", "VERSION").output().unwrap();
    let output: Value = serde_json::from_slice(&output.stdout).unwrap();
    let speaks = |one: &&str| output["supportedVersions"].as_array().unwrap().contains(&json!(one));
    ["1.1.0", "1.0.0", "0.4.0"].into_iter().find(speaks).unwrap()
}

fn portmap() -> (&'static str, Value) {
    ("portmap", json!({ "capabilities": { "portMappings": true } }))
}

/// Returns the allocated addresses.
fn leases(test_env: &TestEnv) -> Vec<String> {
    let Ok(entries) = fs::read_dir(test_env.path("leases/net")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(|c: char| c.is_ascii_hexdigit())).collect();
    names.retain(|name| name.parse::<std::net::IpAddr>().is_ok());
    names.sort();
    names
}

/// Returns the rules of the host that name the pod, of both families.
fn rules_of(id: &str) -> Vec<String> {
    let all = run(&["iptables-save"]) + &run(&["ip6tables-save"]);
    all.lines().filter(|line| line.contains(id)).map(str::to_owned).collect()
}

fn mapped(id: &str, inside: &Namespace) -> Pod {
    let port = PortMapping { protocol: Protocol::Tcp, container_port: 80, host_port: 8080, host_ip: String::new() };
    Pod { ports: vec![port], netns: Some(inside.path.clone()), ..pod(id) }
}

#[test]
#[ignore = "needs root"]
fn the_plugins_of_debian_attach_check_and_detach_a_pod() {
    on_a_host(|| async {
        let test_env = node(&[V4], &[portmap(), ("loopback", json!({}))]);
        let inside = Namespace::new();
        let pod = mapped("pod1", &inside);
        test_env.cni.status().await.unwrap();
        let attached = test_env.cni.add(&pod).await.unwrap();
        assert_eq!(attached.ips, ["10.88.7.2".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(leases(&test_env), ["10.88.7.2"]);
        let seen = inside.addresses();
        assert!(seen.contains("eth0") && seen.contains("10.88.7.2/24"), "{seen}");
        assert!(seen.contains("127.0.0.1/8"), "the loopback plugin was there too: {seen}");
        assert!(!rules_of("pod1").is_empty());
        let cached = fs::read_to_string(test_env.path("cache/pod1@eth0@net.json")).unwrap();
        let cached: Value = serde_json::from_str(&cached).unwrap();
        let version = json!(newest());
        assert_eq!((&cached["config"]["cniVersion"], &cached["result"]["cniVersion"]), (&version, &version));
        for target in ["10.88.7.2:80", "10.88.7.1:8080"] {
            let mut stream =
                TcpStream::connect_timeout(&target.parse().unwrap(), slow(Duration::from_secs(5))).unwrap();
            stream.set_read_timeout(Some(slow(Duration::from_secs(5)))).unwrap();
            let mut greeting = String::new();
            stream.read_to_string(&mut greeting).unwrap();
            assert_eq!(greeting, "hello", "{target}");
        }
        test_env.cni.check(&pod).await.unwrap();
        test_env.cni.del(&pod).await.unwrap();
        assert!(!inside.addresses().contains("eth0"));
        assert_eq!(leases(&test_env), Vec::<String>::new());
        assert_eq!(rules_of("pod1"), Vec::<String>::new());
        assert!(test_env.cached().is_empty());
        assert!(!run(&["ip", "-brief", "link"]).contains("veth"));
        test_env.cni.del(&pod).await.expect("a repeated detach succeeds");
    });
}

#[test]
#[ignore = "needs root"]
fn check_detects_a_broken_attachment_that_del_can_remove() {
    on_a_host(|| async {
        let test_env = node(&[V4, V6], &[]);
        let inside = Namespace::new();
        let pod = mapped("pod1", &inside);
        let attached = test_env.cni.add(&pod).await.unwrap();
        let ips: Vec<_> = attached.ips.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.88.7.2", "fd00:88:7::2"]);
        assert_eq!(leases(&test_env), ips);
        let seen = inside.addresses();
        assert!(seen.contains("10.88.7.2/24") && seen.contains("fd00:88:7::2/64"), "{seen}");
        test_env.cni.check(&pod).await.unwrap();
        inside.run(&["ip", "address", "delete", "10.88.7.2/24", "dev", "eth0"]);
        let error = test_env.cni.check(&pod).await.unwrap_err();
        assert!(words(&error).contains("10.88.7.2"), "{}", words(&error));
        inside.run(&["ip", "link", "delete", "eth0"]);
        test_env.cni.check(&pod).await.unwrap_err();
        test_env.cni.del(&pod).await.unwrap();
        assert!(leases(&test_env).is_empty() && test_env.cached().is_empty());
    });
}

#[test]
#[ignore = "needs root"]
fn addresses_are_released_without_namespace_daemon_and_configuration() {
    on_a_host(|| async {
        let mut test_env = node(&[V4, V6], &[portmap()]);
        let inside = Namespace::new();
        let pod = mapped("pod1", &inside);
        test_env.cni.add(&pod).await.unwrap();
        drop(inside);
        fs::remove_dir_all(test_env.path("conf")).unwrap();
        test_env.restart();
        assert_eq!(test_env.cni.attachments().unwrap(), ["pod1"]);
        assert_eq!(leases(&test_env).len(), 2);
        let done = test_env.cni.gc(&[]).await;
        assert!(done.failed.is_empty(), "{:?}", done.failed);
        assert_eq!(done.detached, ["pod1"]);
        assert!(leases(&test_env).is_empty() && test_env.cached().is_empty());
        assert!(!rules_of("pod1").iter().any(|rule| rule.contains("8080")));
    });
}

#[test]
#[ignore = "needs root"]
fn a_failure_of_a_later_plugin_removes_the_bridge_interface() {
    on_a_host(|| async {
        let test_env = node(&[V4, V6], &[portmap(), ("broken", json!({}))]);
        test_env.plugin("broken", "case $CNI_COMMAND in ADD) echo no luck >&2; exit 1 ;; VERSION) exit 1 ;; esac");
        let inside = Namespace::new();
        let error = test_env.cni.add(&mapped("pod1", &inside)).await.unwrap_err();
        assert!(matches!(&error, AddError::Plugin { source: PluginError::Failed { .. }, .. }), "{}", words(&error));
        assert!(words(&error).ends_with("no luck"), "{}", words(&error));
        assert!(!inside.addresses().contains("eth0"));
        assert!(leases(&test_env).is_empty() && test_env.cached().is_empty() && rules_of("pod1").is_empty());
        // The error of a real plugin.
        let conditions = json!({ "capabilities": { "portMappings": true }, "conditionsV4": ["--no-such-condition"] });
        let test_env = node(&[V4], &[("portmap", conditions)]);
        let error = test_env.cni.add(&mapped("pod2", &inside)).await.unwrap_err();
        assert!(words(&error).contains("the CNI plugin portmap refused ADD"), "{}", words(&error));
        assert!(leases(&test_env).is_empty() && test_env.cached().is_empty(), "{}", words(&error));
    });
}

#[test]
#[ignore = "needs root"]
fn an_error_has_the_message_of_the_plugin() {
    on_a_host(|| async {
        let test_env = node(&[V4], &[]);
        let bridge = json!({ "bridge": "crisp-test0", "ipam": { "type": "host-local",
            "subnet": "10.88.7.0/31", "dataDir": test_env.path("leases") } });
        test_env.list(&[("bridge", bridge.clone())]);
        let inside = Namespace::new();
        let error = test_env.cni.add(&mapped("pod1", &inside)).await.unwrap_err();
        assert!(words(&error).contains("too small"), "{}", words(&error));
        // The plugin fails at DEL too with such a file, and succeeds with the next one.
        assert!(matches!(&error, AddError::LeftBehind { .. }), "{}", words(&error));
        assert_eq!(test_env.cni.attachments().unwrap(), ["pod1"]);
        test_env.cni.del(&mapped("pod1", &inside)).await.unwrap_err();
        let mut mended = bridge;
        mended["ipam"]["subnet"] = json!("10.88.7.0/24");
        test_env.list(&[("bridge", mended)]);
        test_env.cni.del(&mapped("pod1", &inside)).await.unwrap();
        assert!(test_env.cached().is_empty());
    });
}
