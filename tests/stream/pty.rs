//! A program at a pseudo terminal.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::harness::{seconds, wait_for};

pub(super) struct Seat {
    master: File,
    /// Kept open to read the terminal's settings after the program has exited.
    _slave: OwnedFd,
    output: mpsc::Receiver<Vec<u8>>,
    pub(super) seen: String,
    child: Child,
}

impl Seat {
    /// Starts a program at a terminal of 91 columns and 29 rows.
    pub(super) fn take(program: &[OsString], arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        unlockpt(&master).unwrap();
        let slave: OwnedFd = ioctl_tiocgptpeer(&master, flags).unwrap();
        tcsetwinsize(&master, size(91, 29)).unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(program).args(arguments);
        let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let (sender, output) = mpsc::channel();
        let mut reader = File::from(master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n) = reader.read(&mut bytes)
                && n > 0
                && sender.send(bytes[..n].to_vec()).is_ok()
            {}
        });
        Self { master: master.into(), _slave: slave, output, seen: String::new(), child }
    }

    pub(super) fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Resizes the terminal; the kernel sends SIGWINCH to the program.
    pub(super) fn resize(&self, width: u16, height: u16) {
        tcsetwinsize(&self.master, size(width, height)).unwrap();
    }

    /// Returns whether keys are passed on unchanged: without echo, line buffering and signals.
    pub(super) fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.master).unwrap().local_modes;
        !modes.intersects(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    pub(super) fn wait_for(&mut self, text: &str) {
        self.wait_or(text, |_| {});
    }

    /// Sends the same input repeatedly until `text` is received, since the test cannot know when
    /// the other side reads.
    pub(super) fn insist(&mut self, typed: &str, text: &str) {
        self.wait_or(text, |seat| seat.type_in(typed));
    }

    fn wait_or(&mut self, text: &str, mut meanwhile: impl FnMut(&mut Self)) {
        let begin = Instant::now();
        while !self.seen.contains(text) {
            assert!(begin.elapsed() < seconds(20), "no {text:?} in {:?}", self.seen);
            meanwhile(self);
            while let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(300)) {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
                if self.seen.contains(text) {
                    break;
                }
            }
        }
    }

    /// Waits for the program and returns its exit code.
    pub(super) fn code(&mut self) -> i32 {
        let child = &mut self.child;
        wait_for("the program at the terminal to end", seconds(20), || child.try_wait().unwrap()).code().unwrap()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn size(width: u16, height: u16) -> Winsize {
    Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }
}
