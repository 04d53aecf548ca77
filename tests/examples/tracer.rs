//! A program for a container with `CAP_SYS_PTRACE`. It seizes every new process in its PID
//! namespace as early as possible, and prints the privileges that this process has beyond its own.
//!
//! `tracer HOST_DIR`: mount points below `HOST_DIR` belong to the host. Prints `looking`, then
//! `reached NAME: REASON` once for each name and reason, and `seized NAME` for the first process of
//! each name. It reads `/proc` while the process is
//! stopped.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for a test")]

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Privileges and restrictions of a process.
#[derive(Debug)]
struct Rights {
    permitted: u64,
    bounding: u64,
    seccomp: String,
    no_new_privs: String,
}

fn rights(pid: &str) -> Option<(String, Rights)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches(':').trim().to_owned())
    };
    if field("State")?.starts_with(['Z', 'X']) {
        return None;
    }
    let set = |name: &str| u64::from_str_radix(&field(name)?, 16).ok();
    let permitted = set("CapPrm")? | set("CapEff")? | set("CapInh")? | set("CapAmb")?;
    let (seccomp, no_new_privs) = (field("Seccomp")?, field("NoNewPrivs")?);
    Some((field("Name")?, Rights { permitted, bounding: set("CapBnd")?, seccomp, no_new_privs }))
}

/// Returns every privilege of a process beyond those of the container.
fn excess(pid: &str, name: &str, own: &Rights, theirs: &Rights, root: (u64, u64), host: &str) -> Vec<String> {
    let mut found = Vec::new();
    if theirs.permitted & !own.permitted != 0 {
        found.push(format!("capabilities {:x}", theirs.permitted));
    }
    if theirs.bounding & !own.bounding != 0 {
        found.push(format!("bounding set {:x}", theirs.bounding));
    }
    if theirs.seccomp != own.seccomp {
        found.push(format!("seccomp {}", theirs.seccomp));
    }
    if theirs.no_new_privs < own.no_new_privs {
        found.push("no_new_privs".to_owned());
    }
    if let Ok(meta) = fs::metadata(format!("/proc/{pid}/root/."))
        && (meta.dev(), meta.ino()) != root
        // Other containers of the test have another root, which also contains this program.
        && !fs::exists(format!("/proc/{pid}/root/tracer")).unwrap_or(false)
    {
        found.push("root".to_owned());
    }
    // Only crisp and youki processes are checked: other programs have descriptors that they opened themselves.
    let fds =
        if name.starts_with("crisp") || name.starts_with("youki") { format!("/proc/{pid}/fd") } else { String::new() };
    for entry in fs::read_dir(fds).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let target = target.display().to_string();
        if !["pipe:", "/dev/null", "/dev/pts/", "/dev/console"].iter().any(|start| target.starts_with(start)) {
            found.push(format!("descriptor {target}"));
        }
    }
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    if mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|place| place.starts_with(host)) {
        found.push("mounts of the host".to_owned());
    }
    if fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| String::from_utf8_lossy(&all).contains("CRISP")) {
        found.push("environment".to_owned());
    }
    found
}

/// Waits until a seized process has stopped or exited.
fn wait_stopped(pid: Pid) {
    for _ in 0..100_000 {
        match waitpid(pid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Ok(nix::sys::wait::WaitStatus::StillAlive) => {}
            _ => return,
        }
    }
}

fn main() {
    let host = std::env::args().nth(1).unwrap();
    let (_, own) = rights("self").unwrap();
    let root = fs::metadata("/").map(|meta| (meta.dev(), meta.ino())).unwrap();
    let last_pid = || -> i32 {
        fs::read_to_string("/proc/sys/kernel/ns_last_pid").ok().and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    };
    let mut printed = HashSet::new();
    let mut print = |line: String| {
        if printed.len() < 1000 && printed.insert(line.clone()) {
            println!("{line}");
        }
    };
    print("looking".to_owned());
    let mut next = last_pid() + 1;
    for round in 0u64.. {
        let mut seen = None;
        for number in next..next + 4 {
            let pid = Pid::from_raw(number);
            let seized = match ptrace::seize(pid, ptrace::Options::empty()) {
                Err(Errno::ESRCH) => continue,
                Ok(()) => ptrace::interrupt(pid).is_ok(),
                // The process exists, and /proc can be read without tracing it.
                Err(_) => false,
            };
            if seized {
                wait_stopped(pid);
            }
            if let Some((name, theirs)) = rights(&number.to_string()) {
                if seized {
                    print(format!("seized {name}"));
                }
                for reason in excess(&number.to_string(), &name, &own, &theirs, root, &host) {
                    print(format!("reached {name}: {reason}"));
                }
            }
            if seized {
                ptrace::detach(pid, None).ok();
            }
            seen = Some(number);
        }
        if let Some(seen) = seen {
            next = seen + 1;
        } else if round % 512 == 0 {
            // PIDs may be skipped.
            next = next.max(last_pid() - 2);
        }
    }
}
