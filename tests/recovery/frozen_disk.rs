//! File systems that hang: requests of their pods wait, and block no other pod.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cri_api::v1;
use tonic::Code;

use crate::support::client::{Client, Pod, container};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::kernel_state;

/// A file system that can be frozen. Thawed and removed when dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(env: &TestEnv) -> Self {
        let (file, point) = (env.dir().join("disk.img"), env.dir().join("disk"));
        fs::File::create(&file).unwrap().set_len(32 << 20).unwrap();
        fs::create_dir(&point).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&file));
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&point));
        Self(point)
    }

    fn freeze(&self) {
        run(Command::new("fsfreeze").arg("-f").arg(&self.0));
    }

    fn thaw(&self) {
        run(Command::new("fsfreeze").arg("-u").arg(&self.0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It may be thawed already.
        Command::new("fsfreeze").arg("-u").arg(&self.0).output().ok();
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Requests of a client with a timeout of one second.
fn give_up<T: Send + 'static>(daemon: &Daemon, ask: impl FnOnce(&Client) -> T + Send + 'static) {
    let socket = daemon.env.socket();
    let (begun, begin) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let client = Client::connect(&socket);
        begun.send(()).unwrap();
        drop(ask(&client));
    });
    begin.recv().unwrap();
    std::thread::sleep(Duration::from_millis(300));
}

/// Requests a container that cannot be created, and waits a second for it.
fn create_in_vain(client: &Client, pod: &Pod, config: v1::ContainerConfig) {
    let mut request = tonic::Request::new(v1::CreateContainerRequest {
        pod_sandbox_id: pod.id.clone(),
        config: Some(config),
        sandbox_config: Some(pod.config.clone()),
    });
    request.set_timeout(Duration::from_secs(1));
    let refusal = client.call(|mut c| async move { c.create_container(request).await }).unwrap_err();
    // The deadline of the daemon or of this client.
    assert!(matches!(refusal.code(), Code::DeadlineExceeded | Code::Cancelled), "{refusal:?}");
}

/// Checks that other pods are served.
fn assert_served(daemon: &Daemon, other: &Pod, name: &str) {
    let begin = Instant::now();
    let client = Client::connect(&daemon.env.socket());
    let id = client.run_idle(other, name);
    assert_eq!(client.exec_script(&id, "echo fine"), "fine\n");
    client.reopen_log(&id).unwrap();
    client.stop(&id, 5).unwrap();
    client.remove(&id).unwrap();
    assert!(!client.pods().is_empty() && client.try_pod_status(&other.id).is_ok());
    assert!(begin.elapsed() < seconds(5), "other pods waited {:?}", begin.elapsed());
}

/// Kills the daemon, and starts another while the file system is frozen.
fn replace(daemon: &mut Daemon) {
    let begin = Instant::now();
    daemon.kill9();
    daemon.revive();
    assert!(begin.elapsed() < seconds(15), "the next daemon took {:?}", begin.elapsed());
}

fn assert_ends(daemon: &Daemon, pod: &Pod) {
    let (client, begin) = (Client::connect(&daemon.env.socket()), Instant::now());
    client.stop_pod(&pod.id).unwrap();
    assert!(begin.elapsed() < seconds(12), "the stop took {:?}", begin.elapsed());
    client.remove_pod(&pod.id).unwrap();
    assert!(begin.elapsed() < seconds(25), "stop and removal took {:?}", begin.elapsed());
}

/// After the thaw, nothing is left of a pod that was removed during the freeze.
fn assert_nothing_left(daemon: &Daemon, pod: &Pod) {
    wait_for("the processes of the pod to be gone", seconds(20), || {
        let left = kernel_state::processes_of(daemon.env.dir(), daemon.env.cgroup(), Some(daemon.pid()));
        let of_pod = |pid: i32| {
            let log = fs::read_link(format!("/proc/{pid}/fd/2")).unwrap_or_default();
            log.to_string_lossy().contains(&pod.id)
        };
        (!left.iter().any(|process| of_pod(process.pid))).then_some(())
    });
    assert!(!daemon.env.state().join("pods").join(&pod.id).exists());
    let mounts = kernel_state::mounts_under(&daemon.env.state());
    assert!(!mounts.iter().any(|point| point.to_string_lossy().contains(&pod.id)), "{mounts:?}");
}

fn mount(host: &Path) -> v1::Mount {
    v1::Mount { container_path: "/data".into(), host_path: host.display().to_string(), ..Default::default() }
}

#[test]
fn a_volume_that_hangs_blocks_only_its_pod_until_that_is_stopped() {
    let env = TestEnv::new();
    let mut daemon = Daemon::on(env);
    let disk = Disk::new(&daemon.env);
    let (pod, second, other) = (daemon.run_pod("pod"), daemon.run_pod("second"), daemon.run_pod("other"));
    let missing = disk.0.join("missing");
    disk.freeze();
    for (pod, name) in [(&pod, "one"), (&second, "two")] {
        let mut config = container(name, &["true"]);
        config.mounts.push(mount(&missing.join(name)));
        create_in_vain(daemon.client(), pod, config);
    }
    assert_served(&daemon, &other, "before");
    assert_ends(&daemon, &pod);
    replace(&mut daemon);
    assert_served(&daemon, &other, "after");
    assert_ends(&daemon, &second);
    disk.thaw();
    assert_nothing_left(&daemon, &pod);
    assert_nothing_left(&daemon, &second);
}

#[test]
fn a_log_directory_that_hangs_blocks_only_its_pod_until_that_is_stopped() {
    let env = TestEnv::new();
    let mut daemon = Daemon::on(env);
    let disk = Disk::new(&daemon.env);
    let (logs, other) = (disk.0.join("logs"), daemon.run_pod("other"));
    fs::create_dir(&logs).unwrap();
    let in_logs = |config: &mut v1::PodSandboxConfig| config.log_directory = logs.display().to_string();
    let (pod, second) = (daemon.run_pod_with("pod", in_logs), daemon.run_pod_with("second", in_logs));
    let id = daemon.client().run_idle(&pod, "main");
    disk.freeze();
    // As many as there are threads that it could block.
    for _ in 0..4 {
        let id = id.clone();
        give_up(&daemon, move |client| client.reopen_log(&id));
    }
    create_in_vain(daemon.client(), &second, container("late", &["true"]));
    assert_served(&daemon, &other, "before");
    assert_ends(&daemon, &pod);
    replace(&mut daemon);
    assert_served(&daemon, &other, "after");
    assert_ends(&daemon, &second);
    disk.thaw();
    assert_nothing_left(&daemon, &pod);
    assert_nothing_left(&daemon, &second);
}

#[test]
fn a_killed_daemon_blocked_by_a_disk_is_replaced_at_once() {
    let mut daemon = Daemon::on(TestEnv::new());
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    daemon.kill9();
    // Writable layers are on a disk that hangs from here on.
    let (layers, disk) = (daemon.env.root().join("containers"), Disk::new(&daemon.env));
    run(Command::new("cp").arg("-a").arg(&layers).arg(disk.0.join("containers")));
    fs::rename(&layers, layers.with_extension("old")).unwrap();
    std::os::unix::fs::symlink(disk.0.join("containers"), &layers).unwrap();
    daemon.revive();
    disk.freeze();
    create_in_vain(daemon.client(), &pod, container("late", &["true"]));
    let begin = Instant::now();
    let mut old = daemon.supersede();
    assert!(begin.elapsed() < seconds(20), "the next daemon took {:?}", begin.elapsed());
    assert!(old.try_wait().unwrap().is_none(), "the disk did not block the first daemon");
    assert_eq!(daemon.client().exec_script(&id, "echo alive"), "alive\n");
    let refused = daemon.env.serve().output().unwrap();
    assert!(!refused.status.success(), "a third daemon started beside the second");
    disk.thaw();
    old.wait().unwrap();
    assert_eq!(daemon.client().exec_script(&id, "echo alive"), "alive\n");
    let refused = daemon.env.serve().output().unwrap();
    assert!(!refused.status.success(), "the lock was released with the first daemon");
    daemon.client().stop_pod(&pod.id).unwrap();
    daemon.client().remove_pod(&pod.id).unwrap();
    assert_nothing_left(&daemon, &pod);
    wait_for("its layers to be gone", seconds(40), || (fs::read_dir(&layers).unwrap().count() == 0).then_some(()));
}
