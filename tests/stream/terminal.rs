//! Exec and attach at a real terminal, with a test client (`tests/examples/terminal.rs`).

use std::ffi::OsString;

use super::client::TTY;
use super::pty::Seat;
use crate::support::client::container;
use crate::support::harness::{Daemon, program};

const TRANSPORTS: [&str; 2] = ["spdy", "websocket"];

fn sit_down(transport: &str, url: &str) -> Seat {
    let client: [OsString; 1] = [program("examples/terminal").into()];
    Seat::take(&client, &[transport, url])
}

#[test]
fn keys_sizes_and_exit_codes_are_passed_as_at_a_local_terminal() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    for transport in TRANSPORTS {
        let mut seat = sit_down(transport, &client.exec_url(&id, &["sh"], TTY));
        // The prompt arrives after the terminal was set to raw mode.
        seat.wait_for("/ # ");
        assert!(seat.is_raw(), "{transport}");
        seat.type_in("echo a$((20+3))b\r");
        seat.wait_for("a23b");
        assert_eq!(seat.seen.matches("a$((20+3))b").count(), 1, "echoed by one side only: {:?}", seat.seen);
        seat.type_in("busybox stty size\r");
        seat.wait_for("29 91");
        seat.resize(103, 41);
        seat.insist("busybox stty size\r", "41 103");
        // Ctrl-C, which would kill the client at a terminal that is not raw, kills the program in
        // the container. The program prints a line once it is in the foreground: before, the shell
        // would get the signal and ignore it.
        seat.type_in("sh -c 'echo r$((1+1))n; exec sleep 1000'\r");
        seat.wait_for("r2n");
        seat.type_in("\x03");
        seat.type_in("echo status=$?\r");
        seat.wait_for("status=130");
        // Ctrl-D is passed to the program that reads.
        seat.type_in("echo c$((1+1))t; cat; echo read=$?\r");
        seat.wait_for("c2t");
        seat.type_in("\x04");
        seat.wait_for("read=0");
        seat.type_in("exit 7\r");
        assert_eq!(seat.code(), 7, "{transport}: {:?}", seat.seen);
        assert!(!seat.is_raw(), "{transport}: the mode is restored");
    }
    daemon.wait_until_like(&before);
}

#[test]
fn a_shared_terminal_survives_its_attached_clients() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sh"]);
    (config.stdin, config.tty) = (true, true);
    let id = client.run_config(&pod, config);
    for transport in TRANSPORTS {
        let mut seat = sit_down(transport, &client.attach_url(&id, TTY));
        seat.insist("echo x$((40+2))y\r", "x42y");
        let mut other = sit_down(transport, &client.attach_url(&id, TTY));
        other.insist("echo o$((50+1))p\r", "o51p");
        seat.wait_for("o51p");
        other.resize(77, 22);
        other.insist("busybox stty size\r", "22 77");
        // One client is killed, as by closing a window.
        drop(other);
        seat.insist("echo z$((60+3))z\r", "z63z");
        drop(seat);
        assert_eq!(client.exec_script(&id, "echo fine"), "fine\n", "{transport}");
    }
    // The last client exits the shell, and gets its result.
    let mut seat = sit_down("spdy", &client.attach_url(&id, TTY));
    seat.insist("echo e$((70+4))e\r", "e74e");
    seat.type_in("exit 5\r");
    assert_eq!(seat.code(), 0, "an exit of the container is not an error of the client");
    assert_eq!(client.wait_exited(&id).exit_code, 5);
}
