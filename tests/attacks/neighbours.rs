//! Attacks by other users of the machine, and by pods with the host's network.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use cri_api::v1;
use serde_json::json;

use crate::support::client::{container, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::image_fixture::Archive;
use crate::support::kernel_state;

/// Runs a program of the host as an unprivileged user.
fn as_unprivileged_user(program: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(program);
    // Dropping root drops its groups too.
    let output = command.args(arguments).uid(65534).gid(65534).current_dir("/").output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn other_users_of_the_host_cannot_enter_the_directories_of_crisp() {
    let env = TestEnv::new();
    env.import(&Archive::new("crisp.test/volumes:1").with("Volumes", json!({ "/data": {} })));
    // Else it is the test's own directory that keeps them out.
    fs::set_permissions(env.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &crate::support::client::IDLE);
    config.image.as_mut().unwrap().image = "crisp.test/volumes:1".into();
    let id = client.run_config(&pod, config);
    client.wait_printed(&id, "idle");
    let script = "cp /bin/busybox /data/suid; cp /bin/busybox /suid; chmod 4755 /data/suid /suid; chmod 777 / /data";
    client.exec_script(&id, script);
    let (state, root) = (daemon.env.state(), daemon.env.root());
    let (reachable, listed) = as_unprivileged_user("/usr/bin/ls", &[daemon.env.dir().to_str().unwrap()]);
    assert!(reachable && listed.contains("state"), "the test's own directory is closed: {listed}");
    for dir in [&state, &root] {
        let (_, found) = as_unprivileged_user("/usr/bin/find", &[dir.to_str().unwrap()]);
        let below: Vec<&str> = found.lines().filter(|line| *line != dir.to_str().unwrap()).collect();
        assert!(below.is_empty(), "{below:?}");
    }
    // By path, not only by listing directories.
    let all = fs::read_dir(root.join("containers").join(&id)).unwrap().chain(fs::read_dir(state.join("pods")).unwrap());
    let names: Vec<String> = all.map(|entry| entry.unwrap().path().display().to_string()).collect();
    assert!(names.len() > 2, "{names:?}");
    let writable = root.join("containers").join(&id);
    for name in names.iter().map(String::as_str).chain([writable.join("upper/suid").to_str().unwrap()]) {
        assert!(!as_unprivileged_user("/usr/bin/stat", &[name]).0, "{name}");
    }
    let suid = writable.join("upper/suid");
    assert!(fs::metadata(&suid).unwrap().permissions().mode() & 0o4000 != 0);
    assert!(!as_unprivileged_user("/usr/bin/stat", &[&format!("/proc/{}/root/suid", daemon.pids(&id)[0])]).0);
    for socket in [daemon.env.socket(), state.join("pods").join(&pod.id).join("shim.sock")] {
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o077, 0, "{}", socket.display());
    }
}

#[test]
fn files_written_by_a_container_cannot_become_set_uid_programs_on_the_host() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    for file in ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"] {
        let script = format!("echo '#!/bin/sh' > {file} && chmod 4755 {file} && {file}");
        let done = client.exec(&id, &["sh", "-c", &script]);
        assert!(done.code != 0 && done.stderr.contains("Permission denied"), "{file}: {done:?}");
        let name = file.trim_start_matches("/etc/");
        let options = client.exec_script(&id, &format!("grep ' {file} ' /proc/mounts"));
        for option in ["nosuid", "nodev", "noexec"] {
            assert!(options.contains(option), "{name}: {options}");
        }
    }
}

#[test]
fn a_container_that_fills_its_pods_files_fills_no_other_file_system() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let state = daemon.env.state();
    let free = || {
        let found = rustix::fs::statvfs(&state).unwrap();
        found.f_bavail * found.f_frsize
    };
    let before = free();
    for file in ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"] {
        let fill = client.exec(&id, &["dd", "if=/dev/zero", &format!("of={file}"), "bs=1M", "count=200"]);
        assert!(fill.code != 0 && fill.stderr.contains("No space left"), "{file}: {fill:?}");
    }
    // Others write there too, though not as much.
    assert!(before.saturating_sub(free()) < 100 << 20, "{before} {}", free());
    let sizes = ["hosts", "hostname", "resolv.conf"]
        .map(|name| fs::metadata(format!("/proc/{}/root/etc/{name}", daemon.pids(&id)[0])).unwrap().len());
    assert!(sizes.iter().sum::<u64>() < 4 << 20, "{sizes:?}");
    assert_eq!(client.script(&pod, "after", "echo fine").stdout, "fine\n");
}

/// The inodes of the sockets that a process has open.
fn sockets(pid: i32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode =
        |link: std::path::PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned);
    links.filter_map(inode).collect()
}

#[test]
fn crisp_listens_only_in_its_own_directories() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let node = v1::NamespaceMode::Node;
    let options =
        v1::NamespaceOption { network: node.into(), ..crate::support::client::namespaces(v1::NamespaceMode::Pod) };
    let pod = daemon.run_pod_with("pod", |config| *crate::support::client::pod_namespaces(config) = options.clone());
    let mut config = container("main", &crate::support::client::IDLE);
    security(&mut config).namespace_options = Some(options);
    let id = client.run_config(&pod, config);
    let ours: Vec<String> =
        daemon.shims().into_iter().chain([daemon.pid()]).chain(daemon.pids(&id)).flat_map(sockets).collect();
    assert!(ours.len() >= 4, "{ours:?}");
    // Num RefCount Protocol Flags Type St Inode Path; one in the abstract has a path that begins
    // with @.
    let mut named = 0;
    for line in fs::read_to_string("/proc/net/unix").unwrap().lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if ours.iter().any(|inode| inode == fields[6])
            && let Some(path) = fields.get(7)
        {
            assert!(path.starts_with('/'), "{line}");
            let place = if path.starts_with("/proc/self/fd") { path } else { daemon.env.dir().to_str().unwrap() };
            assert!(path.starts_with(place), "{line}");
            named += 1;
        }
    }
    assert!(named >= 2, "the sockets of daemon and shim are not in the table");
    // A pod with the host's network sees the same table: nothing in it can be connected to from
    // there.
    let seen = client.exec_script(&id, "grep -c @ /proc/net/unix || true");
    let tcp = beyond_loopback();
    assert!(ours.iter().all(|inode| !tcp.contains(inode)), "{seen}");
}

/// Returns the inodes of all internet sockets except those at 127.0.0.1, where the streaming server
/// listens, which requires a token.
fn beyond_loopback() -> Vec<String> {
    let tables =
        ["tcp", "tcp6", "udp", "udp6"].map(|name| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default());
    let sockets = tables.iter().flat_map(|table| table.lines().skip(1).map(|line| line.split_whitespace()));
    let inode = |mut fields: std::str::SplitWhitespace<'_>| {
        let local = fields.nth(1)?.to_owned();
        Some(fields.nth(7)?.to_owned()).filter(|_| !local.starts_with("0100007F:"))
    };
    sockets.filter_map(inode).collect()
}

#[test]
fn containers_of_one_image_do_not_share_variables() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let run = |pod: &crate::support::client::Pod, name: &str| {
        let mut config = container(name, &crate::support::client::IDLE);
        config.envs = vec![v1::KeyValue { key: format!("OF_{name}"), value: b"secret".to_vec() }];
        client.run_config(pod, config)
    };
    let (one, two) = (daemon.run_pod("one"), daemon.run_pod("two"));
    let all = [run(&one, "A"), run(&one, "B"), run(&two, "C")];
    for (id, name) in all.iter().zip(["A", "B", "C"]) {
        let environ = fs::read(format!("/proc/{}/environ", daemon.pids(id)[0])).unwrap();
        let first = String::from_utf8(environ).unwrap().replace('\0', "\n");
        for variables in [first, client.exec_script(id, "env")] {
            let of: Vec<&str> = variables.lines().filter(|line| line.starts_with("OF_")).collect();
            assert_eq!(of, [format!("OF_{name}=secret")]);
        }
    }
    // Nor does anything of the daemon's own reach them.
    let daemons = fs::read(format!("/proc/{}/environ", daemon.pid())).unwrap();
    assert!(String::from_utf8_lossy(&daemons).contains("CRISP_"));
    assert!(!client.exec_script(&all[0], "env").contains("CRISP_"));
    assert!(kernel_state::status(daemon.shims()[0]).contains_key("Uid"));
    assert_eq!(fs::read(format!("/proc/{}/environ", daemon.shims()[0])).unwrap(), b"");
}

#[test]
fn the_pseudo_terminals_of_a_container_are_limited() {
    const SHARE: usize = 512;
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let hog = "for n in $(seq 540); do sleep 100000 < /dev/ptmx & done 2> /dev/null; echo full; wait; sleep 100000";
    let id = client.run(&pod, "hog", &["sh", "-c", hog]);
    client.wait_printed(&id, "full");
    let open = || {
        let listed = client.exec_script(&id, "ls /dev/pts");
        listed.lines().filter(|name| name.parse::<u32>().is_ok()).count()
    };
    wait_for("the terminals to be opened", seconds(60), || (open() >= SHARE).then_some(()));
    assert_eq!(open(), SHARE);
    // The other container can open terminals.
    let other = client.run_idle(&pod, "other");
    assert_eq!(client.exec_script(&other, "exec 3<> /dev/ptmx && ls /dev/pts | grep -c 0"), "1\n");
}
