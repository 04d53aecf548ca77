//! Rights: of the daemon, and those that it can take from containers.

use std::fs;
use std::path::Path;

use super::finding::Finding;

const TOPIC: &str = "security";

/// By the kernel's numbers: what is lost without it, and whether no pod runs then.
const CAPABILITIES: [(u32, &str, bool, &str); 9] = [
    (21, "CAP_SYS_ADMIN", true, "mounts and namespaces"),
    (12, "CAP_NET_ADMIN", true, "networks of pods"),
    (1, "CAP_DAC_OVERRIDE", true, "files of images, whosever they are"),
    (0, "CAP_CHOWN", true, "files of images, whosever they are"),
    (6, "CAP_SETGID", true, "groups of containers"),
    (7, "CAP_SETUID", true, "users of containers"),
    (5, "CAP_KILL", true, "ending containers of other users"),
    (27, "CAP_MKNOD", false, "devices in containers"),
    (24, "CAP_SYS_RESOURCE", false, "OOM scores below the daemon's own, limits of processes above it"),
];

/// `pid` is the daemon's, where one runs, else our own.
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
    let what = "not root: much of this cannot be tried, and no daemon of this user could run pods";
    Finding::missing(TOPIC, "user", what, "run this as root").essential()
}

fn chroot() -> Option<Finding> {
    let what = "this is a chroot, and containers would find the way out of it: no daemon starts here";
    let hint = "start it in a mount namespace that has this root, by pivot_root";
    let found = Finding::missing(TOPIC, "root directory", what, hint).essential();
    sys::chroot::is_namespace_root().is_ok_and(|fine| !fine).then_some(found)
}

/// The set of capabilities in force, as `/proc/PID/status` has it.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn capabilities(pid: u32) -> Finding {
    let name = "capabilities";
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let Some(has) = effective(&status) else {
        return Finding::warn(TOPIC, name, format!("/proc/{pid}/status does not tell"), "mount /proc");
    };
    weigh(has)
}

fn weigh(has: u64) -> Finding {
    let name = "capabilities";
    let lacks: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| has & (1 << bit) == 0).collect();
    if lacks.is_empty() {
        return Finding::ok(TOPIC, name, "all that it takes");
    }
    let list: Vec<String> = lacks.iter().map(|(_, name, _, lost)| format!("{name} ({lost})")).collect();
    let what = format!("without {}", list.join(", "));
    let hint =
        "give the daemon all capabilities; where they cannot be had, OOM scores and limits are cut to what is allowed";
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
        return Finding::ok(TOPIC, "seccomp", "there: system calls are filtered by default");
    }
    let what = "not there: containers that ask for a filter are refused";
    Finding::missing(TOPIC, "seccomp", what, "a kernel with CONFIG_SECCOMP_FILTER")
}

fn apparmor() -> Finding {
    let apparmor = security::Apparmor::find();
    match (apparmor.is_there(), apparmor.has_parser()) {
        (true, true) => Finding::ok(TOPIC, "AppArmor", "there: containers run under crisp-default"),
        (true, false) => Finding::warn(
            TOPIC,
            "AppArmor",
            "there, but apparmor_parser is not: the default profile cannot be loaded",
            "install the package apparmor",
        ),
        (false, _) => {
            let what = "not there: profiles that pods ask for are refused";
            Finding::missing(TOPIC, "AppArmor", what, "boot with apparmor=1 security=apparmor, if you want it")
        }
    }
}

/// Told only where there is one: most hosts have one of the two.
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
    fn a_lacking_capability_is_named_with_what_is_lost() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(weigh(u64::MAX).level, Level::Ok);
        let resource = weigh(!(1 << 24));
        assert!(resource.level == Level::Warn && resource.what.contains("OOM scores"), "{resource:?}");
        let none = weigh(0);
        assert!(none.level == Level::Missing && none.essential && none.what.contains("CAP_SYS_ADMIN"), "{none:?}");
    }
}
