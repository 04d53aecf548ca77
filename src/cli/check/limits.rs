//! How much of everything the kernel lets a node have.

use std::fs;

use super::finding::Finding;

const TOPIC: &str = "limits";

/// A file of the kernel's, what it bounds, and how much a node with many pods wants.
const SYSCTLS: [(&str, &str, u64, &str); 5] = [
    ("fs.inotify.max_user_instances", "watches of files by daemon, kubelet and containers", 512, "instances"),
    ("fs.inotify.max_user_watches", "watches of files by daemon, kubelet and containers", 65_536, "watches"),
    ("kernel.pid_max", "processes of all containers together", 65_536, "processes"),
    ("kernel.threads-max", "threads of all containers together", 32_768, "threads"),
    ("kernel.keys.root_maxkeys", "containers, each of which has a session keyring", 10_000, "keys"),
];
/// Files that a daemon with many pods has open.
const FILES: u64 = 65_536;

/// `pid` is the daemon's, where one runs, else our own.
pub(super) fn check(pid: u32, daemon: bool) -> Vec<Finding> {
    let mut found = vec![kernel(&rustix::system::uname().release().to_string_lossy()), files(pid, daemon)];
    found.extend(SYSCTLS.iter().map(|(name, bounds, least, unit)| sysctl(name, bounds, *least, unit)));
    found.push(huge_pages());
    found.push(clock());
    found
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let hint = "a newer kernel: 6.3 has all that crisp uses";
    let lacks = [
        ((5, 6), true, "mounts by descriptor and openat2, without which no container is made"),
        ((5, 12), false, "recursively read-only mounts"),
        ((5, 14), false, "cgroup.kill, by which all processes of a container end at once"),
        ((5, 19), false, "memory.reclaim, by which memory is lowered gently, and idmapped layers"),
        ((6, 3), false, "idmapped tmpfs, so no user namespaces"),
    ];
    let missing: Vec<_> = lacks.iter().filter(|(since, _, _)| version < *since).collect();
    if missing.is_empty() {
        return Finding::ok(TOPIC, "kernel", release);
    }
    let list: Vec<&str> = missing.iter().map(|(_, _, what)| *what).collect();
    let what = format!("{release}: it lacks {}", list.join("; "));
    if missing.iter().any(|(_, essential, _)| *essential) {
        Finding::missing(TOPIC, "kernel", what, hint).essential()
    } else {
        Finding::warn(TOPIC, "kernel", what, hint)
    }
}

/// The soft limit, which a daemon does not raise by itself.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

fn files(pid: u32, daemon: bool) -> Finding {
    let whose = if daemon { "the daemon" } else { "this shell, and a daemon started from it," };
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    match open_files(&limits) {
        Some(soft) if soft >= FILES => Finding::ok(TOPIC, "open files", format!("{whose} may have {soft}")),
        Some(soft) => Finding::warn(
            TOPIC,
            "open files",
            format!("{whose} may have {soft}: enough for some {} pods", soft / 20),
            "start the daemon with LimitNOFILE=1048576, as runtime-config/crisp.service does, or after ulimit -n 1048576",
        ),
        None => Finding::warn(TOPIC, "open files", format!("/proc/{pid}/limits does not tell"), "mount /proc"),
    }
}

fn sysctl(name: &str, bounds: &str, least: u64, unit: &str) -> Finding {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    match fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        None => Finding::ok(TOPIC, name, "not bounded by this kernel"),
        Some(value) if value >= least => Finding::ok(TOPIC, name, value.to_string()),
        Some(value) => {
            let what = format!("{value} {unit} bound the {bounds}");
            Finding::warn(TOPIC, name, what, format!("sysctl -w {name}={least}, and the same in /etc/sysctl.d"))
        }
    }
}

fn huge_pages() -> Finding {
    let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let mut sizes: Vec<String> = sizes
        .filter_map(|entry| {
            let name = entry.file_name().to_str()?.strip_prefix("hugepages-")?.to_owned();
            let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            Some(format!("{} of {name}", count.trim()))
        })
        .collect();
    sizes.sort();
    match sizes.is_empty() {
        true => Finding::ok(TOPIC, "huge pages", "none: this kernel has no sizes of them"),
        false => Finding::ok(TOPIC, "huge pages", format!("reserved: {}", sizes.join(", "))),
    }
}

/// A clock before this program was made refuses every certificate of a registry.
fn clock() -> Finding {
    /// 2025, in seconds since 1970.
    const LEAST: u64 = 1_735_689_600;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if now >= LEAST {
        return Finding::ok(TOPIC, "clock", "set");
    }
    let what = "set to a time before 2025: certificates of registries are not valid yet";
    Finding::warn(TOPIC, "clock", what, "set it, and start an NTP client")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn an_old_kernel_is_told_with_what_it_lacks() {
        assert_eq!(kernel("6.18.5-fc").level, Level::Ok);
        let old = kernel("5.15.0-91-generic");
        assert!(old.level == Level::Warn && old.what.contains("memory.reclaim"), "{old:?}");
        assert!(!old.what.contains("cgroup.kill"), "{old:?}");
        let ancient = kernel("4.19.0");
        assert!(ancient.level == Level::Missing && ancient.essential, "{ancient:?}");
    }

    #[test]
    fn the_limit_on_files_is_the_soft_one() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max open files            1024                 524288               files     \n";
        assert_eq!(open_files(text), Some(1024));
        assert_eq!(open_files("Max open files  unlimited  unlimited  files"), Some(u64::MAX));
        assert_eq!(open_files(""), None);
    }
}
