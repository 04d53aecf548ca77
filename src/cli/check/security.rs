//! Checks the daemon's privileges, and the kernel's means to restrict containers.

use std::fs;
use std::path::Path;

use super::finding::Finding;

const TOPIC: &str = "security";

/// Number and name of a capability, whether pods need it, and what crisp uses it for.
const CAPABILITIES: [(u32, &str, bool, &str); 9] = [
    (21, "CAP_SYS_ADMIN", true, "mounts and namespaces"),
    (12, "CAP_NET_ADMIN", true, "pod networks"),
    (1, "CAP_DAC_OVERRIDE", true, "access to image files of any owner"),
    (0, "CAP_CHOWN", true, "ownership of image files"),
    (6, "CAP_SETGID", true, "groups of containers"),
    (7, "CAP_SETUID", true, "users of containers"),
    (5, "CAP_KILL", true, "killing containers of other users"),
    (27, "CAP_MKNOD", false, "devices in containers"),
    (24, "CAP_SYS_RESOURCE", false, "OOM scores below, and rlimits above, those of the daemon"),
];

/// Checks privileges. `pid` is the daemon's if one runs, otherwise our own.
pub(super) fn check(pid: u32) -> Vec<Finding> {
    let mut found = vec![root(), capabilities(pid)];
    found.extend(chroot());
    found.push(seccomp());
    found.push(apparmor());
    found.extend(selinux());
    found
}

fn root() -> Finding {
    if rustix::process::geteuid().is_root() {
        return Finding::ok(TOPIC, "user", "root");
    }
    let what = "not root: many checks cannot run, and a daemon of this user cannot run pods";
    Finding::missing(TOPIC, "user", what, "run this as root").essential()
}

fn chroot() -> Option<Finding> {
    let what = "chroot: the daemon does not start here, because containers could escape from it";
    let hint = "start the daemon in a mount namespace with this root directory (pivot_root)";
    let found = Finding::missing(TOPIC, "root directory", what, hint).essential();
    sys::chroot::is_namespace_root().is_ok_and(|fine| !fine).then_some(found)
}

/// Parses the effective capabilities in `/proc/PID/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn capabilities(pid: u32) -> Finding {
    let name = "capabilities";
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let Some(has) = effective(&status) else {
        return Finding::warn(TOPIC, name, format!("cannot read capabilities in /proc/{pid}/status"), "mount /proc");
    };
    weigh(has)
}

fn weigh(has: u64) -> Finding {
    let name = "capabilities";
    let lacks: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| has & (1 << bit) == 0).collect();
    if lacks.is_empty() {
        return Finding::ok(TOPIC, name, "all required capabilities");
    }
    let list: Vec<String> = lacks.iter().map(|(_, name, _, lost)| format!("{name} ({lost})")).collect();
    let what = format!("missing {}", list.join(", "));
    let hint = "run the daemon with all capabilities; without CAP_SYS_RESOURCE, OOM scores and rlimits are clamped";
    if lacks.iter().any(|(_, _, essential, _)| *essential) {
        Finding::missing(TOPIC, name, what, hint).essential()
    } else {
        Finding::warn(TOPIC, name, what, hint)
    }
}

fn seccomp() -> Finding {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has = |action: &str| actions.split_whitespace().any(|known| known == action);
    if has("errno") && has("allow") {
        return Finding::ok(TOPIC, "seccomp", "available: system calls are filtered by default");
    }
    let what = "not available: containers with a seccomp profile are refused";
    Finding::missing(TOPIC, "seccomp", what, "use a kernel with CONFIG_SECCOMP_FILTER")
}

fn apparmor() -> Finding {
    let apparmor = security::Apparmor::find();
    match (apparmor.is_there(), apparmor.has_parser()) {
        (true, true) => Finding::ok(TOPIC, "AppArmor", "available: the default profile is crisp-default"),
        (true, false) => Finding::warn(
            TOPIC,
            "AppArmor",
            "available, but apparmor_parser not found: the default profile cannot be loaded",
            "install the package apparmor",
        ),
        (false, _) => {
            let what = "not available: pods with an AppArmor profile are refused";
            Finding::missing(TOPIC, "AppArmor", what, "to enable it, boot with apparmor=1 security=apparmor")
        }
    }
}

/// Reports SELinux only if it is enabled: most hosts have AppArmor or SELinux, not both.
fn selinux() -> Option<Finding> {
    let enforcing = fs::read_to_string(Path::new("/sys/fs/selinux/enforce")).ok()?;
    let mode = if enforcing.trim() == "1" { "enforcing" } else { "permissive" };
    Some(Finding::ok(TOPIC, "SELinux", mode))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_missing_capability_is_reported_with_its_purpose() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(weigh(u64::MAX).level, Level::Ok);
        let resource = weigh(!(1 << 24));
        assert!(resource.level == Level::Warn && resource.what.contains("OOM scores"), "{resource:?}");
        let none = weigh(0);
        assert!(none.level == Level::Missing && none.essential && none.what.contains("CAP_SYS_ADMIN"), "{none:?}");
    }
}
