//! Enables fast moves of processes between cgroups.
//!
//! The kernel optimises cgroups for fork and exit: the first move after a pause waits for an RCU
//! grace period of some ten milliseconds, and every container begins with a move. The mount option
//! `favordynmods` removes that wait for the whole kernel. Before Linux 6.18 every fork and exit is
//! slower while such a mount exists; since 6.18 none is, and the option lasts until the next boot.

use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A hierarchy without controllers, mounted only for the option.
const OPTIONS: &std::ffi::CStr = c"none,name=crisp-moves,favordynmods";

/// Returns whether a kernel of this release supports the option without a cost for fork and exit.
#[must_use]
pub fn favordynmods_is_free(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 18)
}

/// Enables fast moves of processes in the kernel until the next boot. `dir` exists only during the call.
pub fn enable_favordynmods(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let mounted = mount("crisp-moves", dir, "cgroup", MountFlags::empty(), Some(OPTIONS));
    let unmounted = mounted.and_then(|()| unmount(dir, UnmountFlags::DETACH));
    let removed = std::fs::remove_dir(dir);
    unmounted?;
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_moves_are_enabled_only_on_kernels_without_a_cost_for_fork() {
        for (release, free) in
            [("6.18.44-fc", true), ("6.17.9", false), ("6.1.0-38-amd64", false), ("7.0", true), ("", false)]
        {
            assert_eq!(favordynmods_is_free(release), free, "{release}");
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn enabling_fast_moves_leaves_no_mount_and_can_be_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("moves");
        for _ in 0..2 {
            match enable_favordynmods(&place) {
                Ok(()) => {}
                // The kernel has no cgroup v1.
                Err(error) => assert_eq!(error.raw_os_error(), Some(19), "{error}"),
            }
            assert!(!place.exists());
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("crisp-moves"), "{mounts}");
    }
}
