//! A network namespace for one daemon in place of the host's, so that bridges, routes, ports,
//! tables and sysctls of a test are never the host's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A named network namespace, with loopback up.
#[derive(Debug)]
pub(crate) struct Host {
    name: String,
}

impl Host {
    pub(crate) fn new(name: String) -> Self {
        run(Command::new("ip").args(["netns", "add", &name]));
        let host = Self { name };
        run(host.command("ip").args(["link", "set", "lo", "up"]));
        host
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Returns a command that runs `program` in this network namespace.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    /// Returns the output of `script` in this network namespace.
    pub(crate) fn script(&self, script: &str) -> String {
        run(self.command("sh").args(["-ec", script]))
    }

    /// Returns the names of the interfaces without loopback.
    pub(crate) fn links(&self) -> Vec<String> {
        let text = self.script("cat /proc/self/net/dev");
        let names = text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim().to_owned());
        let mut names: Vec<String> = names.filter(|name| name != "lo").collect();
        names.sort();
        names
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        Command::new("ip").args(["netns", "delete", &self.name]).status().ok();
    }
}

/// Returns the output of a command that must succeed.
pub(crate) fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}
