//! Measures the kernel's time for a pod with a container: the same namespaces, interface, cgroups,
//! mounts and program, created by system calls, without a runtime, image, record or log.
//!
//! A separate process with one thread does this, by plain system calls. It is forked before this process has a second
//! thread. It has its own mount and network namespace, and a tmpfs with all files as its root: the kernel copies the
//! mounts of that root for each container, and not those of the host. Nothing is left when it exits.

mod cgroups;
mod netlink;
mod pod;
mod setup;

use std::fs;
use std::io::{self, BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nix::unistd::Pid;

use super::lifecycle::{READY, TEARDOWN};
use super::parent_cgroup::ParentCgroup;
pub(crate) use super::report::results::{Figures, Unit};

use setup::Setup;

/// The process that runs the measurement.
#[derive(Debug)]
pub(super) struct Baseline {
    process: Pid,
    talk: BufReader<UnixStream>,
    /// Mount point of its tmpfs.
    directory: PathBuf,
    figures: Figures,
}

/// Duration of each step of one pod, in ms, by name; or the error.
type Measurement = Result<Vec<(String, f64)>, String>;

impl Baseline {
    /// Forks the process; fails if this process has more than one thread.
    pub(super) fn start(parent: &ParentCgroup) -> io::Result<Self> {
        let directory = std::env::temp_dir().join(format!("crisp-bench-floor-{}", std::process::id()));
        let group = parent.child("floor")?;
        fs::create_dir(&directory)?;
        let (ours, theirs) = UnixStream::pair()?;
        let place = directory.clone();
        let forked = sys::fork::fork(sys::fork::SingleThread::check()?, || {
            i32::from(serve(&theirs, || Setup::make(&place, &group)).is_err())
        });
        drop(theirs);
        match forked {
            Ok(process) => Ok(Self { process, talk: BufReader::new(ours), directory, figures: Figures::default() }),
            Err(error) => {
                fs::remove_dir(&directory).ok();
                Err(error)
            }
        }
    }

    /// Runs this number of pods, one after another.
    pub(super) fn rounds(&mut self, rounds: u32) {
        for _ in 0..rounds {
            match self.round() {
                Ok(Ok(times)) => times.iter().for_each(|(name, ms)| self.figures.add(name, Unit::Ms, *ms)),
                Ok(Err(why)) => self.figures.fail(READY, Unit::Ms, &why),
                Err(error) => return self.figures.fail(READY, Unit::Ms, &error),
            }
        }
    }

    fn round(&mut self) -> io::Result<Measurement> {
        self.talk.get_mut().write_all(b"\n")?;
        let mut line = String::new();
        self.talk.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    pub(super) fn finish(mut self) -> Figures {
        std::mem::take(&mut self.figures)
    }
}

impl Drop for Baseline {
    /// Closes the socket, which makes the process exit, and reaps it.
    fn drop(&mut self) {
        self.talk.get_ref().shutdown(std::net::Shutdown::Both).ok();
        if let Err(error) = sys::child_wait::reap(self.process.as_raw()) {
            tracing::warn!(process = %self.process, %error, "cannot confirm the exit of the benchmark's baseline process; it may still be running");
        }
        if let Err(error) = fs::remove_dir(&self.directory) {
            tracing::warn!(directory = %self.directory.display(), %error, "cannot remove a directory of the benchmark's baseline; remove it by hand");
        }
    }
}

/// Runs one pod for each line read, and answers with its times.
fn serve(talk: &UnixStream, make: impl FnOnce() -> io::Result<Setup>) -> io::Result<()> {
    let mut env = make().map_err(|error| error.to_string());
    for line in BufReader::new(talk).lines() {
        line?;
        let measured: Measurement = match &mut env {
            Ok(env) => pod::run_once(env).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        let mut text = serde_json::to_string(&measured)?;
        text.push('\n');
        { talk }.write_all(text.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
