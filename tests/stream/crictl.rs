//! crictl at a terminal, as users run it: the program in `CRISP_CRICTL`. `hack/dev crictl PATH`
//! runs these tests.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;

use super::pty::Seat;
use crate::support::client::container;
use crate::support::env::write_secret;
use crate::support::harness::{Daemon, seconds};

fn crictl(daemon: &Daemon) -> Vec<OsString> {
    let program =
        std::env::var_os("CRISP_CRICTL").expect("CRISP_CRICTL must be the path of crictl: hack/dev crictl PATH");
    assert!(Path::new(&program).is_file(), "CRISP_CRICTL is not a file: {program:?}");
    let socket = format!("unix://{}", daemon.env.socket().display());
    let options = ["--config", "/dev/null", "-r", &socket, "-i", &socket].map(OsString::from);
    [program].into_iter().chain(options).collect()
}

#[test]
fn a_shell_is_used_as_people_do() {
    let daemon = Daemon::start();
    let crictl = crictl(&daemon);
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let before = daemon.snapshot();
    for transport in ["spdy", "websocket"] {
        let mut seat = Seat::take(&crictl, &["exec", "--transport", transport, "-it", &id, "sh"]);
        seat.type_in("echo a$((20+3))b\r");
        seat.wait_for("a23b");
        seat.type_in("busybox stty size\r");
        seat.wait_for("29 91");
        assert!(seat.is_raw(), "{transport}");
        seat.resize(103, 41);
        seat.insist("busybox stty size\r", "41 103");
        seat.type_in("sh -c 'echo r$((1+1))n; exec sleep 1000'\r");
        seat.wait_for("r2n");
        seat.type_in("\x03");
        seat.type_in("echo status=$?\r");
        seat.wait_for("status=130");
        seat.type_in("exit 7\r");
        // crictl has one exit code for all failures, and prints the real one.
        assert_ne!(seat.code(), 0, "{transport}");
        seat.wait_for("exit code 7");
    }
    daemon.wait_until_like(&before);
}

#[test]
fn a_container_is_attached_to_and_left_running() {
    let daemon = Daemon::start();
    let crictl = crictl(&daemon);
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sh"]);
    (config.stdin, config.tty) = (true, true);
    let id = daemon.client().run_config(&pod, config);
    for transport in ["spdy", "websocket"] {
        let mut seat = Seat::take(&crictl, &["attach", "--transport", transport, "-it", &id]);
        seat.insist("echo x$((40+2))y\r", "x42y");
        assert!(seat.is_raw(), "{transport}");
        seat.resize(77, 22);
        seat.insist("busybox stty size\r", "22 77");
        drop(seat);
        assert_eq!(daemon.client().exec_script(&id, "echo fine"), "fine\n", "{transport}");
    }
}

#[test]
fn ports_are_forwarded() {
    let daemon = Daemon::start();
    let crictl = crictl(&daemon);
    let pod = daemon.run_pod("pod");
    for transport in ["spdy", "websocket"] {
        let port = super::forward::serve(super::forward::listen_in(&daemon, &pod.id, "127.0.0.1:0"), |mut stream| {
            let mut input = [0; 5];
            stream.read_exact(&mut input).unwrap();
            stream.write_all(&input.map(|byte| byte.to_ascii_uppercase())).unwrap();
        });
        let mut seat = Seat::take(&crictl, &["port-forward", "--transport", transport, &pod.id, &format!("0:{port}")]);
        seat.wait_for(&format!("-> {port}"));
        let at = seat.seen.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        for _ in 0..5 {
            let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{at}")).unwrap();
            stream.set_read_timeout(Some(seconds(20))).unwrap();
            stream.write_all(b"hello").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "HELLO", "{transport}");
        }
    }
}

#[test]
fn everything_works_over_tls_with_a_certificate() {
    let dir = tempfile::TempDir::new().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    write_secret(&key, &made.signing_key.serialize_pem());
    let daemon = Daemon::with_settings(&format!("[stream]\ncert = {cert:?}\nkey = {key:?}\n"));
    let crictl = crictl(&daemon);
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let url = daemon.client().exec_url(&id, &["true"], super::client::OUTPUT);
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    for transport in ["spdy", "websocket"] {
        let mut command = Command::new(&crictl[0]);
        command.args(&crictl[1..]).args(["exec", "--transport", transport, "--tls-ca"]).arg(&cert);
        // crictl requires a client certificate, which the server does not request.
        command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
        // More than all buffers on the path.
        let output = command.args([&id, "head", "-c", "20000000", "/dev/zero"]).output().unwrap();
        assert!(output.status.success(), "{transport}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout.len(), 20_000_000, "{transport}");
    }
}
