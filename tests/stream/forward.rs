//! PortForward: both directions, resets, closed ports, many forwards, the host network.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;

use cri_api::v1;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use streaming::spdy::Event;
use tonic::Code;

use super::client::Spdy;
use crate::support::client::pod_namespaces;
use crate::support::harness::{Daemon, seconds, times, wait_for};
use crate::support::kernel_state;

/// Listens in the network of a pod, as a container in it would.
pub(super) fn listen_in(daemon: &Daemon, pod: &str, address: &str) -> TcpListener {
    let netns: PathBuf = daemon.env.state().join("pods").join(pod).join("netns");
    let address = address.to_owned();
    // A temporary thread, so that no other thread enters the other network.
    let listening = std::thread::spawn(move || {
        let netns = File::open(netns).unwrap();
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        TcpListener::bind(address).unwrap()
    });
    listening.join().unwrap()
}

/// Serves each connection on a separate thread.
pub(super) fn serve(listener: TcpListener, work: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let work = work.clone();
            std::thread::spawn(move || work(stream));
        }
    });
    port
}

fn echo(mut stream: TcpStream) {
    let mut copy = stream.try_clone().unwrap();
    std::io::copy(&mut stream, &mut copy).ok();
    copy.shutdown(Shutdown::Write).ok();
}

/// A client that forwards ports.
struct Forwarder {
    spdy: Spdy,
    got: BTreeMap<u32, Vec<u8>>,
    finished: Vec<u32>,
    reset: Vec<u32>,
    request: u32,
}

impl Forwarder {
    fn connect(url: &str) -> Self {
        let spdy = Spdy::connect(url, "portforward.k8s.io");
        Self { spdy, got: BTreeMap::new(), finished: Vec::new(), reset: Vec::new(), request: 0 }
    }

    /// Opens the error stream and the data stream.
    fn open(&mut self, port: u16) -> (u32, u32) {
        let (port, request) = (port.to_string(), self.request.to_string());
        self.request += 1;
        let mut open = |kind| self.spdy.open(&[("streamtype", kind), ("port", &port), ("requestid", &request)]);
        let (error, data) = (open("error"), open("data"));
        self.spdy.finish(error);
        (error, data)
    }

    fn step(&mut self) -> bool {
        match self.spdy.next() {
            Some(Event::Data { stream, bytes, fin }) => {
                self.got.entry(stream).or_default().extend_from_slice(&bytes);
                if fin {
                    self.finished.push(stream);
                }
            }
            Some(Event::Reset { stream, .. }) => self.reset.push(stream),
            Some(_) => {}
            None => return false,
        }
        true
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            assert!(self.step(), "the connection was closed");
        }
    }

    fn text(&self, stream: u32) -> String {
        String::from_utf8_lossy(self.got.get(&stream).map(Vec::as_slice).unwrap_or_default()).into_owned()
    }
}

#[test]
fn both_directions_are_forwarded_until_their_own_end() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // Answers only after it has received everything.
    let port = serve(listen_in(&daemon, &pod.id, "127.0.0.1:0"), |mut stream| {
        let mut input = Vec::new();
        stream.read_to_end(&mut input).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        write!(stream, "received {} bytes", input.len()).unwrap();
    });
    let mut forwarder = Forwarder::connect(&client.forward_url(&pod.id));
    let (error, data) = forwarder.open(port);
    forwarder.spdy.write(data, &[7; 100_000]).unwrap();
    forwarder.spdy.finish(data);
    forwarder.until(|f| f.finished.contains(&data) && f.finished.contains(&error));
    assert_eq!((forwarder.text(data).as_str(), forwarder.text(error).as_str()), ("received 100000 bytes", ""));
    // Vice versa: the server closes first, and continues to read.
    let (sender, receiver) = std::sync::mpsc::channel();
    let port = serve(listen_in(&daemon, &pod.id, "127.0.0.1:0"), move |mut stream| {
        stream.write_all(b"response").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut input = Vec::new();
        stream.read_to_end(&mut input).unwrap();
        sender.send(input.len()).unwrap();
    });
    let (_, data) = forwarder.open(port);
    forwarder.until(|f| f.finished.contains(&data));
    assert_eq!(forwarder.text(data), "response");
    forwarder.spdy.write(data, &[7; 50_000]).unwrap();
    forwarder.spdy.finish(data);
    assert_eq!(receiver.recv_timeout(seconds(10)).unwrap(), 50_000);
}

#[test]
fn many_forwards_share_a_connection_without_mixing_data() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let port = serve(listen_in(&daemon, &pod.id, "127.0.0.1:0"), echo);
    let held = kernel_state::holding(daemon.pid());
    let mut forwarder = Forwarder::connect(&client.forward_url(&pod.id));
    let count = times(100, 10);
    let streams: Vec<u32> = (0..count).map(|_| forwarder.open(port).1).collect();
    for round in 0..20 {
        for stream in &streams {
            forwarder.spdy.write(*stream, format!("{stream}:{round};").repeat(100).as_bytes()).unwrap();
        }
    }
    streams.iter().for_each(|stream| forwarder.spdy.finish(*stream));
    forwarder.until(|f| streams.iter().all(|stream| f.finished.contains(stream)));
    for stream in &streams {
        let wanted: String = (0..20).map(|round| format!("{stream}:{round};").repeat(100)).collect();
        assert_eq!(forwarder.text(*stream), wanted);
    }
    drop(forwarder);
    wait_for("all to be closed", seconds(10), || (kernel_state::holding(daemon.pid()).fds <= held.fds).then_some(()));
}

#[test]
fn a_large_transfer_is_unchanged() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let port = serve(listen_in(&daemon, &pod.id, "127.0.0.1:0"), echo);
    let mut forwarder = Forwarder::connect(&client.forward_url(&pod.id));
    let (_, data) = forwarder.open(port);
    let (mut writer, megabytes) = (forwarder.spdy.socket.try_clone().unwrap(), times(64, 4));
    let block: Vec<u8> = (0..1 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect();
    let sent = std::thread::spawn({
        let block = block.clone();
        move || {
            for _ in 0..megabytes {
                for piece in block.chunks(32 << 10) {
                    writer.write_all(&streaming::spdy::data_head(data, false, piece.len())).unwrap();
                    writer.write_all(piece).unwrap();
                }
            }
            writer.write_all(&streaming::spdy::data_head(data, true, 0)).unwrap();
        }
    });
    forwarder.until(|f| f.finished.contains(&data));
    sent.join().unwrap();
    let got = &forwarder.got[&data];
    assert_eq!(got.len(), megabytes << 20);
    assert!(got.chunks(1 << 20).all(|chunk| chunk == block));
}

#[test]
fn a_closed_port_is_reported_and_the_next_forward_works() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut forwarder = Forwarder::connect(&client.forward_url(&pod.id));
    let (error, data) = forwarder.open(1);
    forwarder.until(|f| f.finished.contains(&error) && f.reset.contains(&data));
    let words = forwarder.text(error);
    assert!(words.contains("localhost:1") && words.contains("refused") && words.contains(&pod.id), "{words}");
    let port = serve(listen_in(&daemon, &pod.id, "[::1]:0"), echo);
    let (_, data) = forwarder.open(port);
    forwarder.spdy.write(data, b"over IPv6").unwrap();
    forwarder.spdy.finish(data);
    forwarder.until(|f| f.finished.contains(&data));
    assert_eq!(forwarder.text(data), "over IPv6");
}

#[test]
fn a_reset_on_one_side_resets_the_other() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let (sender, receiver) = std::sync::mpsc::channel();
    let port = serve(listen_in(&daemon, &pod.id, "127.0.0.1:0"), move |mut stream| {
        stream.write_all(b"hello").unwrap();
        sender.send(stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind())).unwrap();
    });
    let mut forwarder = Forwarder::connect(&client.forward_url(&pod.id));
    let (_, data) = forwarder.open(port);
    forwarder.until(|f| f.text(data) == "hello");
    forwarder.spdy.reset(data);
    assert_eq!(receiver.recv_timeout(seconds(10)).unwrap(), Err(std::io::ErrorKind::ConnectionReset));
    // And in the other direction.
    let port = serve(listen_in(&daemon, &pod.id, "127.0.0.1:0"), |mut stream| {
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let (_, data) = forwarder.open(port);
    forwarder.until(|f| f.text(data) == "hello");
    forwarder.spdy.write(data, b"x").unwrap();
    forwarder.until(|f| f.reset.contains(&data));
}

#[test]
fn pods_in_the_host_network_are_reached() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| pod_namespaces(config).set_network(v1::NamespaceMode::Node));
    let port = serve(TcpListener::bind("127.0.0.1:0").unwrap(), echo);
    let mut forwarder = Forwarder::connect(&client.forward_url(&pod.id));
    let (_, data) = forwarder.open(port);
    forwarder.spdy.write(data, b"host").unwrap();
    forwarder.spdy.finish(data);
    forwarder.until(|f| f.finished.contains(&data));
    assert_eq!(forwarder.text(data), "host");
}

#[test]
fn only_the_ports_in_the_request_are_forwarded() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let port = serve(listen_in(&daemon, &pod.id, "127.0.0.1:0"), echo);
    let url = client.try_forward_url(&pod.id, &[i32::from(port)]).unwrap();
    let mut forwarder = Forwarder::connect(&url);
    let (_, data) = forwarder.open(port);
    forwarder.spdy.finish(data);
    forwarder.until(|f| f.finished.contains(&data));
    let (error, _) = forwarder.open(port ^ 1);
    forwarder.until(|f| f.finished.contains(&error));
    assert!(forwarder.text(error).contains("was not requested"), "{}", forwarder.text(error));
    let refusal = client.try_forward_url(&pod.id, &[70_000]).unwrap_err();
    assert_eq!(
        (refusal.code(), refusal.message().starts_with("port[0]")),
        (Code::InvalidArgument, true),
        "{refusal:?}"
    );
}
