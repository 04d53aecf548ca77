//! Streaming clients without a token, and clients that violate the protocol.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use streaming::spdy::{Encoder, Event};

use super::client::{ALL, Channels, OUTPUT, Session, Spdy, UPGRADE, http_request, run, split};
use crate::support::harness::{Daemon, seconds, times, wait_for};
use crate::support::kernel_state;

const PORT_FORWARD: &str = "X-Stream-Protocol-Version: portforward.k8s.io\r\n";
const V4: &str = "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n";

#[test]
fn every_request_needs_a_token_that_is_valid_once() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let url = client.exec_url(&id, &["true"], OUTPUT);
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let (host, path) = split(&url);
    let status = |path: &str| {
        let (_, head, _) = http_request(&format!("http://{host}{path}"), "POST", &format!("{UPGRADE}{V4}"));
        head.split(' ').nth(1).unwrap().to_owned()
    };
    for bad in ["/", "/exec", "/exec/", "/exec/guess", "/metrics", "/../exec/x", "//", "/exec//x"] {
        assert_eq!(status(bad), "404", "{bad}");
    }
    assert_eq!(run(&url, OUTPUT, b"").code(), 0);
    assert_eq!(status(path), "404", "valid once");
    // A token that is used for another path is invalidated.
    let url = client.exec_url(&id, &["true"], OUTPUT);
    let path = split(&url).1.replace("/exec/", "/attach/");
    assert_eq!((status(&path), status(split(&url).1)), ("404".to_owned(), "404".to_owned()));
    // A request without an upgrade is refused, and so is an unknown protocol.
    let (_, head, _) = http_request(&client.exec_url(&id, &["true"], OUTPUT), "GET", "");
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let headers = format!("{UPGRADE}X-Stream-Protocol-Version: v9.channel.k8s.io\r\n");
    let (_, head, _) = http_request(&client.exec_url(&id, &["true"], OUTPUT), "POST", &headers);
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
}

#[test]
fn a_pod_with_too_many_tokens_loses_only_its_own() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (greedy, other) = (daemon.run_pod("greedy"), daemon.run_pod("other"));
    let (many, one) = (client.run_idle(&greedy, "main"), client.run_idle(&other, "main"));
    let early = client.exec_url(&one, &["true"], OUTPUT);
    let urls: Vec<String> = (0..1100).map(|_| client.exec_url(&many, &["true"], OUTPUT)).collect();
    let late = client.exec_url(&one, &["true"], OUTPUT);
    for url in [&early, &late, &urls[1099]] {
        assert_eq!(run(url, OUTPUT, b"").code(), 0);
    }
    let (_, head, _) = http_request(&urls[0], "POST", &format!("{UPGRADE}{V4}"));
    assert!(head.starts_with("HTTP/1.1 404 "), "the oldest is invalid now: {head}");
}

#[test]
fn a_pod_with_too_many_clients_does_not_block_another_pod() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let (greedy, other) = (daemon.run_pod("greedy"), daemon.run_pod("other"));
    let id = client.run_idle(&other, "main");
    let forward = |_| Spdy::connect(&client.forward_url(&greedy.id), "portforward.k8s.io").socket;
    let mut clients: Vec<TcpStream> = (0..1000).map(forward).collect();
    let (_, head, _) = http_request(&client.forward_url(&greedy.id), "POST", &format!("{UPGRADE}{PORT_FORWARD}"));
    assert!(head.starts_with("HTTP/1.1 503 "), "the limit of the same pod is reached: {head}");
    assert_eq!(run(&client.exec_url(&id, &["true"], OUTPUT), OUTPUT, b"").code(), 0);
    // The newest client of the greedy pod was disconnected; the others stay.
    let newest = clients.last_mut().unwrap();
    newest.set_read_timeout(Some(seconds(10))).unwrap();
    assert!(matches!(newest.read(&mut [0; 16]), Ok(0) | Err(_)), "not disconnected");
    clients[0].set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let silence = clients[0].read(&mut [0; 16]).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock, "{silence}");
}

#[test]
fn silent_clients_time_out_and_do_not_block_others() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let host = split(&client.exec_url(&id, &["true"], OUTPUT)).0.to_owned();
    let held = kernel_state::holding(daemon.pid()).fds;
    // Half send nothing, half an incomplete request.
    let mut silent: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(&host).unwrap()).collect();
    silent.iter_mut().step_by(2).for_each(|socket| socket.write_all(b"POST /exec/x HTTP/1.1\r\nHo").unwrap());
    assert_eq!(run(&client.exec_url(&id, &["true"], OUTPUT), OUTPUT, b"").code(), 0);
    assert!(kernel_state::holding(daemon.pid()).fds < held + 300, "the oldest are disconnected");
    // An endless request head.
    let mut endless = TcpStream::connect(&host).unwrap();
    let mut line = 0;
    while endless.write_all(format!("X-{line}: {}\r\n", "y".repeat(1000)).as_bytes()).is_ok() {
        line += 1;
        assert!(line < 100_000);
    }
    // A client that sends one byte at a time.
    let mut slow = TcpStream::connect(&host).unwrap();
    let begin = Instant::now();
    while slow.write_all(b"x").is_ok() {
        assert!(begin.elapsed() < seconds(30), "the timeout applies to a slow client, too");
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_for("the silent clients to be disconnected", seconds(20), || {
        (kernel_state::holding(daemon.pid()).fds <= held).then_some(())
    });
}

#[test]
fn a_client_that_opens_no_streams_times_out() {
    let daemon = Daemon::with_settings("[stream]\ncreation_timeout = 1\n");
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let mut spdy = Spdy::connect(&client.exec_url(&id, &["true"], ALL), "v4.channel.k8s.io");
    spdy.open(&[("streamtype", "error")]);
    let begin = Instant::now();
    while spdy.next().is_some() {}
    assert!(begin.elapsed() < seconds(10), "{:?}", begin.elapsed());
}

#[test]
fn an_idle_connection_is_closed() {
    let daemon = Daemon::with_settings("[stream]\nidle_timeout = 1\n");
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let before = daemon.snapshot();
    let script = "echo ready; cat; echo over > /dev/shm/over";
    let mut session = Session::open(&client.exec_url(&id, &["sh", "-c", script], ALL), ALL);
    session.wait_for("ready");
    let begin = Instant::now();
    while session.spdy.next().is_some() {}
    assert!(begin.elapsed() < seconds(10), "{:?}", begin.elapsed());
    daemon.wait_until_like(&before);
    assert_eq!(client.exec_script(&id, "cat /dev/shm/over"), "over\n");
}

#[test]
fn invalid_frames_close_only_their_connection() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let held = kernel_state::holding(daemon.pid());
    let bad: [&[u8]; 6] = [
        // Another version, an unknown type, headers of 16 MiB, headers that are not zlib, data for
        // stream 0, noise.
        &[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1],
        &[0x80, 3, 0, 99, 0, 0, 0, 0],
        &[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
        &[0x80, 3, 0, 1, 0, 0, 0, 14, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4],
        &[0, 0, 0, 0, 0, 0, 0, 1, 1],
        &[0xff; 4096],
    ];
    for bytes in bad {
        let mut session = Session::open(&client.exec_url(&id, &["sh", "-c", "echo ready; cat"], ALL), ALL);
        session.wait_for("ready");
        session.spdy.send(bytes).unwrap();
        while session.spdy.next().is_some() {}
    }
    let ws: [&[u8]; 4] = [
        &[0x82, 0x05, 1, 2, 3, 4, 5],
        &[0xf2, 0x80, 0, 0, 0, 0],
        &[0x83, 0x80, 0, 0, 0, 0],
        &[0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
    ];
    for bytes in ws {
        let mut channels = Channels::connect(&client.exec_url(&id, &["cat"], ALL), "v5.channel.k8s.io");
        channels.socket.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        channels.socket.read_to_end(&mut rest).ok();
    }
    assert_eq!(run(&client.exec_url(&id, &["true"], OUTPUT), OUTPUT, b"").code(), 0);
    wait_for("all to be closed", seconds(10), || (kernel_state::holding(daemon.pid()).fds <= held.fds).then_some(()));
}

#[test]
fn a_frame_longer_than_memory_is_passed_on_in_parts() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let mut session = Session::open(&client.exec_url(&id, &["wc", "-c"], ALL), ALL);
    let stdin = session.id("stdin");
    for _ in 0..times(8, 1) {
        session.spdy.send(&streaming::spdy::data_head(stdin, false, (1 << 24) - 1)).unwrap();
        let block = vec![7; 1 << 20];
        (0..15).for_each(|_| session.spdy.send(&block).unwrap());
        session.spdy.send(&block[1..]).unwrap();
    }
    session.close_stdin();
    let total = times(8, 1) * ((1 << 24) - 1);
    assert_eq!(session.finish().text().trim(), total.to_string());
    let held = kernel_state::holding(daemon.pid());
    assert!(held.anonymous < 40 << 10, "{held:?}");
}

#[test]
fn a_header_bomb_closes_the_connection() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let held = kernel_state::holding(daemon.pid());
    let bombs: [&[u8]; 2] =
        [include_bytes!("../fuzz/seeds/spdy/header-bomb"), include_bytes!("../fuzz/seeds/spdy/too-many-headers")];
    for bomb in bombs {
        for _ in 0..times(50, 5) {
            let mut spdy = Spdy::connect(&client.exec_url(&id, &["true"], OUTPUT), "v4.channel.k8s.io");
            spdy.send(bomb).unwrap();
            assert_eq!(spdy.next(), None);
        }
    }
    let now = kernel_state::holding(daemon.pid());
    assert!(now.anonymous < held.anonymous + (8 << 10), "{held:?}, then {now:?}");
    wait_for("all to be closed", seconds(10), || (kernel_state::holding(daemon.pid()).fds <= held.fds).then_some(()));
}

#[test]
fn streams_above_the_limit_are_refused_one_by_one() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let held = kernel_state::holding(daemon.pid());
    let mut spdy = Spdy::connect(&client.forward_url(&pod.id), "portforward.k8s.io");
    let count = 2000;
    let mut writer = spdy.socket.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        let (mut encoder, mut frames) = (Encoder::default(), Vec::new());
        for n in 0..count {
            let request = n.to_string();
            encoder.open(
                2 * n + 1,
                &[("streamtype", "data"), ("port", "9"), ("requestid", &request)],
                false,
                &mut frames,
            );
        }
        writer.write_all(&frames).unwrap();
    });
    let (mut taken, mut refused) = (0, 0);
    while taken + refused < count {
        match spdy.next().expect("the others stay open") {
            Event::Replied { .. } => taken += 1,
            Event::Reset { .. } => refused += 1,
            _ => {}
        }
    }
    flood.join().unwrap();
    assert_eq!((taken, refused), (512, count - 512));
    let now = kernel_state::holding(daemon.pid());
    assert!(now.anonymous < held.anonymous + (16 << 10) && now.fds <= held.fds + 3, "{held:?}, then {now:?}");
}

#[test]
fn a_client_that_never_reads_uses_little_memory() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let (before, held) = (daemon.snapshot(), kernel_state::holding(daemon.pid()));
    let script = "while echo 0123456789; do :; done";
    let deaf: Vec<_> =
        (0..10).map(|_| Session::open(&client.exec_url(&id, &["sh", "-c", script], OUTPUT), OUTPUT)).collect();
    // Until the counters are stable: all buffers on the path are full.
    wait_for("the programs to block", seconds(60), || {
        let ticks = || -> u64 { daemon.pids(&id).into_iter().map(kernel_state::ticks).sum() };
        let one = ticks();
        std::thread::sleep(Duration::from_millis(500));
        (ticks() == one).then_some(())
    });
    let now = kernel_state::holding(daemon.pid());
    assert!(now.anonymous < held.anonymous + (8 << 10), "{held:?}, then {now:?}");
    drop(deaf);
    daemon.wait_until_like(&before);
}
