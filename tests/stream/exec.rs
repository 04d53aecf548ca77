//! Exec: streams, exit codes, terminals, disconnects, and older protocol versions.

use std::time::{Duration, Instant};

use tonic::Code;

use super::client::{ALL, Channels, OUTPUT, Session, Streams, TTY, run};
use crate::support::harness::{Daemon, seconds, times, wait_for};
use crate::support::kernel_state;

#[test]
fn streams_and_exit_codes_are_exact() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    let script = "printf 'out\\377\\n'; printf err >&2; exit 42";
    let ran = run(&client.exec_url(&id, &["sh", "-c", script], OUTPUT), OUTPUT, b"");
    assert_eq!((ran.stdout.as_slice(), ran.stderr.as_slice()), (&b"out\xff\n"[..], &b"err"[..]));
    assert_eq!(ran.code(), 42);
    let status = ran.status();
    assert_eq!((&status["status"], &status["reason"]), (&"Failure".into(), &"NonZeroExitCode".into()), "{status}");
    let ran = run(&client.exec_url(&id, &["true"], OUTPUT), OUTPUT, b"");
    assert_eq!((ran.error.as_str(), ran.text()), (r#"{"metadata":{},"status":"Success"}"#, ""));
    assert_eq!(run(&client.exec_url(&id, &["sh", "-c", "kill -9 $$"], OUTPUT), OUTPUT, b"").code(), 137);
    daemon.wait_until_like(&before);
}

#[test]
fn stdin_and_its_end_are_passed_on() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let ran = run(&client.exec_url(&id, &["cat"], ALL), ALL, b"one\ntwo");
    assert_eq!((ran.text(), ran.code()), ("one\ntwo", 0));
    // The end of stdin does not close the other streams.
    let script = "cat > /dev/null; echo later >&2; sleep 0.2; echo last; exit 5";
    let ran = run(&client.exec_url(&id, &["sh", "-c", script], ALL), ALL, b"x");
    assert_eq!((ran.text(), ran.stderr.as_slice(), ran.code()), ("last\n", &b"later\n"[..], 5));
    // A program that does not read stdin is not blocked by it.
    let ran = run(&client.exec_url(&id, &["sh", "-c", "exec 0<&-; echo done"], ALL), ALL, &[b'x'; 1000]);
    assert_eq!((ran.text(), ran.code()), ("done\n", 0));
}

#[test]
fn large_transfers_are_unchanged_in_both_directions() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let megabytes = times(64, 4);
    let block: Vec<u8> = (0..1 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect();
    let mut session = Session::open(&client.exec_url(&id, &["cat"], ALL), ALL);
    let (stdin, mut writer) = (session.id("stdin"), session.spdy.socket.try_clone().unwrap());
    let sent = std::thread::spawn({
        let block = block.clone();
        move || {
            use std::io::Write as _;
            for _ in 0..megabytes {
                for piece in block.chunks(50_000) {
                    writer.write_all(&streaming::spdy::data_head(stdin, false, piece.len())).unwrap();
                    writer.write_all(piece).unwrap();
                }
            }
            writer.write_all(&streaming::spdy::data_head(stdin, true, 0)).unwrap();
        }
    });
    let ran = session.finish();
    sent.join().unwrap();
    assert_eq!((ran.stdout.len(), ran.code()), (megabytes << 20, 0));
    assert!(ran.stdout.chunks(1 << 20).all(|chunk| chunk == block));
    session = Session::open(&client.exec_url(&id, &["sh", "-c", "head -c 100000000 /dev/zero"], OUTPUT), OUTPUT);
    assert_eq!(session.finish().stdout.len(), 100_000_000);
}

#[test]
fn a_terminal_has_the_size_of_the_client() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo tty $TERM; busybox tty; read x; busybox stty size; echo err >&2; exit 9";
    let mut session = Session::open(&client.exec_url(&id, &["sh", "-c", script], TTY), TTY);
    session.wait_for("tty xterm");
    session.wait_for("/dev/pts/");
    session.resize(111, 37);
    // The size must be set before the later input is read.
    std::thread::sleep(Duration::from_millis(200));
    session.type_in(b"go\r");
    let ran = session.finish();
    assert!(ran.text().contains("37 111") && ran.text().contains("err\r\n"), "{:?}", ran.text());
    assert_eq!(ran.code(), 9);
    daemon.wait_until_like(&before);
}

#[test]
fn keys_reach_the_foreground_process_and_a_shell_controls_its_terminal() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let mut session = Session::open(&client.exec_url(&id, &["sh"], TTY), TTY);
    session.type_in(b"echo a$((1+1))b\r");
    session.wait_for("a2b\r\n");
    session.type_in(b"sleep 1000\r");
    session.wait_for("sleep 1000\r\n");
    std::thread::sleep(Duration::from_millis(300));
    session.type_in(b"\x03");
    session.type_in(b"echo interrupted=$?\r");
    session.wait_for("interrupted=130");
    session.type_in(b"exit 3\r");
    assert_eq!(session.finish().code(), 3);
}

#[test]
fn a_client_that_disconnects_hangs_up_a_terminal() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    let script = "trap 'echo hung up > /dev/shm/hup; exit' HUP; echo ready; while :; do sleep 0.1; done";
    let mut session = Session::open(&client.exec_url(&id, &["sh", "-c", script], TTY), TTY);
    session.wait_for("ready");
    drop(session);
    daemon.wait_until_like(&before);
    assert_eq!(client.exec_script(&id, "cat /dev/shm/hup"), "hung up\n");
}

#[test]
fn a_client_that_disconnects_closes_pipes_and_kills_no_process() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    let held = kernel_state::holding(daemon.pid());
    let script = "trap '' PIPE; echo ready; cat > /dev/null; echo eof > /dev/shm/seen; \
                  while echo x; do sleep 0.05; done 2> /dev/null; echo epipe >> /dev/shm/seen; sleep 0.5; echo end >> /dev/shm/seen";
    let mut session = Session::open(&client.exec_url(&id, &["sh", "-c", script], ALL), ALL);
    session.wait_for("ready");
    drop(session);
    wait_for("the program to detect it", seconds(10), || {
        (client.exec_script(&id, "cat /dev/shm/seen 2> /dev/null; true") == "eof\nepipe\nend\n").then_some(())
    });
    daemon.wait_until_like(&before);
    wait_for("the daemon to close the streams", seconds(10), || {
        (kernel_state::holding(daemon.pid()).fds <= held.fds).then_some(())
    });
}

#[test]
fn a_program_with_a_client_survives_a_restart_of_the_daemon() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let script = "trap '' PIPE; echo ready; sleep 1; echo survived > /dev/shm/seen";
    let mut session = Session::open(&daemon.client().exec_url(&id, &["sh", "-c", script], OUTPUT), OUTPUT);
    session.wait_for("ready");
    daemon.restart();
    let client = daemon.client();
    wait_for("the program's end", seconds(10), || {
        (client.exec_script(&id, "cat /dev/shm/seen 2> /dev/null; true") == "survived\n").then_some(())
    });
}

/// Clients treat streams that only end as success.
#[test]
fn clients_get_an_error_when_the_daemon_is_stopped() {
    let mut daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run(&pod, "main", &["sh", "-c", "while sleep 0.05; do echo ready; done"]);
    let script = ["sh", "-c", "echo ready; sleep 1000"];
    let mut watched = [
        Session::open(&client.exec_url(&id, &script, ALL), ALL),
        Session::open(&client.exec_url(&id, &script, TTY), TTY),
        Session::open(&client.attach_url(&id, OUTPUT), OUTPUT),
    ];
    watched.iter_mut().for_each(|session| session.wait_for("ready"));
    let channels = Channels::connect(&client.exec_url(&id, &script, OUTPUT), "v5.channel.k8s.io");
    // A client that does not read cannot get the error, and is not waited for.
    let _slow = Session::open(&client.exec_url(&id, &["yes"], OUTPUT), OUTPUT);
    assert!(daemon.terminate().success());
    for session in watched {
        let status = session.finish().status();
        assert_eq!(status["status"], "Failure", "{status}");
        assert!(status["message"].as_str().unwrap().contains("shutting down"), "{status}");
    }
    let output = channels.finish();
    let status = str::from_utf8(&output[&3]).unwrap();
    assert!(status.contains("Failure") && status.contains("shutting down"), "{status}");
}

#[test]
fn a_background_child_does_not_delay_the_end_of_an_exec() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let begin = Instant::now();
    for streams in [OUTPUT, TTY] {
        let url = client.exec_url(&id, &["sh", "-c", "trap '' HUP; sleep 1000 & echo started; exit 6"], streams);
        let ran = Session::open(&url, streams).finish();
        assert_eq!((ran.text().trim_end(), ran.code()), ("started", 6));
    }
    assert!(begin.elapsed() < seconds(10), "{:?}", begin.elapsed());
}

#[test]
fn a_command_that_cannot_be_run_is_reported_in_the_status() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    for streams in [OUTPUT, TTY] {
        let ran = Session::open(&client.exec_url(&id, &["no-such-program"], streams), streams).finish();
        let status = ran.status();
        assert_eq!((&status["status"], &status["reason"]), (&"Failure".into(), &"InternalError".into()), "{status}");
        assert!(status["message"].as_str().unwrap().contains("no-such-program"), "{status}");
    }
    daemon.wait_until_like(&before);
}

#[test]
fn older_versions_of_the_protocol_are_supported() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    for version in ["channel.k8s.io", "v2.channel.k8s.io", "v3.channel.k8s.io"] {
        let url = client.exec_url(&id, &["sh", "-c", "echo out; exit 3"], OUTPUT);
        let ran = Session::open_as(&url, OUTPUT, version).finish();
        assert_eq!(ran.text(), "out\n", "{version}");
        assert!(ran.error.contains("non-zero exit code") && ran.error.ends_with('3'), "{version}: {}", ran.error);
        let url = client.exec_url(&id, &["true"], OUTPUT);
        assert_eq!(Session::open_as(&url, OUTPUT, version).finish().error, "", "{version}");
    }
    let url = client.exec_url(&id, &["sh", "-c", "echo tty"], TTY);
    assert_eq!(Session::open_as(&url, TTY, "v2.channel.k8s.io").finish().text(), "tty\r\n");
}

#[test]
fn an_invalid_request_is_refused_before_a_url_is_returned() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.create(&pod, "main", &["sleep", "1000"]);
    let code = |asked: crate::support::client::Asked<String>| asked.unwrap_err().code();
    assert_eq!(code(client.try_exec_url(&id, &["true"], OUTPUT)), Code::FailedPrecondition);
    assert_eq!(code(client.try_attach_url(&id, OUTPUT)), Code::FailedPrecondition);
    client.start(&id).unwrap();
    assert_eq!(code(client.try_exec_url("0123456789", &["true"], OUTPUT)), Code::NotFound);
    assert_eq!(code(client.try_attach_url("0123456789", OUTPUT)), Code::NotFound);
    assert_eq!(code(client.try_forward_url("0123456789", &[])), Code::NotFound);
    assert_eq!(code(client.try_exec_url(&id, &[], OUTPUT)), Code::InvalidArgument);
    assert_eq!(code(client.try_exec_url("", &["true"], OUTPUT)), Code::InvalidArgument);
    let both = Streams { tty: true, ..ALL };
    assert_eq!(code(client.try_exec_url(&id, &["true"], both)), Code::InvalidArgument);
    assert_eq!(code(client.try_attach_url(&id, both)), Code::InvalidArgument);
    assert_eq!(code(client.try_forward_url(&pod.id, &[0])), Code::InvalidArgument);
    client.stop(&id, 0).unwrap();
    assert_eq!(code(client.try_exec_url(&id, &["true"], OUTPUT)), Code::FailedPrecondition);
    client.stop_pod(&pod.id).unwrap();
    assert_eq!(code(client.try_forward_url(&pod.id, &[])), Code::FailedPrecondition);
}
