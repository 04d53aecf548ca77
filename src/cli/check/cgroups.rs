//! Checks cgroups: version, controllers, driver.

use std::fs;
use std::path::Path;

use cgroup::{Layout, Systemd, Version};
use config::{CgroupConfig, CgroupDriver};
use model::error_chain::chain;

use super::finding::Finding;

const TOPIC: &str = "cgroups";

/// Name of a controller, whether pods need it, and what it provides.
const CONTROLLERS: [(&str, bool, &str); 7] = [
    ("cpu", true, "CPU limits and weights"),
    ("memory", true, "memory limits"),
    ("pids", false, "process limits"),
    ("cpuset", false, "pinning to CPUs and memory nodes"),
    ("devices", true, "device access control"),
    ("freezer", false, "freezing containers"),
    ("hugetlb", false, "huge page limits"),
];

pub(super) fn check(config: &CgroupConfig) -> Vec<Finding> {
    let layout = match Layout::detect() {
        Ok(layout) => layout,
        Err(error) => {
            let hint = "mount cgroup2 on /sys/fs/cgroup";
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
        Layout::V1 { unified: Some(_), .. } => "v1, with a v2 hierarchy that only tracks processes (hybrid)",
        Layout::V1 { unified: None, .. } => "v1",
    };
    let hint = "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 only: current kubelets need v2";
    let what = format!("{what}: supported, but memory limits cannot be lowered gradually (no memory.high)");
    Finding::warn(TOPIC, "version", what, hint)
}

/// Returns the controllers that the v2 hierarchy offers, or that have a v1 hierarchy.
fn available(layout: &Layout) -> Vec<String> {
    match layout {
        Layout::V1 { .. } => {
            let mounted = |(name, _, _): &(&str, bool, &str)| layout.mount_of(name).is_some();
            CONTROLLERS.iter().filter(|one| mounted(one)).map(|(name, _, _)| (*name).to_owned()).collect()
        }
        Layout::V2 { root } => {
            let listed = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            // v2 has no controllers for these; it always has BPF device programs and cgroup.freeze.
            listed.split_whitespace().chain(["devices", "freezer"]).map(str::to_owned).collect()
        }
    }
}

fn controllers(layout: &Layout) -> Vec<Finding> {
    let available = available(layout);
    let hint = |name: &str| match layout.version() {
        Version::V1 => format!("mount it: mount -t cgroup -o {name} {name} /sys/fs/cgroup/{name}"),
        Version::V2 => format!(
            "check that /proc/cmdline has no cgroup_disable={name}, and that no v1 hierarchy uses the controller"
        ),
    };
    let look = |(name, essential, gives): &(&'static str, bool, &str)| {
        if available.iter().any(|has| has == name) {
            return Finding::ok(TOPIC, *name, format!("available ({gives})"));
        }
        let lacking = Finding::missing(TOPIC, *name, format!("not available: no {gives}"), hint(name));
        if *essential { lacking.essential() } else { lacking }
    };
    CONTROLLERS.iter().map(look).collect()
}

fn swap(layout: &Layout) -> Finding {
    let has = match layout {
        Layout::V1 { .. } => {
            layout.mount_of("memory").is_some_and(|dir| dir.join("memory.memsw.limit_in_bytes").exists())
        }
        // The root cgroup has no limit files; any cgroup below it has them.
        Layout::V2 { root } => {
            let below = fs::read_dir(root).into_iter().flatten().flatten();
            below.into_iter().any(|entry| entry.path().join("memory.swap.max").exists())
        }
    };
    if has {
        return Finding::ok(TOPIC, "swap accounting", "on: swap limits work");
    }
    let what = "off: swap of containers cannot be limited";
    Finding::warn(TOPIC, "swap accounting", what, "boot with swapaccount=1, or disable swap")
}

fn driver(driver: CgroupDriver, booted_by_systemd: bool) -> Finding {
    let name = "driver";
    match (driver, booted_by_systemd) {
        (CgroupDriver::Cgroupfs, false) => Finding::ok(TOPIC, name, "cgroupfs (the init system is not systemd)"),
        (CgroupDriver::Cgroupfs, true) => Finding::warn(
            TOPIC,
            name,
            "cgroupfs, but the init system is systemd, which writes to the same hierarchy and may revert limits",
            "set driver = \"systemd\" under [cgroup]; the kubelet reads the driver from crisp",
        ),
        (CgroupDriver::Systemd, _) => match Systemd::connect() {
            Ok(systemd) => Finding::ok(TOPIC, name, format!("systemd {}", systemd.version())),
            Err(error) => {
                let hint = "set driver = \"cgroupfs\" under [cgroup], or boot with systemd";
                Finding::missing(TOPIC, name, format!("cannot connect to systemd: {}", chain(&error)), hint).essential()
            }
        },
    }
}

fn check_favordynmods(fast: bool) -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let name = "favordynmods";
    match (fast, cgroup::favordynmods_is_free(&release)) {
        (true, true) => Finding::ok(TOPIC, name, "on: saves about 10 ms per container start"),
        (true, false) => {
            Finding::ok(TOPIC, name, "on: saves about 10 ms per container start; fork and exit are slightly slower")
        }
        (false, _) => Finding::warn(
            TOPIC,
            name,
            "off: each container start may take about 10 ms longer",
            "set favordynmods = \"on\" under [cgroup]; before Linux 6.18 it makes fork and exit slightly slower",
        ),
    }
}

/// Checks PSI by reading the file: with PSI disabled it may exist, but reading it fails.
fn check_pressure() -> Finding {
    match fs::read_to_string("/proc/pressure/memory") {
        Ok(_) => Finding::ok(TOPIC, "pressure (PSI)", "on: stats include pressure"),
        Err(_) => Finding::missing(TOPIC, "pressure (PSI)", "off: stats do not include pressure", "boot with psi=1"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Level, can_run};
    use super::*;

    #[test]
    fn only_essential_controllers_decide_whether_pods_can_run() {
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
    fn cgroupfs_under_systemd_is_a_warning() {
        assert_eq!(driver(CgroupDriver::Cgroupfs, true).level, Level::Warn);
        assert_eq!(driver(CgroupDriver::Cgroupfs, false).level, Level::Ok);
    }
}
