//! Attach: several clients, `stdin_once`, terminals, slow clients, limits.

use std::time::Duration;

use cri_api::v1;

use super::client::{ALL, OUTPUT, Session, Streams, TTY};
use crate::support::client::{Client, Pod, container, log_lines, text_of};
use crate::support::harness::{Daemon, seconds, times, wait_for};
use crate::support::kernel_state;

fn interactive(client: &Client, pod: &Pod, script: &str, once: bool, tty: bool) -> String {
    let mut config = container("main", &["sh", "-c", script]);
    (config.stdin, config.stdin_once, config.tty) = (true, once, tty);
    client.run_config(pod, config)
}

const ECHO: &str = "echo up; while read line; do echo got $line; echo err $line >&2; done; echo over; exit 4";

#[test]
fn several_clients_get_the_same_output_and_can_all_write() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = interactive(client, &pod, ECHO, false, false);
    client.wait_printed(&id, "up");
    let open = || Session::open(&client.attach_url(&id, ALL), ALL);
    let (mut a, mut b, mut c) = (open(), open(), Session::open(&client.attach_url(&id, OUTPUT), OUTPUT));
    // All clients that are attached now receive it.
    wait_for("all to be attached", seconds(5), || {
        a.type_in(b"ping\n");
        std::thread::sleep(Duration::from_millis(50));
        Some(())
    });
    a.wait_for("got ping");
    b.type_in(b"from b\n");
    for session in [&mut a, &mut b, &mut c] {
        session.wait_for("got from b\n");
    }
    // A client that detaches does not affect the container and the other clients.
    b.close_stdin();
    let ended = b.finish();
    assert_eq!(ended.status()["status"], "Success");
    drop(c);
    a.type_in(b"still here\n");
    a.wait_for("got still here");
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerRunning);
    let log = text_of(&log_lines(client.status(&id).log_path), "stdout");
    assert_eq!(log, "up\ngot ping\ngot from b\ngot still here\n", "the log has all output");
    client.stop(&id, 0).unwrap();
    let ended = a.finish();
    assert_eq!(ended.status()["status"], "Success", "an exit of the container is not an error of the client");
    assert!(String::from_utf8(ended.stderr).unwrap().contains("err from b\n"));
}

#[test]
fn stdin_once_is_closed_by_the_first_client_that_closes_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = interactive(client, &pod, ECHO, true, false);
    client.wait_printed(&id, "up");
    let mut other = Session::open(&client.attach_url(&id, ALL), ALL);
    let mut first = Session::open(&client.attach_url(&id, ALL), ALL);
    first.type_in(b"hello\n");
    first.wait_for("got hello");
    other.wait_for("got hello");
    first.close_stdin();
    // Later output is still received.
    assert!(first.finish().text().ends_with("over\n"));
    assert!(other.finish().text().ends_with("over\n"));
    client.wait_exited(&id);
    assert_eq!(client.status(&id).exit_code, 4);
}

#[test]
fn stdin_once_is_closed_by_a_disconnect_and_by_the_exit_of_the_daemon() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = interactive(daemon.client(), &pod, ECHO, true, false);
    let mut session = Session::open(&daemon.client().attach_url(&id, ALL), ALL);
    session.type_in(b"x\n");
    session.wait_for("got x");
    drop(session);
    daemon.client().wait_exited(&id);
    daemon.client().remove(&id).unwrap();
    let id = interactive(daemon.client(), &pod, ECHO, true, false);
    let mut session = Session::open(&daemon.client().attach_url(&id, ALL), ALL);
    session.type_in(b"x\n");
    session.wait_for("got x");
    daemon.restart();
    daemon.client().wait_exited(&id);
}

#[test]
fn stdin_without_once_survives_clients_and_daemon() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = interactive(daemon.client(), &pod, ECHO, false, false);
    for round in 0..3 {
        let mut session = Session::open(&daemon.client().attach_url(&id, ALL), ALL);
        session.type_in(format!("round {round}\n").as_bytes());
        session.wait_for(&format!("got round {round}\n"));
        daemon.restart();
        assert_eq!(daemon.client().status(&id).state(), v1::ContainerState::ContainerRunning);
    }
}

#[test]
fn a_terminal_is_shared_and_resized() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let script = "trap 'busybox stty size' WINCH; echo up; while :; do read line && echo got $line; done";
    let id = interactive(client, &pod, script, false, true);
    client.wait_printed(&id, "up\r");
    let (mut a, mut b) =
        (Session::open(&client.attach_url(&id, TTY), TTY), Session::open(&client.attach_url(&id, TTY), TTY));
    a.resize(101, 33);
    a.type_in(b"one\r");
    a.wait_for("33 101");
    a.wait_for("got one");
    b.type_in(b"two\r");
    a.wait_for("got two");
    drop(a);
    b.type_in(b"three\r");
    b.wait_for("got three");
    assert_eq!(client.status(&id).state(), v1::ContainerState::ContainerRunning);
}

#[test]
fn a_container_without_stdin_ignores_input_of_clients() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &["sh", "-c", "read x; echo read $?; sleep 1; echo bye; exit 7"]);
    let mut session = Session::open(&client.attach_url(&id, ALL), ALL);
    session.type_in(b"ignored input\n");
    session.close_stdin();
    session.wait_for("bye");
    assert_eq!(session.finish().status()["status"], "Success");
}

#[test]
fn a_client_that_does_not_read_is_disconnected_and_blocks_no_output() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let count = times(600_000, 100_000);
    let script = format!(
        "echo up; read x < /tmp/go; yes 0123456789012345678901234567890123456789 | head -n {count}; echo printed; exec sleep 1000"
    );
    let id = client.run(&pod, "main", &["sh", "-c", &format!("busybox mkfifo /tmp/go; {script}")]);
    client.wait_printed(&id, "up");
    let slow = Session::open(&client.attach_url(&id, OUTPUT), OUTPUT);
    std::thread::sleep(Duration::from_millis(200));
    client.exec_script(&id, "echo > /tmp/go");
    let log = client.status(&id).log_path;
    wait_for("all to be printed and logged", seconds(60), || {
        let size = std::fs::metadata(&log).unwrap().len();
        let whole = count as u64 * (41 + "2026-11-16T10:00:00.000000001Z stdout F ".len() as u64);
        (size >= whole && client.exec(&id, &["true"]).code == 0).then_some(())
    });
    wait_for("the last line", seconds(10), || {
        std::fs::read_to_string(&log).unwrap().ends_with(" stdout F printed\n").then_some(())
    });
    assert_eq!(client.lines(&id).len(), count + 2);
    let shim = kernel_state::holding(daemon.shims()[0]);
    assert!(shim.anonymous < 20 << 10, "{shim:?}");
    // The client gets the error when it reads again.
    let ran = slow.finish();
    assert!(ran.status()["message"].as_str().unwrap().contains("fast enough"), "{}", ran.error);
    assert!(ran.stdout.len() < count * 41);
}

#[test]
fn output_just_before_an_exit_reaches_attached_clients() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for round in 0..times(20, 3) {
        let id =
            interactive(client, &pod, "read x; seq 1 1000; echo last; printf 'no end'; exit 3", round % 2 == 0, false);
        let mut session = Session::open(&client.attach_url(&id, ALL), ALL);
        session.type_in(b"go\n");
        let ran = session.finish();
        assert!(ran.text().starts_with("1\n2\n") && ran.text().ends_with("1000\nlast\nno end"), "{:?}", ran.text());
        client.remove(&id).unwrap();
    }
}

#[test]
fn the_number_of_attached_clients_is_limited() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &["sh", "-c", "while :; do echo tick; sleep 0.05; done"]);
    let only = Streams { stdin: false, stderr: false, tty: false };
    let mut all: Vec<_> = (0..128).map(|_| Session::open(&client.attach_url(&id, only), only)).collect();
    all.iter_mut().for_each(|session| session.wait_for("tick"));
    let refused = Session::open(&client.attach_url(&id, only), only).finish();
    assert!(refused.status()["message"].as_str().unwrap().contains("128 are attached"), "{}", refused.error);
    let held = kernel_state::holding(daemon.shims()[0]).fds;
    drop(all);
    wait_for("the shim to close their streams", seconds(10), || {
        (kernel_state::holding(daemon.shims()[0]).fds <= held - 128).then_some(())
    });
    Session::open(&client.attach_url(&id, only), only).wait_for("tick");
}

#[test]
fn attaching_to_a_container_that_is_not_running_is_refused_with_its_state() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let created = client.create(&pod, "created", &["true"]);
    let exited = client.script(&pod, "exited", "exit 0").id;
    for (id, state) in [(&created, "created"), (&exited, "exited")] {
        let refusal = client.try_attach_url(id, ALL).unwrap_err();
        assert_eq!(refusal.code(), tonic::Code::FailedPrecondition, "{refusal:?}");
        let message = refusal.message();
        assert!(message.contains(state) && message.contains("attach") && !message.contains("execute"), "{message}");
    }
}
