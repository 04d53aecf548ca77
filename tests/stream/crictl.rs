//! crictl, at a terminal as people have it. Where there is none (`CRISP_CRICTL`, or in PATH), nothing is tried.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::client::container;
use crate::ground::write_secret;
use crate::harness::{Daemon, seconds, wait_for};

fn crictl(daemon: &Daemon) -> Option<Vec<OsString>> {
    let named = std::env::var_os("CRISP_CRICTL");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("crictl")).find(|file| file.is_file());
    let program = named.or_else(|| found.map(OsString::from))?;
    assert!(Path::new(&program).is_file(), "CRISP_CRICTL is no file: {program:?}");
    let socket = format!("unix://{}", daemon.ground.socket().display());
    let options = ["--config", "/dev/null", "-r", &socket, "-i", &socket].map(OsString::from);
    Some([program].into_iter().chain(options).collect())
}

/// A program at a terminal.
struct Seat {
    master: File,
    said: mpsc::Receiver<Vec<u8>>,
    seen: String,
    child: Child,
}

impl Seat {
    fn take(crictl: &[OsString], arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        unlockpt(&master).unwrap();
        let slave: OwnedFd = ioctl_tiocgptpeer(&master, flags).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 29, ws_col: 91, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(crictl).args(arguments);
        let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let (say, said) = mpsc::channel();
        let mut reader = File::from(master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = reader.read(&mut bytes)
                && n > 0
                && say.send(bytes[..n].to_vec()).is_ok()
            {}
        });
        Self { master: master.into(), said, seen: String::new(), child }
    }

    fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.seen.contains(text) {
            assert!(begin.elapsed() < seconds(20), "no {text:?} in {:?}", self.seen);
            if let Ok(bytes) = self.said.recv_timeout(seconds(1)) {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    fn code(mut self) -> i32 {
        let child = &mut self.child;
        wait_for("crictl to end", seconds(20), || child.try_wait().unwrap()).code().unwrap()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_shell_is_used_as_people_do() {
    let daemon = Daemon::start();
    let Some(crictl) = crictl(&daemon) else { return };
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let before = daemon.snapshot();
    for transport in ["spdy", "websocket"] {
        let mut seat = Seat::take(&crictl, &["exec", "--transport", transport, "-it", &id, "sh"]);
        seat.type_in("echo a$((20+3))b\r");
        seat.wait_for("a23b");
        seat.type_in("busybox stty size\r");
        seat.wait_for("29 91");
        seat.type_in("exit 7\r");
        assert_ne!(seat.code(), 0, "{transport}");
    }
    daemon.wait_until_like(&before);
}

#[test]
fn a_container_is_attached_to_and_left_running() {
    let daemon = Daemon::start();
    let Some(crictl) = crictl(&daemon) else { return };
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sh"]);
    (config.stdin, config.tty) = (true, true);
    let id = daemon.client().run_config(&pod, config);
    for transport in ["spdy", "websocket"] {
        let mut seat = Seat::take(&crictl, &["attach", "--transport", transport, "-it", &id]);
        seat.wait_for("");
        let begin = Instant::now();
        while !seat.seen.contains("x42y") {
            assert!(begin.elapsed() < seconds(20), "{transport}: {:?}", seat.seen);
            seat.type_in("echo x$((40+2))y\r");
            while let Ok(bytes) = seat.said.recv_timeout(std::time::Duration::from_millis(300)) {
                seat.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        drop(seat);
        assert_eq!(daemon.client().exec_script(&id, "echo fine"), "fine\n", "{transport}");
    }
}

#[test]
fn ports_are_forwarded() {
    let daemon = Daemon::start();
    let Some(crictl) = crictl(&daemon) else { return };
    let pod = daemon.run_pod("pod");
    for transport in ["spdy", "websocket"] {
        let port = super::forward::serve(super::forward::listen_in(&daemon, &pod.id, "127.0.0.1:0"), |mut stream| {
            let mut heard = [0; 5];
            stream.read_exact(&mut heard).unwrap();
            stream.write_all(&heard.map(|byte| byte.to_ascii_uppercase())).unwrap();
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
fn with_a_certificate_everything_goes_through_tls() {
    let dir = tempfile::TempDir::new().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    write_secret(&key, &made.signing_key.serialize_pem());
    let daemon = Daemon::with_settings(&format!("[stream]\ncert = {cert:?}\nkey = {key:?}\n"));
    let Some(crictl) = crictl(&daemon) else { return };
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let url = daemon.client().exec_url(&id, &["true"], super::client::OUTPUT);
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    for transport in ["spdy", "websocket"] {
        let mut command = Command::new(&crictl[0]);
        command.args(&crictl[1..]).args(["exec", "--transport", transport, "--tls-ca"]).arg(&cert);
        // crictl wants to have a certificate of its own, which nobody asks for.
        command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
        // More than any buffer on the way holds.
        let output = command.args([&id, "head", "-c", "20000000", "/dev/zero"]).output().unwrap();
        assert!(output.status.success(), "{transport}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout.len(), 20_000_000, "{transport}");
    }
}
