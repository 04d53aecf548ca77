//! The processes of pods with user namespaces: their ids, their cgroups and their rights.

use std::fs;

use cri_api::v1;
use tonic::Code;

use super::{FIRST, able, as_user, idle, ids, inside, line, mapped, run_pod, run_pod_with, script};
use crate::container::privileges::{Wish, compare};
use crate::support::client::{namespaces, pod_namespaces, security};
use crate::support::harness::{Daemon, seconds, times, wait_for};
use crate::support::kernel_state;

fn namespace(pid: i32, kind: &str) -> String {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().display().to_string()
}

fn host(kind: &str) -> String {
    fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string()
}

#[test]
fn root_in_the_container_has_no_rights_on_the_host() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let id = client.run_config(&pod, idle("main"));
    client.exec_script(&id, "sleep 1000 > /dev/null 2>&1 &");
    let pids = daemon.pids(&id);
    assert!(pids.len() >= 3, "{pids:?}");
    let four = [FIRST.to_string(), FIRST.to_string(), FIRST.to_string(), FIRST.to_string()].join(" ");
    for pid in pids {
        let status = kernel_state::status(pid);
        assert_eq!((&status["Uid"], &status["Gid"], &status["Groups"]), (&four, &four, &FIRST.to_string()));
    }
    let map = client.exec_script(&id, "cat /proc/self/uid_map /proc/1/gid_map; id -u; id -g");
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "65536", "65536", "0", "65536", "65536", "0", "0"]);
    let told = client.pod_status(&pod.id).linux.unwrap().namespaces.unwrap().options.unwrap();
    assert_eq!(told.userns_options, Some(mapped(ids())));
    let said = fs::read_to_string(daemon.env.state().join("pods").join(&pod.id).join("shim.log")).unwrap();
    assert!(!said.contains("among all mounts"), "{said}");
}

#[test]
fn several_id_mappings_are_applied_as_requested() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let uids = vec![line(0, 200_000, 10), line(1000, 300_000, 1)];
    let gids = vec![line(0, 400_000, 5), line(1000, 500_000, 2001)];
    let userns = v1::UserNamespace { uids, gids, ..mapped(vec![]) };
    let pod = run_pod_with(&daemon, "pod", |config| pod_namespaces(config).userns_options = Some(userns.clone()));
    let run = |config: v1::ContainerConfig, user| {
        let mut config = as_user(config, user);
        security(&mut config).namespace_options.as_mut().unwrap().userns_options = Some(userns.clone());
        client.run_config(&pod, config)
    };
    let (root, user) = (run(idle("root"), 0), run(idle("user"), 1000));
    let status = [&root, &user].map(|id| kernel_state::status(daemon.pids(id)[0]));
    assert_eq!(
        (&*status[0]["Uid"], &*status[0]["Gid"]),
        ("200000 200000 200000 200000", "400000 400000 400000 400000")
    );
    assert_eq!(
        (&*status[1]["Uid"], &*status[1]["Gid"]),
        ("300000 300000 300000 300000", "500000 500000 500000 500000")
    );
    assert_eq!(status[1]["Groups"], "500000 501000 502000");
    let map = client.exec_script(&user, "cat /proc/self/uid_map");
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "200000", "10", "1000", "300000", "1"]);
    // There is no group 5, which terminals usually belong to.
    let mut terminal = as_user(script("tty", "stat -c '%u:%g %a' $(readlink /proc/self/fd/0)"), 1000);
    terminal.tty = true;
    security(&mut terminal).namespace_options.as_mut().unwrap().userns_options = Some(userns.clone());
    assert_eq!(client.finish_config(&pod, terminal).stdout, "1000:0 620\r\n");
}

#[test]
fn root_of_the_pod_has_rights_in_the_pods_namespaces() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (pod, other) = (run_pod(&daemon, "pod"), run_pod(&daemon, "other"));
    let run = |pod, name: &str| daemon.pids(&client.run_config(pod, idle(name)))[0];
    let (a, b, c) = (run(&pod, "a"), run(&pod, "b"), run(&other, "c"));
    for kind in ["user", "net", "ipc", "uts"] {
        assert_eq!(namespace(a, kind), namespace(b, kind), "{kind}");
        assert_ne!(namespace(a, kind), namespace(c, kind), "{kind}");
        assert_ne!(namespace(a, kind), host(kind), "{kind}");
    }
    for kind in ["pid", "mnt"] {
        assert_ne!(namespace(a, kind), namespace(b, kind), "{kind}");
    }
    let net = client.run_config(&pod, able(idle("net"), "NET_ADMIN"));
    let before = fs::read_to_string("/proc/net/dev").unwrap();
    client.exec_script(&net, "ip link set lo down && ip link set lo up && ip addr add 127.7.7.7/8 dev lo");
    assert_eq!(fs::read_to_string("/proc/net/dev").unwrap().lines().count(), before.lines().count());
    let name = client.run_config(&pod, able(idle("name"), "SYS_ADMIN"));
    assert_eq!(client.exec_script(&name, "hostname; hostname changed; hostname"), "pod\nchanged\n");
    assert_ne!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), "changed\n");
    let refused = client.exec(&client.run_config(&pod, idle("plain")), &["hostname", "not-mine"]);
    assert!(refused.code != 0, "{refused:?}");
}

#[test]
fn sysctls_of_every_namespace_are_set() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (port, forced) = ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/kernel/shm_rmid_forced");
    let before = [port, forced, "/proc/sys/fs/mqueue/msg_max"].map(|file| fs::read_to_string(file).unwrap());
    let pod = run_pod_with(&daemon, "pod", |config| {
        let sysctls = &mut config.linux.as_mut().unwrap().sysctls;
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "77".into());
        sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
        sysctls.insert("fs.mqueue.msg_max".into(), "17".into());
    });
    let id = client.run_config(&pod, idle("main"));
    let seen = client.exec_script(&id, &format!("cat {port} {forced} /proc/sys/fs/mqueue/msg_max"));
    assert_eq!(seen, "77\n1\n17\n");
    assert_eq!([port, forced, "/proc/sys/fs/mqueue/msg_max"].map(|file| fs::read_to_string(file).unwrap()), before);
    let refusal = daemon.client().try_run_pod({
        let mut config = daemon.pod_config("wrong");
        pod_namespaces(&mut config).userns_options = Some(mapped(ids()));
        config.linux.as_mut().unwrap().sysctls.insert("kernel.shmmax".into(), "many".into());
        config
    });
    assert!(refusal.unwrap_err().message().contains("kernel.shmmax=many"));
}

#[test]
fn a_shared_pid_namespace_has_an_init_process_without_rights_or_access_to_the_host() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let spaces = |mode| v1::NamespaceOption { userns_options: Some(mapped(ids())), ..namespaces(mode) };
    let pod = run_pod_with(&daemon, "pod", |config| *pod_namespaces(config) = spaces(v1::NamespaceMode::Pod));
    let run = |mut config: v1::ContainerConfig| {
        security(&mut config).namespace_options = Some(spaces(v1::NamespaceMode::Pod));
        client.run_config(&pod, config)
    };
    let (a, b) = (run(idle("a")), run(inside("b", &["sleep", "4321"])));
    assert_eq!(namespace(daemon.pids(&a)[0], "pid"), namespace(daemon.pids(&b)[0], "pid"));
    let seen = client.exec_script(&a, "cat /proc/1/comm; ps");
    assert!(seen.starts_with("crisp-init\n") && seen.contains("sleep 4321"), "{seen}");
    let init =
        kernel_state::processes().into_iter().find(|p| p.name == "crisp-init" && daemon.shims().contains(&p.parent));
    let init = init.expect("it is the shim's child");
    let status = kernel_state::status(init.pid);
    assert_eq!(status["Uid"], format!("{FIRST} {FIRST} {FIRST} {FIRST}"));
    for set in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    let look = "ls /proc/1/root/ 2>&1; ls /proc/1/fd 2>&1; ls /proc/1/cwd/ 2>&1; readlink /proc/1/exe";
    let seen = client.exec(&a, &["sh", "-c", look]).stdout;
    for word in ["etc", "home", "crisp-e2e", "usr"] {
        assert!(!seen.contains(word), "{seen}");
    }
    // It exits with its shim.
    let shim = daemon.shims()[0];
    crate::support::harness::kill(shim, rustix::process::Signal::KILL);
    wait_for("the init to end", seconds(10), || (!kernel_state::is_alive(init.pid)).then_some(()));
}

#[test]
fn processes_of_the_pod_cannot_trace_a_process_that_is_being_created() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let spaces = |mode| v1::NamespaceOption { userns_options: Some(mapped(ids())), ..namespaces(mode) };
    let pod = run_pod_with(&daemon, "pod", |config| *pod_namespaces(config) = spaces(v1::NamespaceMode::Pod));
    let shared = |mut config: v1::ContainerConfig| {
        security(&mut config).namespace_options = Some(spaces(v1::NamespaceMode::Pod));
        config
    };
    // The image has none of these directories, and every host has.
    let look = "while :; do for p in /proc/[0-9]*; do for d in root cwd; do \
        test -e $p/$d/usr -o -e $p/$d/var && echo $p >> /tmp/seen; done; \
        ls -l $p/fd $p/exe 2> /dev/null | grep -e crisp -e memfd >> /tmp/seen; done; done";
    let mut spy = shared(script("spy", look));
    let all = vec!["ALL".to_owned()];
    security(&mut spy).capabilities = Some(v1::Capability { add_capabilities: all, ..Default::default() });
    let spy = client.run_config(&pod, spy);
    for number in 0..times(15, 3) {
        let id = client.run_config(&pod, shared(idle(&format!("c{number}"))));
        for _ in 0..5 {
            client.exec_script(&id, "true");
        }
        client.remove(&id).unwrap();
    }
    assert_eq!(client.exec_script(&spy, "head -n 5 /tmp/seen 2> /dev/null; cat /proc/1/comm"), "crisp-init\n");
}

#[test]
fn a_container_can_join_the_pid_namespace_of_another() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let target = client.run_config(&pod, inside("target", &["sleep", "4444"]));
    let mut config = inside("debugger", &["sh", "-c", "ps; ls /proc/1/root/bin/busybox"]);
    let options = security(&mut config).namespace_options.as_mut().unwrap();
    (options.pid, options.target_id) = (v1::NamespaceMode::Target.into(), target);
    let config = able(config, "SYS_PTRACE");
    let seen = client.finish_config(&pod, config).stdout;
    assert!(seen.contains("sleep 4444") && seen.contains("/proc/1/root/bin/busybox"), "{seen}");
}

#[test]
fn the_hosts_network_can_be_used_but_not_configured() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let node = v1::NamespaceMode::Node.into();
    let pod = run_pod_with(&daemon, "pod", |config| pod_namespaces(config).network = node);
    let mut config = able(idle("main"), "NET_ADMIN");
    let security = security(&mut config);
    security.namespace_options.as_mut().unwrap().network = node;
    security.masked_paths.push("/sys/kernel".into());
    let id = client.run_config(&pod, config);
    let pid = daemon.pids(&id)[0];
    assert_eq!((namespace(pid, "net"), namespace(pid, "uts")), (host("net"), host("uts")));
    let refused = client.exec(&id, &["ip", "addr", "add", "127.7.7.7/8", "dev", "lo"]);
    assert!(refused.code != 0 && refused.stderr.contains("not permitted"), "{refused:?}");
    let mut devices: Vec<_> = fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    devices.sort();
    let devices: String = devices.iter().map(|name| format!("{}\n", name.display())).collect();
    assert_eq!(client.exec_script(&id, "ls /sys/class/net; ls /sys/kernel"), devices);
    let mounts = client.exec_script(&id, "cat /proc/self/mountinfo");
    let mut places: Vec<_> = mounts.lines().map(|line| (line.split(' ').nth(4).unwrap(), line)).collect();
    places.retain(|(place, _)| place.starts_with("/sys") && !place.starts_with("/sys/fs/cgroup"));
    places.sort_unstable();
    assert_eq!(places.iter().map(|(place, _)| *place).collect::<Vec<_>>(), ["/sys", "/sys/kernel"], "{mounts}");
    assert!(places[0].1.contains(" /sys ro,nosuid,nodev,noexec"), "{mounts}");
}

#[test]
fn every_combination_of_rights_is_as_requested() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    for wish in Wish::all().into_iter().step_by(times(1, 5)) {
        let mut config = wish.config();
        security(&mut config).namespace_options.as_mut().unwrap().userns_options = Some(mapped(ids()));
        let id = client.run_config(&pod, config);
        compare("first", wish, FIRST.into(), &kernel_state::status(daemon.pids(&id)[0]));
        compare("exec'd", wish, 0, &kernel_state::status_lines(&client.exec_script(&id, "cat /proc/self/status")));
        client.remove(&id).unwrap();
    }
}

#[test]
fn a_privileged_container_has_its_rights_in_its_user_namespace_only() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod_with(&daemon, "pod", |config| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    });
    let mut config = idle("main");
    security(&mut config).privileged = true;
    let id = client.run_config(&pod, config);
    let all = "000001ffffffffff";
    for status in [
        kernel_state::status(daemon.pids(&id)[0]),
        kernel_state::status_lines(&client.exec_script(&id, "cat /proc/self/status")),
    ] {
        assert_eq!((&*status["CapEff"], &*status["CapBnd"], &*status["Seccomp"]), (all, all, "0"));
    }
    client.exec_script(&id, "mkdir /tmp/m && mount -t tmpfs x /tmp/m && umount /tmp/m && mount -t sysfs x /tmp/m");
    for (what, script) in [
        ("a device", "busybox mknod /tmp/sda b 8 0"),
        ("the host's kernel", "echo x > /proc/sys/kernel/core_pattern"),
        (
            "a cgroup",
            "for procs in $(busybox find /sys/fs/cgroup -name cgroup.procs); do echo 1 > $procs && exit 0; done; exit 1",
        ),
    ] {
        let done = client.exec(&id, &["sh", "-c", script]);
        let denied = done.stderr.contains("not permitted") || done.stderr.contains("Permission denied");
        assert!(done.code != 0 && denied, "{what}: {done:?}");
    }
    // Of the host's devices those that every user may use.
    let everybodys = |name: &str| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(format!("/dev/{name}")).map(|meta| meta.mode() & 0o006 != 0)
    };
    let own = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"];
    for name in client.exec_script(&id, "cd /dev; for f in *; do test -b $f -o -c $f && echo $f; done; true").lines() {
        assert!(own.contains(&name) || everybodys(name).is_ok_and(|open| open), "{name}");
    }
}

#[test]
fn all_processes_are_in_the_pods_cgroup() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let parent = daemon.env.pod_cgroup("pod-of-the-kubelet");
    let pod = run_pod_with(&daemon, "pod", |config| config.linux.as_mut().unwrap().cgroup_parent = parent.clone());
    let id = client.run_config(&pod, idle("main"));
    client.exec_script(&id, "sleep 1000 > /dev/null 2>&1 &");
    let expected = format!("{parent}/{id}");
    let pids = daemon.pids(&id);
    assert!(pids.len() >= 3, "{pids:?}");
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let paths = text.lines().map(|line| line.splitn(3, ':').nth(2).unwrap());
        let mounted = kernel_state::hierarchies().len();
        assert!(paths.filter(|path| *path == expected).count() >= mounted, "process {pid}: {text}");
    }
    client.remove_pod(&pod.id).unwrap();
    daemon.env.remove_pod_cgroup(&parent);
}

#[test]
fn an_oom_score_is_as_requested_and_the_container_cannot_lower_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let mut config = idle("main");
    let resources = v1::LinuxContainerResources { oom_score_adj: 567, ..Default::default() };
    config.linux.as_mut().unwrap().resources = Some(resources);
    let id = client.run_config(&pod, config);
    assert_eq!(fs::read_to_string(format!("/proc/{}/oom_score_adj", daemon.pids(&id)[0])).unwrap(), "567\n");
    assert_eq!(client.exec_script(&id, "cat /proc/self/oom_score_adj"), "567\n");
    let lower = client.exec(&id, &["sh", "-c", "echo -900 > /proc/self/oom_score_adj"]);
    assert!(lower.code != 0, "{lower:?}");
}

#[test]
fn failed_and_timed_out_commands_leave_nothing() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = run_pod(&daemon, "pod");
    let id = client.run_config(&pod, idle("main"));
    client.exec_script(&id, "true");
    let (before, shim) = (daemon.snapshot(), daemon.shims()[0]);
    let held = kernel_state::holding(shim).fds;
    for number in 0..times(30, 5) {
        assert_eq!(client.exec(&id, &["sh", "-c", &format!("echo {number}; exit 3")]).code, 3);
        let refusal = client.try_exec(&id, &["not-there"], 0).unwrap_err();
        assert!(refusal.message().contains("\"not-there\": executable file not found"), "{refusal:?}");
    }
    let late = client.try_exec(&id, &["sh", "-c", "sleep 1234 & sleep 1234"], 1).unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    daemon.wait_until_like(&before);
    assert_eq!(kernel_state::holding(shim).fds, held);
    let children = fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap();
    assert_eq!(children.split_whitespace().count(), 1, "no zombies: {children}");
}
