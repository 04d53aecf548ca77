//! Creates and removes a pod with a container by system calls.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns, unshare};

use super::netlink::Route;
use super::setup::{FILES, GATEWAY, Setup};
use super::{READY, TEARDOWN};

/// Time limit for the kernel to remove the interface of a pod.
const INTERFACE_GONE: Duration = Duration::from_secs(2);
const INTERFACE: &str = "eth0";

/// Names of the steps.
const CGROUPS: &str = "floor: cgroups and their limits";
const NAMESPACES: &str = "floor: namespaces of the pod, pinned";
const NETWORK: &str = "floor: interface, address, routes";
const CONTAINER: &str = "floor: clone, mounts, root, program";

/// Creates and removes one pod; returns the duration of each step in ms.
pub(super) fn run_once(env: &mut Setup) -> io::Result<Vec<(String, f64)>> {
    let mut times = Vec::new();
    let mut note = |name: &str, begin: Instant| {
        times.push((name.to_owned(), begin.elapsed().as_secs_f64() * 1000.0));
        Instant::now()
    };
    env.lives += 1;
    let id = format!("{:08x}", env.lives);
    let (directory, interface) = (PathBuf::from(format!("/pod-{id}")), format!("f{id}"));
    let begin = Instant::now();
    env.cgroups.create(&id)?;
    let at = note(CGROUPS, begin);
    fs::create_dir(&directory)?;
    let pinned = directory.join("netns");
    pin(&pinned)?;
    let at = note(NAMESPACES, at);
    attach(env, &interface)?;
    let at = note(NETWORK, at);
    let started = start(env, &directory, &id);
    note(CONTAINER, at);
    let at = note(READY, begin);
    // Before all else: this process must not stay in the pod's namespaces.
    env.home.iter().try_for_each(|namespace| setns(namespace, CloneFlags::empty()))?;
    let program = started?;
    sys::signal::send(program, 9)?;
    sys::child_wait::reap(program)?;
    umount2(&pinned, MntFlags::MNT_DETACH)?;
    env.cgroups.remove(&id)?;
    fs::remove_dir_all(&directory)?;
    note(TEARDOWN, at);
    wait_until_gone(&interface)?;
    Ok(times)
}

/// Moves this process into new namespaces, and keeps the network namespace by a bind mount at `path`.
fn pin(path: &Path) -> io::Result<()> {
    File::create(path)?;
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS)?;
    sys::netns::loopback_up()?;
    let none: Option<&Path> = None;
    Ok(mount(Some("/proc/self/ns/net"), path, none, MsFlags::MS_BIND, none)?)
}

/// Creates the interface of the pod, whose network namespace is that of this process.
fn attach(env: &Setup, interface: &str) -> io::Result<()> {
    let namespace = File::open("/proc/self/ns/net")?;
    env.host.create_pair(interface, env.bridge, INTERFACE, namespace.as_raw_fd())?;
    let (inside, index) = (Route::open()?, if_nametoindex(INTERFACE)?);
    inside.set_up(index)?;
    let [_, _, high, low] = (env.lives % 60_000 + 2).to_be_bytes();
    inside.add_address(index, [GATEWAY[0], GATEWAY[1], high, low])?;
    inside.add_default_route(index, GATEWAY)
}

/// Waits until the kernel has removed the interface in the background, so that it does not work during the next pod.
fn wait_until_gone(interface: &str) -> io::Result<()> {
    let begin = Instant::now();
    while if_nametoindex(interface).is_ok() {
        if begin.elapsed() > INTERFACE_GONE {
            return Err(io::Error::other("the kernel does not remove the interface of a pod"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Starts a container's program with its own root and namespaces; returns its PID once it runs.
fn start(env: &Setup, directory: &Path, id: &str) -> io::Result<i32> {
    let (mut reader, writer) = io::pipe()?;
    for name in ["upper", "work", "root"] {
        fs::create_dir(directory.join(name))?;
    }
    // For the next child, which is PID 1 in it.
    unshare(CloneFlags::CLONE_NEWPID)?;
    let program = sys::fork::fork(env.proof, || {
        let error = match enter(env, directory, id) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        writeln!({ &writer }, "{error}").ok();
        1
    })?;
    drop(writer);
    let mut words = String::new();
    // EOF comes when the program is executed, which closes the last write end.
    reader.read_to_string(&mut words)?;
    if words.is_empty() {
        return Ok(program.as_raw());
    }
    sys::child_wait::reap(program.as_raw())?;
    Err(io::Error::other(words.trim().to_owned()))
}

/// Joins the cgroups, sets up the root and executes the program.
fn enter(env: &Setup, directory: &Path, id: &str) -> io::Result<std::convert::Infallible> {
    env.cgroups.join(id)?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP)?;
    let none: Option<&Path> = None;
    let root = directory.join("root");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let layers = format!(
        "lowerdir=/lower,upperdir={},workdir={}",
        directory.join("upper").display(),
        directory.join("work").display()
    );
    mount(Some("overlay"), &root, Some("overlay"), MsFlags::empty(), Some(layers.as_str()))?;
    let at = |name: &str| root.join(name);
    let hard = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &at("proc"), Some("proc"), hard, none)?;
    mount(Some("sysfs"), &at("sys"), Some("sysfs"), hard | MsFlags::MS_RDONLY, none)?;
    mount(Some("tmpfs"), &at("dev"), Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755,size=65536k"))?;
    for name in ["dev/pts", "dev/shm", "dev/mqueue"] {
        fs::create_dir(at(name))?;
    }
    let terminals = Some("newinstance,ptmxmode=0666,mode=0620");
    mount(Some("devpts"), &at("dev/pts"), Some("devpts"), MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, terminals)?;
    mount(Some("tmpfs"), &at("dev/shm"), Some("tmpfs"), hard, Some("size=65536k"))?;
    mount(Some("mqueue"), &at("dev/mqueue"), Some("mqueue"), hard, none)?;
    for name in FILES {
        mount(Some(&Path::new("/").join(name)), &at("etc").join(name), none, MsFlags::MS_BIND, none)?;
    }
    for (name, minor) in [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)] {
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
        nix::sys::stat::mknod(
            &at("dev").join(name),
            nix::sys::stat::SFlag::S_IFCHR,
            mode,
            nix::sys::stat::makedev(1, minor),
        )?;
    }
    nix::unistd::pivot_root(&root, &at("old"))?;
    nix::unistd::chdir("/")?;
    umount2("/old", MntFlags::MNT_DETACH)?;
    for path in ["/proc/sys", "/proc/irq", "/proc/bus"] {
        mount(Some(path), path, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
        mount(none, path, none, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | hard, none)?;
    }
    let words = [CString::new("sleep")?, CString::new("86399")?];
    Ok(nix::unistd::execv(&CString::new("/bin/sleep")?, &words)?)
}
