//! Creates and removes a pod with a container by system calls.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cgroup::Cgroup;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sys::fork::SingleThread;

use super::setup::{FILES, Setup};
use super::{READY, TEARDOWN};
use crate::raw_cgroup_writes::patch;

/// Timeout until a joined thread is gone from `/proc`.
const THREAD_GONE: Duration = Duration::from_secs(1);

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
    let directory = env.directory.join(format!("pod-{}", env.lives));
    let id = format!("{:08x}", env.lives);
    let begin = Instant::now();
    let group = env.group.child(&id).map_err(io::Error::other)?;
    let container = group.child("main").map_err(io::Error::other)?;
    drop(container.create().map_err(io::Error::other)?);
    container.apply(&patch(200, 64)?).map_err(io::Error::other)?;
    let at = note(CGROUPS, begin);
    fs::create_dir(&directory)?;
    let netns = directory.join("netns");
    pin(&netns)?;
    let at = note(NAMESPACES, at);
    let pod = net::Pod { id: id.clone(), netns: Some(netns.clone()), ..net::Pod::default() };
    let ips = env.bridge.reserve(&id).map_err(io::Error::other)?;
    env.bridge.attach(&pod, &ips).map_err(io::Error::other)?;
    let at = note(NETWORK, at);
    let program = start(&env.directory, &directory, &netns, &container)?;
    note(CONTAINER, at);
    let at = note(READY, begin);
    sys::signal::send(program, 9)?;
    sys::child_wait::reap(program)?;
    let removal = env.bridge.detach(&id).map_err(io::Error::other)?;
    umount2(&netns, MntFlags::MNT_DETACH)?;
    group.remove().map_err(io::Error::other)?;
    fs::remove_dir_all(&directory)?;
    note(TEARDOWN, at);
    removal.wait();
    Ok(times)
}

/// Creates namespaces, and keeps the network namespace by a bind mount at `path`.
fn pin(path: &Path) -> io::Result<()> {
    File::create(path)?;
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS)?;
        sys::netns::loopback_up()?;
        let none: Option<&Path> = None;
        Ok(mount(Some("/proc/thread-self/ns/net"), path, none, MsFlags::MS_BIND, none)?)
    };
    std::thread::scope(|scope| scope.spawn(make).join().map_err(|_| io::Error::other("a thread panicked"))?)
}

/// Waits until joined threads are gone, and returns the proof that this process has one thread.
fn one_thread() -> io::Result<SingleThread> {
    let begin = Instant::now();
    loop {
        match SingleThread::check() {
            Err(_) if begin.elapsed() < THREAD_GONE => std::thread::yield_now(),
            other => return other,
        }
    }
}

/// Starts a container's program with its own root and namespaces; returns its PID once it runs.
fn start(env: &Path, directory: &Path, netns: &Path, group: &Cgroup) -> io::Result<i32> {
    let proof = one_thread()?;
    let (mut reader, writer) = io::pipe()?;
    for name in ["upper", "work", "root"] {
        fs::create_dir(directory.join(name))?;
    }
    let join = group.join_files();
    let inside = |mut writer: io::PipeWriter| {
        let error = match enter(env, directory, &join) {
            Ok(never) => match never {},
            Err(error) => error,
        };
        writeln!(writer, "{error}").ok();
        1
    };
    // The first process enters the namespaces; the second is PID 1 of the PID namespace.
    let first = sys::fork::fork(proof, || {
        let made = || -> io::Result<i32> {
            move_into_link_name_space(File::open(netns)?.as_fd(), Some(LinkNameSpaceType::Network))?;
            let flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWCGROUP;
            unshare(flags | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS)?;
            let copy = writer.try_clone()?;
            let second = sys::fork::fork(proof, || inside(copy))?;
            writeln!({ &writer }, "{second}")?;
            Ok(0)
        };
        made().unwrap_or_else(|error| {
            writeln!({ &writer }, "{error}").ok();
            1
        })
    })?;
    drop(writer);
    let mut words = String::new();
    // EOF comes when the program is executed, which closes the last write end.
    reader.read_to_string(&mut words)?;
    sys::child_wait::reap(first.as_raw())?;
    words.trim().parse().map_err(|_| io::Error::other(words))
}

/// Joins the cgroups, sets up the root and executes the program.
fn enter(env: &Path, directory: &Path, join: &[PathBuf]) -> io::Result<std::convert::Infallible> {
    for file in join {
        fs::write(file, "0")?;
    }
    let none: Option<&Path> = None;
    let root = directory.join("root");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        env.join("lower").display(),
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
        mount(Some(&env.join(name)), &at("etc").join(name), none, MsFlags::MS_BIND, none)?;
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
