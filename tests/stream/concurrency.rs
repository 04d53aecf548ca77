//! Many concurrent clients, which must leave no resources behind.

use std::io::Write as _;
use std::time::Duration;

use streaming::spdy::Event;

use super::client::{ALL, Channels, OUTPUT, Session, Spdy, TTY, http_request, run};
use super::forward::{listen_in, serve};
use crate::support::client::{Client, Pod, container};
use crate::support::harness::{Daemon, seconds, times, wait_for};
use crate::support::kernel_state;
use crate::support::kernel_state::Holding;

/// Memory that daemon and shim may use in addition to that before the test, in KiB: partly used
/// pages.
const DAEMON_MORE: u64 = 3 << 10;
const SHIM_MORE: u64 = 256;

/// A container that echoes its input, and a port that returns its input.
struct Scene {
    daemon: Daemon,
    pod: Pod,
    id: String,
    port: u16,
    first: i32,
    shim: i32,
}

impl Scene {
    fn new() -> Self {
        let daemon = Daemon::start();
        let pod = daemon.run_pod("pod");
        let mut config = container("main", &["sh", "-c", "echo up; while read line; do echo got $line; done"]);
        config.stdin = true;
        let id = daemon.client().run_config(&pod, config);
        daemon.client().wait_printed(&id, "up");
        let port = serve(listen_in(&daemon, &pod.id, "127.0.0.1:0"), |mut stream| {
            let mut copy = stream.try_clone().unwrap();
            std::io::copy(&mut stream, &mut copy).ok();
        });
        let (first, shim) = (daemon.pids(&id)[0], daemon.shims()[0]);
        Self { daemon, pod, id, port, first, shim }
    }

    fn held(&self) -> (Holding, Holding) {
        (kernel_state::holding(self.daemon.pid()), kernel_state::holding(self.shim))
    }

    /// Returns the resources held when all clients have disconnected and the values are stable.
    fn at_rest(&self) -> (Holding, Holding) {
        wait_for("the clients' programs to exit", seconds(20), || self.is_calm().then_some(()));
        wait_for("two equal samples", seconds(30), || {
            let fds = |(daemon, shim): (Holding, Holding)| (daemon.fds, shim.fds);
            let one = fds(self.held());
            // Longer than idle threads wait for work, and than free memory is kept.
            std::thread::sleep(Duration::from_millis(2500));
            Some(self.held()).filter(|now| fds(*now) == one)
        })
    }

    fn is_calm(&self) -> bool {
        self.daemon.pids(&self.id) == [self.first]
    }

    /// Waits until descriptors, threads, processes and memory are back to the values before.
    fn wait_until_like(&self, (daemon, shim): (Holding, Holding)) {
        let now = std::cell::Cell::new((daemon, shim));
        let as_before = || {
            now.set(self.held());
            let (now, shim_now) = now.get();
            let same = |now: Holding, then: Holding| now.fds <= then.fds && now.threads <= then.threads;
            let memory =
                now.anonymous <= daemon.anonymous + DAEMON_MORE && shim_now.anonymous <= shim.anonymous + SHIM_MORE;
            (self.is_calm() && same(now, daemon) && same(shim_now, shim) && memory).then_some(())
        };
        let begin = std::time::Instant::now();
        while as_before().is_none() {
            let (daemon_now, shim_now) = now.get();
            assert!(begin.elapsed() < seconds(40), "{daemon:?} became {daemon_now:?}, {shim:?} became {shim_now:?}");
            crate::support::harness::pause();
        }
    }
}

/// One of many clients.
enum Guest {
    Exec(Session),
    Attach(Session),
    Forward(Spdy, u32),
}

impl Guest {
    fn all(scene: &Scene, count: usize) -> Vec<Self> {
        let client = scene.daemon.client();
        let mut guests = Vec::new();
        for _ in 0..count {
            guests.push(Self::Exec(Session::open(&client.exec_url(&scene.id, &["cat"], ALL), ALL)));
            guests.push(Self::Attach(Session::open(&client.attach_url(&scene.id, ALL), ALL)));
            let mut spdy = Spdy::connect(&client.forward_url(&scene.pod.id), "portforward.k8s.io");
            let port = scene.port.to_string();
            let mut open = |kind| spdy.open(&[("streamtype", kind), ("port", &port), ("requestid", "0")]);
            let (_, data) = (open("error"), open("data"));
            guests.push(Self::Forward(spdy, data));
        }
        guests
    }

    /// Sends its number, and waits for the response.
    fn take_part(&mut self, number: usize) {
        match self {
            Self::Exec(session) => {
                session.type_in(format!("exec {number}\n").as_bytes());
                session.wait_for(&format!("exec {number}\n"));
            }
            Self::Attach(session) => {
                session.type_in(format!("{number}\n").as_bytes());
                session.wait_for(&format!("got {number}\n"));
            }
            Self::Forward(spdy, data) => {
                spdy.write(*data, b"echo").unwrap();
                while !matches!(spdy.next().expect("an echo"), Event::Data { stream, .. } if stream == *data) {}
            }
        }
    }

    /// Closes the client normally.
    fn leave(self) {
        match self {
            Self::Exec(mut session) => {
                session.close_stdin();
                assert_eq!(session.finish().code(), 0);
            }
            Self::Attach(mut session) => {
                session.close_stdin();
                assert_eq!(session.finish().status()["status"], "Success");
            }
            Self::Forward(mut spdy, data) => {
                spdy.finish(data);
                while !matches!(spdy.next().expect("an end"), Event::Data { stream, fin: true, .. } if stream == data) {
                }
            }
        }
    }
}

#[test]
fn a_hundred_clients_of_each_kind_leave_no_resources_behind() {
    let scene = Scene::new();
    let count = times(100, 10);
    // The first clients allocate what stays: threads and arenas of the allocator.
    Guest::all(&scene, 4).into_iter().enumerate().for_each(|(number, mut guest)| {
        guest.take_part(number);
        guest.leave();
    });
    let before = scene.at_rest();
    for vanish in [false, true] {
        let mut guests = Guest::all(&scene, count);
        guests.iter_mut().enumerate().for_each(|(number, guest)| guest.take_part(number));
        let (daemon, shim) = scene.held();
        assert!(daemon.fds > before.0.fds + 3 * count && shim.fds >= before.1.fds + count, "{daemon:?} {shim:?}");
        match vanish {
            true => drop(guests),
            false => guests.into_iter().for_each(Guest::leave),
        }
        scene.wait_until_like(before);
    }
    assert_eq!(scene.daemon.client().exec_script(&scene.id, "echo fine"), "fine\n");
}

/// Starts a client and disconnects it, in each possible state.
fn abort(client: &Client, scene: &Scene, round: usize) {
    let (id, pod) = (&scene.id, &scene.pod.id);
    let v4 = "v4.channel.k8s.io";
    let forward = |streams: &[&str]| {
        let mut spdy = Spdy::connect(&client.forward_url(pod), "portforward.k8s.io");
        let port = scene.port.to_string();
        let ids: Vec<u32> = streams
            .iter()
            .map(|kind| spdy.open(&[("streamtype", kind), ("port", &port), ("requestid", "0")]))
            .collect();
        (spdy, ids)
    };
    match round % 12 {
        0 => drop(Session::open(&client.exec_url(id, &["cat"], ALL), ALL)),
        1 => drop(Session::open(&client.exec_url(id, &["cat"], TTY), TTY)),
        2 | 3 => drop(Session::open(&client.attach_url(id, ALL), ALL)),
        4 => Session::open(&client.attach_url(id, ALL), ALL).type_in(b"x"),
        // An invalid request, streams that are not all opened, a truncated frame.
        5 => drop(http_request(&client.attach_url(id, ALL), "GET", "")),
        6 => drop(Spdy::connect(&client.exec_url(id, &["cat"], ALL), v4).open(&[("streamtype", "error")])),
        7 => Spdy::connect(&client.attach_url(id, ALL), v4).send(&[0x80, 3, 0, 1]).unwrap(),
        8 => drop(forward(&[])),
        9 => {
            let (mut spdy, ids) = forward(&["error", "data"]);
            spdy.write(ids[1], b"echo").unwrap();
        }
        10 => drop(forward(&["data"])),
        _ => {
            let mut channels = Channels::connect(&client.attach_url(id, ALL), "v5.channel.k8s.io");
            channels.socket.write_all(&[0x82, 0xfe, 0xff]).unwrap();
        }
    }
}

#[test]
fn ten_thousand_disconnected_clients_leave_no_resources_behind() {
    let scene = Scene::new();
    let client = scene.daemon.client();
    (0..24).for_each(|round| abort(client, &scene, round));
    let before = scene.at_rest();
    let socket = scene.daemon.env.socket();
    for _ in 0..4 {
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    let client = Client::connect(&socket);
                    (0..times(625, 12)).for_each(|round| abort(&client, &scene, round));
                });
            }
        });
        scene.wait_until_like(before);
    }
    assert_eq!(run(&client.exec_url(&scene.id, &["true"], OUTPUT), OUTPUT, b"").code(), 0);
}
