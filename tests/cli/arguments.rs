//! Arguments, the environment, closed pipes and exit codes of all commands.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::{errors, text};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, kill, program};
use crate::support::image_fixture::BOX;

const ENDPOINT: &str = "CONTAINER_RUNTIME_ENDPOINT";

#[test]
fn clients_accept_the_socket_as_path_or_url_and_from_the_environment() {
    let daemon = Daemon::start();
    daemon.run_pod("shop");
    let path = daemon.env.socket().display().to_string();
    let url = format!("unix://{path}");
    for socket in [&path, &url] {
        for arguments in [&["explain", "shop"][..], &["resize", "shop", "--pod-memory", "1Gi", "--dry-run"]] {
            let output = daemon.env.crisp(arguments).args(["--listen", socket]).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
            let output = daemon.env.crisp(arguments).env(ENDPOINT, socket).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
        }
    }
    // The command line overrides the environment, and an empty variable is none.
    let output = daemon.env.verb("explain", &["shop", "--listen", &url]).env(ENDPOINT, "/absent").output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let output = daemon.env.verb("explain", &["shop"]).env(ENDPOINT, "").output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn a_url_with_another_scheme_is_refused() {
    let env = TestEnv::new();
    for arguments in [
        &["explain", "x", "--listen", "tcp://127.0.0.1:1"][..],
        &["serve", "--listen", "tcp://127.0.0.1:1"],
        &["bench", "--socket", "tcp://127.0.0.1:1"],
    ] {
        let output = env.crisp(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(errors(&output).contains("expected a path or unix:///PATH"), "{}", errors(&output));
    }
    for arguments in [&["explain", "x"][..], &["bench", "status"]] {
        let output = env.crisp(arguments).env(ENDPOINT, "tcp://127.0.0.1:1").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(errors(&output).contains("expected a path or unix:///PATH"), "{}", errors(&output));
    }
}

#[test]
fn a_daemon_listens_on_the_socket_of_its_file_the_environment_or_an_option() {
    let env = TestEnv::new();
    let settings = fs::read_to_string(env.config()).unwrap();
    let url = format!("unix://{}", env.socket().display());
    let old = format!("listen = {:?}", env.socket());
    assert!(settings.contains(&old), "{settings}");
    fs::write(env.config(), settings.replace(&old, &format!("listen = {url:?}"))).unwrap();
    let other = env.dir().join("other.sock");
    let other_url = format!("unix://{}", other.display());
    let unset: &[&str] = &[];
    for (variable, option, socket) in [
        ("", unset, env.socket()),
        (&other_url, unset, other.clone()),
        (&url, &["--listen", &other_url], other.clone()),
    ] {
        let mut daemon = env.serve().args(option).env(ENDPOINT, variable).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("crisp ready") && ready.contains(&socket.display().to_string()), "{ready}");
        let output = env.crisp(&["explain", "--json", "--listen"]).arg(&socket).output().unwrap();
        kill(i32::try_from(daemon.id()).unwrap(), rustix::process::Signal::TERM);
        assert!(daemon.wait().unwrap().success());
        assert_eq!((errors(&output), text(&output)), (String::new(), "[]\n".to_owned()));
    }
}

#[test]
fn every_pod_and_container_is_listed_with_a_name_that_other_commands_accept() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("shop");
    let id = daemon.client().run_idle(&pod, "web");
    let listed: serde_json::Value = serde_json::from_str(&daemon.env.verb_ok("explain", &["--json"])).unwrap();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tests/shop", "tests/shop/web"]);
    assert_eq!(listed[1]["id"], id);
    for name in names {
        daemon.env.verb_ok("explain", &[name]);
    }
    daemon.env.verb_ok("resize", &["tests/shop/web", "--memory", "64Mi", "--dry-run"]);
    let table = daemon.env.verb_ok("explain", &[]);
    assert!(table.starts_with("NAME") && table.contains("tests/shop/web") && table.contains("running"), "{table}");
    for (command, rest) in [("explain", &[][..]), ("resize", &["--memory", "64Mi"])] {
        let words = daemon.env.verb_fails(command, &[&["tests/shop/wed"][..], rest].concat());
        assert!(words.contains("\"tests/shop/wed\" not found; `crisp explain` lists all"), "{words}");
    }
}

#[test]
fn a_file_that_is_not_a_socket_is_named_in_the_error() {
    let env = TestEnv::new();
    let words = env.verb_fails("explain", &["x", "--listen", "/etc/passwd"]);
    assert!(words.contains("/etc/passwd: not a socket"), "{words}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let daemon = Daemon::start();
    let pod = daemon.run_pod("shop");
    daemon.client().run_idle(&pod, "web");
    let commands: [&[&str]; 13] = [
        &["explain", "web"],
        &["explain", "--json"],
        &["resize", "web", "--memory", "64Mi", "--dry-run"],
        &["resize", "web", "--memory", "64Mi"],
        &["resize", "web", "--memory", "32Mi", "--json"],
        &["check"],
        &["check", "--json"],
        &["image", "ls"],
        &["image", "prune"],
        &["image", "export", BOX],
        &["config"],
        &["completions", "bash"],
        &["--help"],
    ];
    for arguments in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = daemon.env.crisp(arguments);
        if !["completions", "--help"].contains(&arguments[0]) {
            command.arg("--config").arg(daemon.env.config());
        }
        let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let errors = errors(&output);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        assert!(!errors.contains("ipe"), "{arguments:?}: {errors}");
    }
    // The resize was made although its output was lost.
    let now = daemon.env.verb_ok("explain", &["web"]);
    assert!(now.contains("32Mi"), "{now}");
}

#[test]
fn a_full_disk_under_stdout_is_an_error() {
    let output = Command::new(program("crisp"))
        .args(["completions", "bash"])
        .stdout(fs::File::options().write(true).open("/dev/full").unwrap())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
}

#[test]
fn exit_codes_are_those_of_help_and_documentation() {
    let daemon = Daemon::start();
    let code = |arguments: &[&str]| {
        let output = daemon.env.crisp(arguments).arg("--config").arg(daemon.env.config()).output().unwrap();
        output.status.code().unwrap()
    };
    for (arguments, expected) in [
        (&["explain"][..], 0),
        (&["explain", "absent"], 1),
        (&["resize", "absent", "--cpu", "1"], 1),
        (&["image", "rm", "absent"], 1),
        (&["explain", "--colour"], 2),
        (&["resize", "absent", "--cpu", "much"], 2),
        (&["image", "rm"], 2),
    ] {
        assert_eq!(code(arguments), expected, "{arguments:?}");
    }
    let help = text(&Command::new(program("crisp")).arg("--help").output().unwrap());
    let sentence = "Exit codes: 0 success; 1 failure; 2 invalid arguments; 130 interrupted by SIGINT or SIGTERM.";
    assert!(help.contains(sentence), "{help}");
}
