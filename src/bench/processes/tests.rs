use std::hint::black_box;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Instant;

use super::*;

fn own() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

#[test]
fn peak_memory_and_cpu_time_are_those_of_the_listening_process() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let _listener = UnixListener::bind(&socket).unwrap();
    let runtime = RuntimeProcesses::behind(&socket, None).unwrap();
    assert_eq!(runtime.daemon, own());
    assert!(runtime.shares_program().unwrap() && runtime.program_size().unwrap() > 0.5);
    runtime.reset_peak().unwrap();
    let before = clock(runtime.daemon);
    drop(black_box(vec![1u8; 64 << 20]));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(50) {
        black_box(0);
    }
    assert!(runtime.peak().unwrap() >= 64.0);
    assert!(clock(runtime.daemon) > before);
}

#[test]
fn descendants_and_shims_are_counted_but_containers_are_not() {
    // A child of this process plays the daemon.
    let mut daemon = Command::new("sh").args(["-c", "sleep 1000 & sleep 86399 & wait"]).spawn().unwrap();
    let mut named =
        Command::new("sh").args(["-c", "read x", "0123abc", "--id", "the-pod"]).stdin(pipe()).spawn().unwrap();
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    let runtime = RuntimeProcesses { daemon: i32::try_from(daemon.id()).unwrap(), own: None, pods: None, cgroup: None };
    let begin = Instant::now();
    let members = loop {
        let members = runtime.members(&["the-pod", ""]).unwrap();
        if members.len() == 3 || begin.elapsed() > Duration::from_secs(20) {
            break members;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let memory = runtime.memory(&["the-pod"]).unwrap();
    assert!(!runtime.shares_program().unwrap());
    let children: Vec<i32> = processes()
        .unwrap()
        .iter()
        .filter(|(_, process)| process.parent == runtime.daemon)
        .map(|(pid, _)| *pid)
        .collect();
    for child in &children {
        sys::signal::send(*child, 9).ok();
    }
    for process in [&mut daemon, &mut named, &mut other] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(children.len(), 2);
    assert_eq!(members.len(), 3, "{members:?}");
    assert!(members.contains(&runtime.daemon) && !members.contains(&i32::try_from(other.id()).unwrap()));
    assert!(members.contains(&i32::try_from(named.id()).unwrap()));
    assert!(memory.daemon > 0.0 && memory.others > memory.others_private && memory.others_private > 0.0, "{memory:?}");
}

/// Returns a pipe that gives neither data nor EOF while this process runs.
fn pipe() -> std::io::PipeReader {
    let (reader, writer) = std::io::pipe().unwrap();
    std::mem::forget(writer);
    reader
}

#[test]
fn the_cgroup_with_cpu_time_is_found_on_v1_and_v2() {
    let hybrid = "12:cpu,cpuacct:/a/b\n1:name=systemd:/x\n0::/y\n";
    assert_eq!(line(hybrid).as_deref(), Some("12:cpu,cpuacct:/a/b"));
    assert_eq!(path_of("12:cpu,cpuacct:/a:b"), "/a:b");
    assert_eq!(line("0::/y\n").as_deref(), Some("0::/y"));
    assert_eq!(line(""), None);
}

#[test]
fn processes_with_any_name_are_read() {
    assert_eq!(stat(own(), 4), Some(u64::try_from(nix::unistd::getppid().as_raw()).unwrap()));
}
