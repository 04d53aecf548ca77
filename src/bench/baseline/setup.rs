//! The environment of the baseline process: a bridge, a root file system, a cgroup.

use std::path::{Path, PathBuf};
use std::{fs, io};

use cgroup::Cgroup;
use net::bridge::{Bridge, Settings};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

#[derive(Debug)]
pub(super) struct Setup {
    /// Mount point of a tmpfs.
    pub(super) directory: PathBuf,
    pub(super) bridge: Bridge,
    pub(super) group: Cgroup,
    pub(super) lives: u32,
}

/// Directories of the root file system.
const ROOT: [&str; 7] = ["bin", "proc", "sys", "dev", "etc", "tmp", "old"];
/// Files that are separate in every pod.
pub(super) const FILES: [&str; 3] = ["hosts", "hostname", "resolv.conf"];

impl Setup {
    /// Moves this process into its own mount and network namespace, and sets it up.
    pub(super) fn make(directory: &Path, group: Cgroup) -> io::Result<Self> {
        let failed = |what: &'static str| move |error| io::Error::other(format!("{what}: {error}"));
        // Orphaned processes of a pod become children of this process, which reaps them.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
        let none: Option<&Path> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), none)?;
        sys::netns::loopback_up()?;
        let lower = directory.join("lower");
        for name in ROOT {
            fs::create_dir_all(lower.join(name))?;
        }
        for name in FILES {
            fs::write(lower.join("etc").join(name), "")?;
            fs::write(directory.join(name), "")?;
        }
        fs::copy("/bin/busybox", lower.join("bin/sleep")).map_err(failed("copying /bin/busybox"))?;
        let bridge = Bridge::open(Settings::default()).map_err(io::Error::other)?;
        bridge.set_up().map_err(io::Error::other)?;
        Ok(Self { directory: directory.to_owned(), bridge, group, lives: 0 })
    }
}
