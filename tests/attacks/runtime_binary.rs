//! Attacks on crisp's programs: on disk, running, and in processes that are about to execute a
//! container's program.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use cri_api::v1;
use cri_api::v1::NamespaceMode;
use rustix::fs::{SealFlags, fcntl_get_seals};
use sha2::{Digest as _, Sha256};
use tar::EntryType;
use tonic::Code;

use crate::support::client::{Client, Pod, container, namespaces, pod_namespaces, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, program, seconds, times, wait_for};
use crate::support::image_fixture::Archive;
use crate::support::kernel_state;
use crate::support::layer_fixture::Layer;

/// Returns the content of the programs on disk.
fn programs() -> Vec<Vec<u8>> {
    ["crisp", "crisp-shim"].map(|name| Sha256::digest(fs::read(program(name)).unwrap()).to_vec()).into()
}

fn pod_with_pids(daemon: &Daemon, mode: NamespaceMode) -> Pod {
    daemon.run_pod_with("pod", |config| *pod_namespaces(config) = namespaces(mode))
}

fn with_pids(mut config: v1::ContainerConfig, mode: NamespaceMode) -> v1::ContainerConfig {
    security(&mut config).namespace_options = Some(namespaces(mode));
    config
}

#[test]
fn a_script_with_proc_self_exe_as_interpreter_does_not_reach_crisp() {
    const IMAGE: &str = "crisp.test/script:1";
    let before = programs();
    let env = TestEnv::new();
    // The kernel runs the interpreter: the very program that executed the script.
    env.import(&Archive::new(IMAGE).on_top(Layer::new(|tar| tar.file("entry", 0o755, b"#!/proc/self/exe\n"))));
    let daemon = Daemon::on(env);
    let client = daemon.client();
    for mode in [NamespaceMode::Container, NamespaceMode::Pod, NamespaceMode::Node] {
        let pod = pod_with_pids(&daemon, mode);
        let run = |name: &str, command: &[&str]| {
            let mut config = with_pids(container(name, command), mode);
            config.image.as_mut().unwrap().image = IMAGE.into();
            client.try_create(&pod, config).unwrap()
        };
        let first = run("first", &["/entry"]);
        // In any case it exits.
        client.start(&first).ok();
        client.wait_exited(&first);
        let idle = run("idle", &crate::support::client::IDLE);
        client.start(&idle).unwrap();
        client.wait_printed(&idle, "idle");
        // Those of the pod are attacked as they come; on the host's, those of this test alone.
        let own: Vec<String> = daemon.shims().into_iter().chain([daemon.pid()]).map(|pid| pid.to_string()).collect();
        let pids = if mode == NamespaceMode::Node { own.join(" ") } else { "$(cd /proc; echo [0-9]*)".to_owned() };
        let attack = format!(
            "while :; do for pid in {pids}; do (exec 3< /proc/$pid/exe; echo x > /proc/self/fd/3); \
             echo x >> /proc/$pid/exe; echo x > /proc/$pid/exe; done; done 2> /dev/null"
        );
        let attacker = run("attacker", &["sh", "-c", &attack]);
        client.start(&attacker).unwrap();
        for _ in 0..times(8, 2) {
            client.try_exec(&idle, &["/entry"], 5).ok();
            client.try_exec(&idle, &["/proc/self/exe"], 5).ok();
            assert_eq!(client.exec_script(&idle, "echo fine"), "fine\n");
        }
        client.stop_pod(&pod.id).unwrap();
        client.remove_pod(&pod.id).unwrap();
    }
    assert!(programs() == before, "a program of crisp's was changed");
}

#[test]
fn libraries_of_an_image_are_not_loaded_for_account_lookups() {
    const IMAGE: &str = "crisp.test/accounts:1";
    let env = TestEnv::new();
    // The C library opens this file to find the libraries with accounts, and loads those. Opening a
    // FIFO without a writer blocks forever.
    let trap = Layer::new(|tar| tar.device(EntryType::Fifo, "etc/nsswitch.conf", (0, 0)));
    env.import(&Archive::new(IMAGE).on_top(trap));
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for user in [0, 1000] {
        let mut config = container(&format!("of-{user}"), &crate::support::client::IDLE);
        config.image.as_mut().unwrap().image = IMAGE.into();
        security(&mut config).run_as_user = Some(v1::Int64Value { value: user });
        let id = client.try_create(&pod, config).unwrap();
        client.start(&id).unwrap();
        client.wait_printed(&id, "idle");
        assert_eq!(client.exec_script(&id, "echo fine"), "fine\n");
    }
}

#[test]
fn the_program_of_a_shim_is_sealed() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let other = daemon.run_pod("other");
    let id = client.run_idle(&other, "main");
    let path = format!("/proc/{}/exe", daemon.shims()[0]);
    let held = File::open(&path).unwrap();
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert!(fcntl_get_seals(&held).unwrap().contains(seals));
    let before = fs::read(&path).unwrap();
    let busy = File::options().write(true).open(&path).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ExecutableFileBusy, "{busy}");
    client.stop_pod(&pod.id).unwrap();
    client.remove_pod(&pod.id).unwrap();
    // A known attack: hold the program open until no process runs it, then write. Even root of the
    // host cannot.
    let again = format!("/proc/self/fd/{}", held.as_raw_fd());
    if let Ok(mut writable) = File::options().write(true).open(&again) {
        assert!(writable.write_all(b"x").is_err() && writable.set_len(0).is_err());
    }
    assert!(File::options().write(true).truncate(true).open(&again).is_err());
    assert!(fs::read(&again).unwrap() == before);
    assert_eq!(client.exec_script(&id, "echo fine"), "fine\n");
}

fn name(pid: i32) -> String {
    kernel_state::processes().into_iter().find(|process| process.pid == pid).unwrap().name
}

/// Prints a line for every process that can be traced and does not belong to the container, as fast
/// as a shell can.
const LOOK_INTO: &str = "echo looking
while :; do for dir in /proc/[0-9]*; do
    for part in root/. cwd/. exe fd/0 fd/3 fd/4 fd/5 fd/6 fd/7 fd/8; do
        [ -e $dir/$part ] && read name < $dir/comm && case $name in
            sh|exe|sleep|busybox|true) ;;
            *) echo reached $name by $part ;;
        esac
    done
done; done 2> /dev/null";

#[test]
fn processes_that_enter_a_container_cannot_be_traced() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mode = NamespaceMode::Pod;
    let pod = pod_with_pids(&daemon, mode);
    let attacker = client.run_config(&pod, with_pids(container("attacker", &["sh", "-c", LOOK_INTO]), mode));
    client.wait_printed(&attacker, "looking");
    let victim = client.run_config(&pod, with_pids(container("victim", &crate::support::client::IDLE), mode));
    for round in 0..times(12, 3) {
        let config = with_pids(container(&format!("c{round}"), &["true"]), mode);
        let id = client.run_config(&pod, config);
        client.wait_exited(&id);
        client.remove(&id).unwrap();
        for _ in 0..3 {
            client.exec(&victim, &["true"]);
        }
    }
    let printed = client.lines(&attacker);
    assert_eq!(printed.len(), 1, "{printed:?}");
}

#[test]
fn the_init_of_a_shared_pid_namespace_gives_nothing_to_a_privileged_container() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mode = NamespaceMode::Pod;
    let pod = daemon.run_pod_with("pod", |config| {
        *pod_namespaces(config) = namespaces(mode);
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    });
    let mut config = with_pids(container("main", &crate::support::client::IDLE), mode);
    security(&mut config).privileged = true;
    let id = client.run_config(&pod, config);
    assert_eq!(client.exec_script(&id, "cat /proc/1/comm"), "crisp-init\n");
    assert_eq!(client.exec_script(&id, "ls -A /proc/1/root/ /proc/1/cwd/ | grep -v : | sort -u"), "\n");
    // The host's null device three times: its mode is the same already, in case this ever succeeds.
    assert_eq!(client.exec_script(&id, "for fd in /proc/1/fd/*; do stat -Lc %t:%T $fd; done | sort -u"), "1:3\n");
    assert_ne!(client.exec(&id, &["chmod", "666", "/proc/1/fd/0"]).code, 0);
    for attack in ["echo x > /proc/1/exe", "echo x > /proc/1/root/x", "mkdir /proc/1/root/x", "echo x > /proc/1/mem"] {
        assert_ne!(client.exec(&id, &["sh", "-c", attack]).code, 0, "{attack}");
    }
    client.exec(&id, &["sh", "-c", "for signal in 1 2 9 10 11 15 17 19; do kill -$signal 1; done; kill -9 -1"]);
    let init =
        kernel_state::processes().into_iter().find(|p| p.name == "crisp-init" && daemon.shims().contains(&p.parent));
    assert!(init.is_some(), "it was killed from inside");
    // Only the others were.
    client.wait_exited(&id);
    assert_eq!(client.pod_status(&pod.id).state(), v1::PodSandboxState::SandboxReady);
}

#[test]
fn containers_of_a_pod_trace_each_other_only_as_their_users_permit() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mode = NamespaceMode::Pod;
    let pod = pod_with_pids(&daemon, mode);
    let run = |name: &str, user: i64| {
        let mut config = with_pids(container(name, &["sleep", "100000"]), mode);
        config.envs.push(v1::KeyValue { key: "OF".into(), value: name.as_bytes().to_vec() });
        security(&mut config).run_as_user = Some(v1::Int64Value { value: user });
        client.run_config(&pod, config)
    };
    let all = [run("root", 0), run("user", 1000), run("same", 1000), run("other", 1001)];
    let inside = |id: &str| {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pids(id)[0])).unwrap();
        let line = status.lines().find(|line| line.starts_with("NSpid:")).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    let pids: Vec<String> = all.iter().map(|id| inside(id)).collect();
    let sees = |who: usize, whom: usize| {
        let pid = &pids[whom];
        let script = format!("cat /proc/{pid}/environ > /dev/null && ls /proc/{pid}/root/bin > /dev/null");
        client.exec(&all[who], &["sh", "-c", &script]).code == 0
    };
    let (root, user, same, other) = (0, 1, 2, 3);
    assert!(sees(user, same) && sees(same, user) && sees(root, root));
    for (who, whom) in [(user, root), (user, other), (other, user), (other, root), (root, user)] {
        assert!(!sees(who, whom), "{who} can trace {whom}");
    }
}

#[test]
fn a_container_in_the_hosts_pid_namespace_cannot_reach_the_shim() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mode = NamespaceMode::Node;
    let pod = pod_with_pids(&daemon, mode);
    let id = client.run_config(&pod, with_pids(container("main", &crate::support::client::IDLE), mode));
    for pid in [daemon.shims()[0], daemon.pid()] {
        assert_eq!(client.exec_script(&id, &format!("cat /proc/{pid}/comm")), format!("{}\n", name(pid)));
        for part in ["root", "cwd", "exe", "fd/0", "fd/4", "ns/mnt", "ns/pid"] {
            let look = client.exec(&id, &["readlink", &format!("/proc/{pid}/{part}")]);
            assert!(look.code != 0 && look.stdout.is_empty(), "{part}: {look:?}");
        }
        for part in ["root/etc/passwd", "environ", "mem", "maps", "auxv", "stack", "syscall"] {
            let look = client.exec(&id, &["head", "-c", "1", &format!("/proc/{pid}/{part}")]);
            assert!(look.code != 0 && look.stdout.is_empty(), "{part}: {look:?}");
        }
        for part in ["root/x", "cwd/x", "fd/0", "mem", "exe"] {
            let write = client.exec(&id, &["sh", "-c", &format!("echo x > /proc/{pid}/{part}")]);
            assert_ne!(write.code, 0, "{part}: {write:?}");
        }
    }
    assert_eq!(kernel_state::status(daemon.shims()[0])["TracerPid"], "0");
}

#[test]
fn a_container_that_stops_new_processes_does_not_prevent_the_pods_removal() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mode = NamespaceMode::Pod;
    let pod = pod_with_pids(&daemon, mode);
    let stop_all = "echo stopping; while :; do for dir in /proc/[0-9]*; do pid=${dir#/proc/}; \
                    case $pid in 1|$$) ;; *) kill -STOP $pid ;; esac; done; done 2> /dev/null";
    let attacker = client.run_config(&pod, with_pids(container("attacker", &["sh", "-c", stop_all]), mode));
    client.wait_printed(&attacker, "stopping");
    let (socket, shim) = (daemon.env.socket(), daemon.shims()[0]);
    let is_stopped = |pid: i32| {
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        String::from_utf8_lossy(&stat).rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    std::thread::scope(|threads| {
        // Two at once: one that is stopped, and one that waits for its turn.
        let makers = ["one", "two"].map(|name| {
            let (socket, pod) = (&socket, &pod);
            let make = move |number| format!("{name}-{number}");
            threads.spawn(move || {
                let client = Client::connect(socket);
                let mut all = (0..).map(|n| client.try_create(pod, with_pids(container(&make(n), &["true"]), mode)));
                all.find_map(Result::err).unwrap()
            })
        });
        wait_for("a launch to be stopped", seconds(60), || {
            let own = kernel_state::processes().into_iter().filter(|process| process.parent == shim);
            own.into_iter().any(|process| is_stopped(process.pid)).then_some(())
        });
        let begin = Instant::now();
        client.stop_pod(&pod.id).unwrap();
        assert!(begin.elapsed() < seconds(30), "{:?}", begin.elapsed());
        for maker in makers {
            let refusal = maker.join().unwrap();
            assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
        }
    });
    client.remove_pod(&pod.id).unwrap();
}
