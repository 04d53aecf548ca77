//! CNI plugins that hang, fail, or return invalid output.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use tonic::Code;

use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::kernel_state;

/// Starts a daemon whose only network is the plugin `script`, with a directory for its files in
/// `$HERE`.
fn with_plugin(script: &str) -> Daemon {
    let env = TestEnv::connected("[network]\nmode = \"cni\"");
    let dir = env.dir().join("plugins");
    fs::create_dir(&dir).unwrap();
    write_plugin(&env, script);
    let config = fs::read_to_string(env.config()).unwrap();
    fs::write(env.config(), format!("{config}bin_dirs = [{dir:?}]\ntimeout = 2\n")).unwrap();
    let list = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "odd"}]}"#;
    fs::write(env.cni().join("10-odd.conflist"), list).unwrap();
    Daemon::on(env)
}

fn write_plugin(env: &TestEnv, script: &str) {
    let (dir, file) = (env.dir().join("plugins"), env.dir().join("plugins/odd"));
    let text = format!("#!/bin/sh\nHERE={}\necho \"$CNI_COMMAND\" >>$HERE/calls\n{script}\n", dir.display());
    let draft = dir.join("draft");
    fs::write(&draft, text).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(draft, file).unwrap();
}

fn calls(daemon: &Daemon) -> Vec<String> {
    let text = fs::read_to_string(daemon.env.dir().join("plugins/calls")).unwrap_or_default();
    text.lines().filter(|call| matches!(*call, "ADD" | "DEL")).map(str::to_owned).collect()
}

const WORKS: &str = r#"case $CNI_COMMAND in
  ADD) echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "x"}], "ips": [{"address": "10.5.0.2/24", "interface": 0}]}' ;;
  VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}' ;;
esac"#;

#[test]
fn a_hanging_plugin_of_the_daemon_is_killed_with_its_children() {
    let daemon = with_plugin("[ $CNI_COMMAND = ADD ] || exit 0; echo waiting >&2; sleep 98765 & sleep 98765");
    let begin = Instant::now();
    let refusal = daemon.client().try_run_pod(daemon.pod_config("pod")).unwrap_err();
    assert!(begin.elapsed() < seconds(20), "{:?}", begin.elapsed());
    assert!(matches!(refusal.code(), Code::DeadlineExceeded | Code::Unavailable), "{refusal:?}");
    assert!(refusal.message().contains("odd") && refusal.message().contains("waiting"), "{refusal:?}");
    let sleepers = || kernel_state::processes().into_iter().filter(|p| command_line(p.pid).contains("98765")).count();
    wait_for("its processes to exit", seconds(5), || (sleepers() == 0).then_some(()));
    daemon.env.wait_until_empty(Some(daemon.pid()));
    assert_eq!(calls(&daemon), ["ADD", "DEL"]);
}

fn command_line(pid: i32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

#[test]
fn a_plugin_that_fails_after_allocating_receives_del_from_the_daemon() {
    let script = r#"case $CNI_COMMAND in
      ADD) touch $HERE/taken; echo '{"cniVersion": "1.0.0", "code": 11, "msg": "no room", "details": "pool of 3"}'; echo details >&2; exit 1 ;;
      DEL) rm -f $HERE/taken ;;
    esac"#;
    let daemon = with_plugin(script);
    let refusal = daemon.client().try_run_pod(daemon.pod_config("pod")).unwrap_err();
    for word in ["odd", "no room", "pool of 3"] {
        assert!(refusal.message().contains(word), "{word}: {refusal:?}");
    }
    assert!(!daemon.env.dir().join("plugins/taken").exists());
    assert_eq!(calls(&daemon), ["ADD", "DEL"]);
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

#[test]
fn invalid_output_of_a_plugin_is_named_in_the_error() {
    for (script, word) in [
        ("[ $CNI_COMMAND = ADD ] || exit 0; echo '<html>oops'", "odd"),
        ("[ $CNI_COMMAND = ADD ] || exit 0; exec yes", "odd"),
        ("[ $CNI_COMMAND = ADD ] || exit 0; kill -SEGV $$", "odd"),
    ] {
        let daemon = with_plugin(script);
        let refusal = daemon.client().try_run_pod(daemon.pod_config("pod")).unwrap_err();
        assert!(refusal.message().contains(word), "{script}: {refusal:?}");
        daemon.env.wait_until_empty(Some(daemon.pid()));
    }
}

#[test]
fn a_pod_stops_although_del_fails_and_del_is_repeated() {
    let mut daemon = with_plugin(WORKS);
    let pod = daemon.run_pod("pod");
    assert_eq!(super::address(&daemon, &pod), "10.5.0.2");
    write_plugin(&daemon.env, "exit 1");
    daemon.client().stop_pod(&pod.id).unwrap();
    daemon.client().remove_pod(&pod.id).unwrap();
    daemon.env.wait_until_empty(Some(daemon.pid()));
    write_plugin(&daemon.env, &format!("{WORKS}\n[ $CNI_COMMAND = DEL ] && touch $HERE/done; exit 0"));
    daemon.restart();
    wait_for("a second call of the plugin", seconds(10), || {
        daemon.env.dir().join("plugins/done").exists().then_some(())
    });
}
