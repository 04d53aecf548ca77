//! Control groups: which, with what controllers, and who makes them.

use std::fs;
use std::path::Path;

use cgroup::{Layout, Systemd, Version};
use config::{CgroupConfig, CgroupDriver};
use model::error_chain::chain;

use super::finding::Finding;

const TOPIC: &str = "cgroups";

/// A controller, whether no pod runs without it, and what is lost.
const CONTROLLERS: [(&str, bool, &str); 7] = [
    ("cpu", true, "CPU limits and weights"),
    ("memory", true, "memory limits"),
    ("pids", false, "limits on the number of processes"),
    ("cpuset", false, "containers bound to CPUs and memory nodes"),
    ("devices", true, "which devices a container may use"),
    ("freezer", false, "stopping all processes of a container at once"),
    ("hugetlb", false, "limits on huge pages"),
];

pub(super) fn check(config: &CgroupConfig) -> Vec<Finding> {
    let layout = match Layout::detect() {
        Ok(layout) => layout,
        Err(error) => {
            let hint = "mount cgroup2 on /sys/fs/cgroup, as every init system does";
            return vec![Finding::missing(TOPIC, "version", chain(&error), hint).essential()];
        }
    };
    let mut found = vec![version(&layout)];
    found.extend(controllers(&layout));
    found.push(swap(&layout));
    found.push(driver(config.driver, Path::new("/run/systemd/system").is_dir()));
    found.push(check_favordynmods(config.favordynmods));
    found.push(check_pressure());
    found
}

fn version(layout: &Layout) -> Finding {
    let what = match layout {
        Layout::V2 { root } => return Finding::ok(TOPIC, "version", format!("v2, at {}", root.display())),
        Layout::V1 { unified: Some(_), .. } => "v1, with a v2 tree that only tracks processes (hybrid)",
        Layout::V1 { unified: None, .. } => "v1",
    };
    let hint = "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 alone: current kubelets want v2";
    Finding::warn(TOPIC, "version", format!("{what}: all of crisp works, but memory is lowered more bluntly"), hint)
}

/// Those that a v2 tree offers, and those that a v1 tree is mounted for.
fn available(layout: &Layout) -> Vec<String> {
    match layout {
        Layout::V1 { .. } => {
            let mounted = |(name, _, _): &(&str, bool, &str)| layout.mount_of(name).is_some();
            CONTROLLERS.iter().filter(|one| mounted(one)).map(|(name, _, _)| (*name).to_owned()).collect()
        }
        Layout::V2 { root } => {
            let listed = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            // These two are no controllers there, but always in the kernel: bpf programs, and a file of every cgroup.
            listed.split_whitespace().chain(["devices", "freezer"]).map(str::to_owned).collect()
        }
    }
}

fn controllers(layout: &Layout) -> Vec<Finding> {
    let available = available(layout);
    let hint = |name: &str| match layout.version() {
        Version::V1 => format!("mount it: mount -t cgroup -o {name} {name} /sys/fs/cgroup/{name}"),
        Version::V2 => format!(
            "see whether the kernel has it (cgroup_disable={name} in /proc/cmdline), and whether a v1 tree holds it"
        ),
    };
    let look = |(name, essential, gives): &(&'static str, bool, &str)| {
        if available.iter().any(|has| has == name) {
            return Finding::ok(TOPIC, *name, format!("there: {gives}"));
        }
        let lacking = Finding::missing(TOPIC, *name, format!("not there: no {gives}"), hint(name));
        if *essential { lacking.essential() } else { lacking }
    };
    CONTROLLERS.iter().map(look).collect()
}

fn swap(layout: &Layout) -> Finding {
    let has = match layout {
        Layout::V1 { .. } => {
            layout.mount_of("memory").is_some_and(|dir| dir.join("memory.memsw.limit_in_bytes").exists())
        }
        // The root has no limits: any cgroup below it shows.
        Layout::V2 { root } => {
            let below = fs::read_dir(root).into_iter().flatten().flatten();
            below.into_iter().any(|entry| entry.path().join("memory.swap.max").exists())
        }
    };
    if has {
        return Finding::ok(TOPIC, "swap accounting", "on: swap can be limited");
    }
    let what = "off: swap of containers cannot be limited";
    Finding::warn(TOPIC, "swap accounting", what, "boot with swapaccount=1, or have no swap")
}

fn driver(driver: CgroupDriver, booted_by_systemd: bool) -> Finding {
    let name = "driver";
    match (driver, booted_by_systemd) {
        (CgroupDriver::Cgroupfs, false) => Finding::ok(TOPIC, name, "cgroupfs, and the init system is not systemd"),
        (CgroupDriver::Cgroupfs, true) => Finding::warn(
            TOPIC,
            name,
            "cgroupfs under systemd: two write to one tree, and systemd may undo limits",
            "set driver = \"systemd\" under [cgroup]; a kubelet asks and follows",
        ),
        (CgroupDriver::Systemd, _) => match Systemd::connect() {
            Ok(systemd) => Finding::ok(TOPIC, name, format!("systemd {}", systemd.version())),
            Err(error) => {
                let hint = "set driver = \"cgroupfs\" under [cgroup], or boot with systemd";
                Finding::missing(TOPIC, name, format!("systemd cannot be reached: {}", chain(&error)), hint).essential()
            }
        },
    }
}

fn check_favordynmods(fast: bool) -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let name = "fast moves";
    match (fast, cgroup::favordynmods_is_free(&release)) {
        (true, true) => Finding::ok(TOPIC, name, "on: containers start without waiting, at nobody's cost"),
        (true, false) => {
            Finding::ok(TOPIC, name, "on: containers start without waiting, and every fork costs a little more")
        }
        (false, _) => Finding::warn(
            TOPIC,
            name,
            "off: the start of a container may wait some ten milliseconds for all CPUs",
            "set favordynmods = \"on\" under [cgroup]; before kernel 6.18 every fork pays a little for it",
        ),
    }
}

/// The file can be there and say that it is switched off.
fn check_pressure() -> Finding {
    match fs::read_to_string("/proc/pressure/memory") {
        Ok(_) => Finding::ok(TOPIC, "pressure (PSI)", "on: stats tell how long processes waited"),
        Err(_) => Finding::missing(TOPIC, "pressure (PSI)", "off: stats have no pressure", "boot with psi=1"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Level, can_run};
    use super::*;

    #[test]
    fn a_controller_that_is_not_there_is_told_and_weighed() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let layout = Layout::V2 { root: root.path().to_owned() };
        let found = controllers(&layout);
        assert!(can_run(&found), "{found:?}");
        let missing: Vec<&str> = found.iter().filter(|f| f.level == Level::Missing).map(|f| f.name.as_str()).collect();
        assert_eq!(missing, ["cpuset", "hugetlb"]);
        fs::write(root.path().join("cgroup.controllers"), "cpu\n").unwrap();
        assert!(!can_run(&controllers(&layout)));
    }

    #[test]
    fn cgroupfs_under_systemd_is_doubtful() {
        assert_eq!(driver(CgroupDriver::Cgroupfs, true).level, Level::Warn);
        assert_eq!(driver(CgroupDriver::Cgroupfs, false).level, Level::Ok);
    }
}
