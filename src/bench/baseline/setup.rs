//! The environment of the baseline process: a root with few mounts, a bridge, open cgroups.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use cgroup::Cgroup;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use sys::fork::SingleThread;

use super::cgroups::Cgroups;
use super::netlink::Route;

#[derive(Debug)]
pub(super) struct Setup {
    pub(super) cgroups: Cgroups,
    /// Socket in the network namespace of the bridge.
    pub(super) host: Route,
    /// Index of the bridge.
    pub(super) bridge: u32,
    /// The namespaces of this process, to return to.
    pub(super) home: Vec<File>,
    pub(super) proof: SingleThread,
    pub(super) lives: u32,
}

/// Directories of the root file system of containers.
const ROOT: [&str; 8] = ["bin", "proc", "sys", "dev", "etc", "tmp", "old", "run"];
/// Files that are separate in every pod.
pub(super) const FILES: [&str; 3] = ["hosts", "hostname", "resolv.conf"];
/// Address of the bridge.
pub(super) const GATEWAY: [u8; 4] = [10, 88, 0, 1];
/// The namespaces that a pod gets by `unshare`, and the PID namespace of a container.
pub(super) const NAMESPACES: [&str; 4] = ["net", "ipc", "uts", "pid"];
const BRIDGE: &str = "floor0";

impl Setup {
    /// Moves this process into its own mount and network namespace, with `directory` as root, and sets it up.
    pub(super) fn make(directory: &Path, group: &Cgroup) -> io::Result<Self> {
        let failed = |what: &'static str| move |error| io::Error::other(format!("{what}: {error}"));
        let proof = SingleThread::check()?;
        // Opens the directories of the cgroups, which the new root does not have.
        let cgroups = Cgroups::learn(group).map_err(failed("creating cgroups"))?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
        let none: Option<&Path> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), none)?;
        let lower = directory.join("lower");
        for name in ROOT {
            fs::create_dir_all(lower.join(name))?;
        }
        for name in FILES {
            fs::write(lower.join("etc").join(name), "")?;
            fs::write(directory.join(name), "")?;
        }
        fs::copy("/bin/busybox", lower.join("bin/sleep")).map_err(failed("copying /bin/busybox"))?;
        enter_root(directory).map_err(failed("changing the root"))?;
        sys::netns::loopback_up()?;
        let host = Route::open()?;
        host.create_bridge(BRIDGE).map_err(failed("creating a bridge"))?;
        let bridge = nix::net::if_::if_nametoindex(BRIDGE)?;
        host.add_address(bridge, GATEWAY)?;
        let home = NAMESPACES.map(|name| File::open(format!("/proc/self/ns/{name}")));
        let home = home.into_iter().collect::<io::Result<_>>()?;
        Ok(Self { cgroups, host, bridge, home, proof, lives: 0 })
    }
}

/// Makes `directory` the root, with a `/proc`, and unmounts all else: the kernel copies every mount for each container.
fn enter_root(directory: &Path) -> io::Result<()> {
    let none: Option<&Path> = None;
    for name in ["proc", "old"] {
        fs::create_dir(directory.join(name))?;
    }
    mount(Some("proc"), &directory.join("proc"), Some("proc"), MsFlags::empty(), none)?;
    nix::unistd::pivot_root(directory, &directory.join("old"))?;
    nix::unistd::chdir("/")?;
    Ok(umount2("/old", MntFlags::MNT_DETACH)?)
}
