//! Exec and attach at a real terminal, by a client of our own (`tests/examples/terminal.rs`).

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
fn keys_sizes_and_exit_codes_pass_as_at_a_terminal_of_ones_own() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    for transport in TRANSPORTS {
        let mut seat = sit_down(transport, &client.exec_url(&id, &["sh"], TTY));
        // The prompt comes when the terminal is raw already.
        seat.wait_for("/ # ");
        assert!(seat.is_raw(), "{transport}");
        seat.type_in("echo a$((20+3))b\r");
        seat.wait_for("a23b");
        assert_eq!(seat.seen.matches("a$((20+3))b").count(), 1, "shown by one side alone: {:?}", seat.seen);
        seat.type_in("busybox stty size\r");
        seat.wait_for("29 91");
        seat.resize(103, 41);
        seat.insist("busybox stty size\r", "41 103");
        // What would end the client, at a terminal that is not raw, ends what runs in the container.
        // It says that it runs once the terminal is its own: before, the shell would get the signal, and lose it.
        seat.type_in("sh -c 'echo r$((1+1))n; exec sleep 1000'\r");
        seat.wait_for("r2n");
        seat.type_in("\x03");
        seat.type_in("echo status=$?\r");
        seat.wait_for("status=130");
        // The end of input is that of whoever reads there.
        seat.type_in("echo c$((1+1))t; cat; echo read=$?\r");
        seat.wait_for("c2t");
        seat.type_in("\x04");
        seat.wait_for("read=0");
        seat.type_in("exit 7\r");
        assert_eq!(seat.code(), 7, "{transport}: {:?}", seat.seen);
        assert!(!seat.is_raw(), "{transport}: as it was before");
    }
    daemon.wait_until_like(&before);
}

#[test]
fn a_terminal_is_shared_by_those_who_attach_and_outlives_them() {
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
        // Somebody closes the window.
        drop(other);
        seat.insist("echo z$((60+3))z\r", "z63z");
        drop(seat);
        assert_eq!(client.exec_script(&id, "echo fine"), "fine\n", "{transport}");
    }
    // The last one ends the shell, and learns how it went.
    let mut seat = sit_down("spdy", &client.attach_url(&id, TTY));
    seat.insist("echo e$((70+4))e\r", "e74e");
    seat.type_in("exit 5\r");
    assert_eq!(seat.code(), 0, "the end of the container is no failure of the client's");
    assert_eq!(client.wait_exited(&id).exit_code, 5);
}
