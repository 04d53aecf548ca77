//! The namespaces that containers of a pod share, and those of their own.

use std::fs;

use cri_api::v1;
use rustix::process::Signal;

use crate::support::client::{container, namespaces, pod_namespaces, security};
use crate::support::harness::{Daemon, kill, seconds, wait_for};
use crate::support::kernel_state;

/// The namespace `kind` of a container's first process.
fn namespace(daemon: &Daemon, container: &str, kind: &str) -> String {
    let pid = daemon.pids(container)[0];
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().display().to_string()
}

fn host(kind: &str) -> String {
    fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string()
}

#[test]
fn a_container_has_its_own_pid_and_mount_namespaces_and_the_pods_others() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (pod, other) = (daemon.run_pod("pod"), daemon.run_pod("other"));
    let (a, b) = (client.run_idle(&pod, "a"), client.run_idle(&pod, "b"));
    let c = client.run_idle(&other, "c");
    for kind in ["net", "ipc", "uts"] {
        assert_eq!(namespace(&daemon, &a, kind), namespace(&daemon, &b, kind), "{kind}");
        assert_ne!(namespace(&daemon, &a, kind), namespace(&daemon, &c, kind), "{kind}");
        assert_ne!(namespace(&daemon, &a, kind), host(kind), "{kind}");
    }
    for kind in ["pid", "mnt"] {
        assert_ne!(namespace(&daemon, &a, kind), namespace(&daemon, &b, kind), "{kind}");
        assert_ne!(namespace(&daemon, &a, kind), host(kind), "{kind}");
    }
    let own = client.exec_script(&a, "echo /proc/[0-9]*; ps");
    assert!(own.contains("/proc/1 ") && !own.contains("crisp-init"), "{own}");
}

#[test]
fn a_pod_can_share_one_pid_namespace_with_an_init_process() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| *pod_namespaces(config) = namespaces(v1::NamespaceMode::Pod));
    let run = |name: &str, script: &str| {
        let mut config = container(name, &["sh", "-c", script]);
        security(&mut config).namespace_options = Some(namespaces(v1::NamespaceMode::Pod));
        client.run_config(&pod, config)
    };
    let a = run("a", "sleep 1111 & exec sleep 2222");
    let b = run("b", "exec sleep 3333");
    assert_eq!(namespace(&daemon, &a, "pid"), namespace(&daemon, &b, "pid"));
    assert_ne!(namespace(&daemon, &a, "pid"), host("pid"));
    assert_eq!(client.exec_script(&a, "cat /proc/1/comm"), "crisp-init\n");
    let seen = client.exec_script(&b, "ps");
    for program in ["sleep 1111", "sleep 2222", "sleep 3333"] {
        assert!(seen.contains(program), "{seen}");
    }
    // Orphans of a container that exited are reaped.
    run("c", "sh -c 'sleep 0.1 & exit 0'; sleep 0.3");
    let zombies = || client.exec_script(&b, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true");
    wait_for("zombies to be reaped", seconds(5), || (zombies() == "0\n").then_some(()));
}

#[test]
fn the_init_of_a_shared_pid_namespace_gives_no_access_to_the_host() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| *pod_namespaces(config) = namespaces(v1::NamespaceMode::Pod));
    let mut config = container("main", &["sleep", "1000"]);
    security(&mut config).namespace_options = Some(namespaces(v1::NamespaceMode::Pod));
    let id = client.run_config(&pod, config);
    let script = "ls /proc/1/root/ 2>&1; ls /proc/1/fd 2>&1; ls /proc/1/cwd/ 2>&1; readlink /proc/1/exe";
    let seen = client.exec(&id, &["sh", "-c", script]).stdout;
    for word in ["etc", "home", "crisp-e2e", "usr"] {
        assert!(!seen.contains(word), "{seen}");
    }
    let init =
        kernel_state::processes().into_iter().find(|p| p.name == "crisp-init" && daemon.shims().contains(&p.parent));
    let status = kernel_state::status(init.unwrap().pid);
    for set in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
}

#[test]
fn a_pod_whose_shared_pid_namespace_has_ended_is_not_ready_and_can_be_replaced() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let shared = |config: &mut v1::PodSandboxConfig| *pod_namespaces(config) = namespaces(v1::NamespaceMode::Pod);
    let pod = daemon.run_pod_with("pod", shared);
    let mut config = container("main", &["sleep", "1000"]);
    security(&mut config).namespace_options = Some(namespaces(v1::NamespaceMode::Pod));
    let id = client.run_config(&pod, config.clone());
    let init =
        kernel_state::processes().into_iter().find(|p| p.name == "crisp-init" && daemon.shims().contains(&p.parent));
    kill(init.unwrap().pid, Signal::KILL);
    wait_for("the pod to be not ready", seconds(10), || {
        (client.pod_status(&pod.id).state() == v1::PodSandboxState::SandboxNotready).then_some(())
    });
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerExited);
    client.stop_pod(&pod.id).unwrap();
    let again = daemon.run_pod_with("pod", |config| {
        shared(config);
        config.metadata.as_mut().unwrap().attempt = 1;
    });
    client.run_config(&again, config);
}

#[test]
fn a_container_can_join_the_pid_namespace_of_another() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let target = client.run(&pod, "target", &["sleep", "4444"]);
    let mut config = container("debugger", &["sh", "-c", "ps"]);
    let options = v1::NamespaceOption { target_id: target.clone(), ..namespaces(v1::NamespaceMode::Target) };
    security(&mut config).namespace_options = Some(options);
    let ended = client.finish_config(&pod, config);
    assert!(ended.stdout.contains("sleep 4444"), "{}", ended.stdout);
    assert_eq!(client.status(&target).state(), v1::ContainerState::ContainerRunning);
}

#[test]
fn the_hostname_is_the_pods() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| config.hostname = "my-host".into());
    let id = client.run_idle(&pod, "main");
    assert_eq!(client.exec_script(&id, "hostname"), "my-host\n");
    assert_eq!(client.exec_script(&id, "cat /etc/hostname"), "my-host\n");
    assert_ne!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), "my-host\n");
}

#[test]
fn shared_memory_belongs_to_the_pod_and_has_the_requested_size() {
    let daemon = Daemon::with_settings("[container]\nshm_size = 1048576\n");
    let client = daemon.client();
    let (pod, other) = (daemon.run_pod("pod"), daemon.run_pod("other"));
    let (a, b) = (client.run_idle(&pod, "a"), client.run_idle(&pod, "b"));
    let c = client.run_idle(&other, "c");
    client.exec_script(&a, "echo shared > /dev/shm/file");
    assert_eq!(client.exec_script(&b, "cat /dev/shm/file"), "shared\n");
    assert_eq!(client.exec_script(&c, "ls /dev/shm"), "");
    let full = client.exec(&a, &["dd", "if=/dev/zero", "of=/dev/shm/big", "bs=1M", "count=2"]);
    assert!(full.code != 0 && full.stderr.contains("No space left"), "{full:?}");
}

#[test]
fn a_pod_can_have_the_hosts_network_ipc_and_pid_namespaces() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let node = v1::NamespaceMode::Node;
    let options = v1::NamespaceOption { network: node.into(), ipc: node.into(), ..namespaces(node) };
    let pod = daemon.run_pod_with("pod", |config| *pod_namespaces(config) = options.clone());
    let mut config = container("main", &["sleep", "1000"]);
    security(&mut config).namespace_options = Some(options);
    let id = client.run_config(&pod, config);
    for kind in ["net", "ipc", "pid"] {
        assert_eq!(namespace(&daemon, &id, kind), host(kind), "{kind}");
    }
    let status = client.pod_status(&pod.id).linux.unwrap().namespaces.unwrap().options.unwrap();
    assert_eq!((status.network(), status.ipc(), status.pid()), (node, node, node));
    assert!(kernel_state::mounts_under(&daemon.env.state()).iter().all(|point| !point.ends_with("netns")));
}

#[test]
fn loopback_is_up_in_the_pods_network() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    client.run(&pod, "server", &["nc", "-ll", "-p", "7777", "-e", "echo", "pong"]);
    let id = client.run_idle(&pod, "main");
    let answer = wait_for("the server to listen", seconds(10), || {
        Some(client.exec(&id, &["nc", "127.0.0.1", "7777"])).filter(|done| done.code == 0)
    });
    assert_eq!(answer.stdout, "pong\n");
}

#[test]
fn sysctls_are_set_in_the_pods_namespaces_only() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let file = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let before = fs::read_to_string(file).unwrap();
    let pod = daemon.run_pod_with("pod", |config| {
        let sysctls = &mut config.linux.as_mut().unwrap().sysctls;
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "77".into());
        sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
    });
    let id = client.run_idle(&pod, "main");
    assert_eq!(client.exec_script(&id, &format!("cat {file} /proc/sys/kernel/shm_rmid_forced")), "77\n1\n");
    assert_eq!(fs::read_to_string(file).unwrap(), before);
}

#[test]
fn dns_settings_of_the_pod_are_in_resolv_conf() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        config.dns_config = Some(v1::DnsConfig {
            servers: vec!["10.9.8.7".into()],
            searches: vec!["a.test".into(), "b.test".into()],
            options: vec!["ndots:5".into()],
        });
    });
    let id = client.run_idle(&pod, "main");
    let text = client.exec_script(&id, "cat /etc/resolv.conf | sort");
    assert_eq!(text, "nameserver 10.9.8.7\noptions ndots:5\nsearch a.test b.test\n");
}

#[test]
fn a_pod_without_a_hostname_has_the_hosts() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let pod = daemon.run_pod_with("pod", |config| {
        config.hostname.clear();
        config.dns_config = Some(v1::DnsConfig::default());
    });
    let text =
        client.script(&pod, "main", "hostname; cat /etc/hostname; echo $HOSTNAME; wc -c < /etc/resolv.conf").stdout;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..3], [&name, &name, &name]);
    let host = fs::read("/etc/resolv.conf").unwrap_or_default().len();
    assert_eq!(lines[3].trim(), host.to_string());
}
