//! The start and stop of the daemon: settings, socket, directories.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::process::Command;

use cri_api::v1;
use tonic::Code;

use crate::support::client::{Asked, Client};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, program, seconds, wait_for};

/// Runs `crisp serve`, which must refuse to start, and returns its output.
fn refused(env: &TestEnv) -> String {
    let mut process = env.serve().spawn().unwrap();
    let ended = wait_for("the daemon to refuse", seconds(20), || process.try_wait().unwrap());
    assert!(!ended.success());
    env.read_log()
}

#[test]
fn an_unknown_setting_is_refused_by_name() {
    for (settings, key) in [("colour = \"blue\"", "colour"), ("[log]\nvolume = 11", "volume")] {
        let words = refused(&TestEnv::with_settings(settings));
        assert!(words.contains(key) && words.contains("crisp.toml"), "{words}");
    }
    let words = refused(&TestEnv::with_settings("socket_mode = \"0666\""));
    assert!(words.contains("socket_mode"), "{words}");
}

#[test]
fn the_stale_socket_of_a_killed_daemon_is_replaced() {
    let env = TestEnv::new();
    drop(UnixListener::bind(env.socket()).unwrap());
    let mut daemon = Daemon::on(env);
    assert!(daemon.client().pods().is_empty());
    daemon.restart();
    assert!(daemon.client().pods().is_empty());
}

#[test]
fn the_socket_of_a_running_daemon_is_not_replaced() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let other = TestEnv::new();
    let text = fs::read_to_string(other.config()).unwrap();
    let theirs = format!("{:?}", other.socket());
    fs::write(other.config(), text.replace(&theirs, &format!("{:?}", daemon.env.socket()))).unwrap();
    let words = refused(&other);
    assert!(words.contains(&daemon.env.socket().display().to_string()), "{words}");
    assert_eq!(daemon.client().pods()[0].id, pod.id);
    assert_eq!(Client::connect(&daemon.env.socket()).pods().len(), 1);
}

#[test]
fn a_file_in_place_of_the_socket_is_not_replaced() {
    let env = TestEnv::new();
    fs::write(env.socket(), "precious").unwrap();
    let words = refused(&env);
    assert!(words.contains("socket"), "{words}");
    assert_eq!(fs::read_to_string(env.socket()).unwrap(), "precious");
}

#[test]
fn a_second_daemon_on_the_same_directories_is_refused() {
    let daemon = Daemon::start();
    let text = fs::read_to_string(daemon.env.config()).unwrap();
    let own = format!("{:?}", daemon.env.socket());
    let elsewhere = daemon.env.dir().join("other.sock");
    fs::write(daemon.env.config(), text.replace(&own, &format!("{elsewhere:?}"))).unwrap();
    let words = refused(&daemon.env);
    assert!(words.contains(&daemon.env.state().display().to_string()), "{words}");
    assert!(!elsewhere.exists());
}

#[test]
fn a_second_daemon_on_either_directory_is_refused() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let dirs = |env: &TestEnv| [env.state(), env.root()];
    for which in [0, 1] {
        let other = TestEnv::new();
        let (theirs, ours) = (dirs(&other)[which].clone(), dirs(&daemon.env)[which].clone());
        let text = fs::read_to_string(other.config()).unwrap();
        fs::write(other.config(), text.replace(&format!("{theirs:?}"), &format!("{ours:?}"))).unwrap();
        let words = refused(&other);
        assert!(words.contains(&ours.display().to_string()), "{words}");
    }
    assert_eq!(daemon.client().pod_status(&pod.id).state(), v1::PodSandboxState::SandboxReady);
    assert!(daemon.env.socket().exists());
}

#[test]
fn a_daemon_in_a_chroot_is_refused() {
    let env = TestEnv::new();
    let script = r#"mount --rbind / "$1" && exec chroot "$@""#;
    let root = tempfile::tempdir().unwrap();
    for (words, refusal) in [
        (["serve", "--config"], "the daemon runs in a chroot"),
        (["check", "--config"], "chroot: the daemon does not start"),
    ] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.arg(root.path()).arg(program("crisp")).args(words).arg(env.config());
        let done = command.output().unwrap();
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains(refusal), "{said}");
    }
    assert!(!env.socket().exists());
}

#[test]
fn two_daemons_run_side_by_side() {
    let (first, second) = (Daemon::start(), Daemon::start());
    let (a, b) = (first.run_pod("pod"), second.run_pod("pod"));
    let (x, y) = (first.client().run_idle(&a, "main"), second.client().run_idle(&b, "main"));
    assert_eq!(first.client().pods()[0].id, a.id);
    assert_eq!(second.client().pods()[0].id, b.id);
    assert_eq!(second.client().try_status(&x).unwrap_err().code(), Code::NotFound);
    first.client().remove_pod(&a.id).unwrap();
    first.env.wait_until_empty(Some(first.pid()));
    assert_eq!(second.client().exec_script(&y, "echo here"), "here\n");
}

#[test]
fn the_socket_is_for_root_alone_unless_configured() {
    let daemon = Daemon::start();
    let meta = fs::metadata(daemon.env.socket()).unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.uid(), meta.gid()), (0o600, 0, 0));
    let daemon = Daemon::with_settings("socket_mode = \"0660\"\nsocket_group = \"1234\"");
    let meta = fs::metadata(daemon.env.socket()).unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.uid(), meta.gid()), (0o660, 0, 1234));
}

#[test]
fn no_directory_of_the_daemon_is_accessible_to_others() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    daemon.client().run_idle(&pod, "main");
    for dir in [daemon.env.state().join("pods"), daemon.env.root().join("containers"), daemon.env.root().join("images")]
    {
        for above in [&dir, dir.parent().unwrap()] {
            let mode = fs::metadata(above).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode & 0o066, 0, "{} is {mode:o}", above.display());
        }
        let mode = fs::metadata(&dir).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} is {mode:o}", dir.display());
    }
}

#[test]
fn sigterm_ends_the_daemon_and_its_containers_keep_running() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let first = daemon.pids(&id)[0];
    assert!(daemon.terminate().success());
    assert!(!daemon.env.socket().exists(), "the socket is gone");
    assert_eq!(daemon.pids(&id)[0], first);
    daemon.revive();
    assert_eq!(daemon.client().status(&id).state(), v1::ContainerState::ContainerRunning);
}

#[test]
fn json_logs_have_the_ids_of_pods_and_containers() {
    let mut daemon = Daemon::with_settings("[log]\nformat = \"json\"\nlevel = \"debug\"");
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    daemon.client().try_status("0123").unwrap_err();
    daemon.client().remove_pod(&pod.id).unwrap();
    daemon.terminate();
    let text = daemon.env.read_log();
    assert!(!text.is_empty());
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(value["timestamp"].is_string() && value["level"].is_string(), "{line}");
    }
    assert!(text.contains(&pod.id) && text.contains(&id), "{text}");
}

#[test]
fn every_change_is_one_log_line_with_ids_result_and_duration() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let client = daemon.client();
    let id = client.run_idle(&pod, "main");
    client.try_create(&pod, crate::support::client::container("main", &["true"])).unwrap_err();
    client.stop(&id, 5).unwrap();
    client.remove(&id).unwrap();
    client.remove_pod(&pod.id).unwrap();
    daemon.terminate();
    let log = daemon.env.read_log();
    let lines = |rpc: &str| log.lines().filter(|line| line.contains(&format!("rpc=\"{rpc}\""))).collect::<Vec<_>>();
    for (rpc, of_container) in [
        ("RunPodSandbox", false),
        ("StartContainer", true),
        ("StopContainer", true),
        ("RemoveContainer", true),
        ("RemovePodSandbox", false),
    ] {
        let [line] = lines(rpc)[..] else { panic!("one line for {rpc}: {log}") };
        assert!(line.contains("request complete") && line.contains("duration_us="), "{line}");
        assert!(line.contains(&pod.id) && line.contains(&id) == of_container, "{line}");
    }
    let [done, failed] = lines("CreateContainer")[..] else { panic!("two lines: {log}") };
    assert!(done.contains(&pod.id) && done.contains(&id) && done.contains("request complete"), "{done}");
    assert!(
        failed.contains("ERROR") && failed.contains("AlreadyExists") && failed.contains("duration_us="),
        "{failed}"
    );
    assert!(lines("ContainerStatus").is_empty(), "looking changes nothing");
}

#[test]
fn settings_can_be_given_on_the_command_line() {
    let env = TestEnv::new();
    let socket = env.dir().join("elsewhere.sock");
    let mut command = env.serve();
    command.arg("--listen").arg(&socket);
    let mut process = command.spawn().unwrap();
    wait_for("the daemon to answer", seconds(20), || socket.exists().then_some(()));
    let answer = Client::connect(&socket).call(|mut c| async move { c.version(v1::VersionRequest::default()).await });
    assert_eq!(answer.unwrap().runtime_name, "crisp");
    process.kill().unwrap();
    process.wait().unwrap();
}

/// Checks the response of an RPC that is not implemented.
fn planned<T>(name: &str, answer: Asked<T>) {
    let Err(refusal) = answer else { panic!("{name} is implemented: test it, and take it off this list") };
    assert_eq!(refusal.code(), Code::Unimplemented, "{name}: {refusal:?}");
    assert!(refusal.message().contains(name), "{name}: {refusal:?}");
}

macro_rules! planned {
    ($client:expr, $($method:ident($request:ident) is $name:literal),* $(,)?) => {
        $(planned($name, $client.call(|mut c| async move { c.$method(v1::$request::default()).await }));)*
    };
}

#[test]
fn every_rpc_responds_and_missing_ones_are_unimplemented() {
    let daemon = Daemon::start();
    let client = daemon.client();
    planned!(
        client,
        checkpoint_container(CheckpointContainerRequest) is "CheckpointContainer",
        checkpoint_pod(CheckpointPodRequest) is "CheckpointPod",
        restore_pod(RestorePodRequest) is "RestorePod",
    );
    let request = v1::UpdateRuntimeConfigRequest::default();
    client.call(|mut c| async move { c.update_runtime_config(request).await }).unwrap();
    let usage = client.image_call(|mut c| async move { c.image_fs_info(v1::ImageFsInfoRequest {}).await }).unwrap();
    assert!(!usage.image_filesystems.is_empty());
}
