//! Checks the kernel's version and limits.

use std::fs;

use super::finding::Finding;

const TOPIC: &str = "limits";

/// Name of a sysctl, what it limits, the recommended minimum for a node with many pods, and the unit.
const SYSCTLS: [(&str, &str, u64, &str); 5] = [
    ("fs.inotify.max_user_instances", "file watches of the daemon, kubelet and containers", 512, "instances"),
    ("fs.inotify.max_user_watches", "file watches of the daemon, kubelet and containers", 65_536, "watches"),
    ("kernel.pid_max", "processes of all containers", 65_536, "processes"),
    ("kernel.threads-max", "threads of all containers", 32_768, "threads"),
    ("kernel.keys.root_maxkeys", "session keyrings, one per container", 10_000, "keys"),
];
/// Open files of a daemon with many pods.
const FILES: u64 = 65_536;

/// Checks kernel version and limits. `pid` is the daemon's if one runs, otherwise our own.
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
    let hint = "upgrade the kernel; crisp uses features up to Linux 6.3";
    let lacks = [
        ((5, 6), true, "fsopen and openat2 (needed to create containers)"),
        ((5, 12), false, "recursive read-only mounts"),
        ((5, 14), false, "cgroup.kill (kills all processes of a container at once)"),
        ((5, 19), false, "memory.reclaim (lowers memory limits gradually) and idmapped layers"),
        ((6, 3), false, "idmapped tmpfs (needed for user namespaces)"),
    ];
    let missing: Vec<_> = lacks.iter().filter(|(since, _, _)| version < *since).collect();
    if missing.is_empty() {
        return Finding::ok(TOPIC, "kernel", release);
    }
    let list: Vec<&str> = missing.iter().map(|(_, _, what)| *what).collect();
    let what = format!("{release} does not have {}", list.join("; "));
    if missing.iter().any(|(_, essential, _)| *essential) {
        Finding::missing(TOPIC, "kernel", what, hint).essential()
    } else {
        Finding::warn(TOPIC, "kernel", what, hint)
    }
}

/// Returns the soft limit: the daemon does not raise it itself.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

fn files(pid: u32, daemon: bool) -> Finding {
    let process = if daemon { "the daemon" } else { "this shell (and a daemon started from it)" };
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    match open_files(&limits) {
        Some(soft) if soft >= FILES => Finding::ok(TOPIC, "open files", format!("limit of {process}: {soft}")),
        Some(soft) => Finding::warn(
            TOPIC,
            "open files",
            format!("limit of {process}: {soft}, enough for about {} pods", soft / 20),
            "set LimitNOFILE=1048576 in the unit, as runtime-config/crisp.service does, or run ulimit -n 1048576 first",
        ),
        None => {
            Finding::warn(TOPIC, "open files", format!("cannot read the limit in /proc/{pid}/limits"), "mount /proc")
        }
    }
}

fn sysctl(name: &str, bounds: &str, least: u64, unit: &str) -> Finding {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    match fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok()) {
        None => Finding::ok(TOPIC, name, "not limited by this kernel"),
        Some(value) if value >= least => Finding::ok(TOPIC, name, value.to_string()),
        Some(value) => {
            let what = format!("{value} {unit}; {least} or more recommended (for {bounds})");
            Finding::warn(TOPIC, name, what, format!("run sysctl -w {name}={least}, and set it in /etc/sysctl.d"))
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
        true => Finding::ok(TOPIC, "huge pages", "not supported by this kernel"),
        false => Finding::ok(TOPIC, "huge pages", format!("reserved: {}", sizes.join(", "))),
    }
}

/// Checks the clock: with a wrong year, certificates of registries are not valid yet.
fn clock() -> Finding {
    /// 2025, in seconds since 1970.
    const LEAST: u64 = 1_735_689_600;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if now >= LEAST {
        return Finding::ok(TOPIC, "clock", "set");
    }
    let what = "set to a time before 2025: certificates of registries are not valid yet";
    Finding::warn(TOPIC, "clock", what, "set the clock and start an NTP client")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn an_old_kernel_is_reported_with_the_missing_features() {
        assert_eq!(kernel("6.18.5-fc").level, Level::Ok);
        let old = kernel("5.15.0-91-generic");
        assert!(old.level == Level::Warn && old.what.contains("memory.reclaim"), "{old:?}");
        assert!(!old.what.contains("cgroup.kill"), "{old:?}");
        let ancient = kernel("4.19.0");
        assert!(ancient.level == Level::Missing && ancient.essential, "{ancient:?}");
    }

    #[test]
    fn the_soft_limit_of_open_files_is_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max open files            1024                 524288               files     \n";
        assert_eq!(open_files(text), Some(1024));
        assert_eq!(open_files("Max open files  unlimited  unlimited  files"), Some(u64::MAX));
        assert_eq!(open_files(""), None);
    }
}
