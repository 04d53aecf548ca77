//! Checks the root and state directories, overlayfs and user namespaces.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use config::Config;
use daemon::shim::ShimProgram;
use model::error_chain::chain;
use rustix::fs::{Mode, OFlags, openat, statfs, statvfs};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use super::finding::Finding;

const TOPIC: &str = "storage";
/// Minimum free bytes in the root directory: enough for a few images.
const SPACE_MIN: u64 = 2 << 30;
const STATE_MIN: u64 = 64 << 20;
const FILES_MIN: u64 = 10_000;

pub(super) async fn check(config: &Config) -> Vec<Finding> {
    let mut found = vec![space("root", &config.root, SPACE_MIN), space("state", &config.state, STATE_MIN)];
    found.push(kind("root", &config.root));
    found.push(kind("state", &config.state));
    found.push(overlay(&config.root));
    found.push(user_namespaces(config).await);
    found
}

/// Returns the directory, or its nearest existing parent.
fn existing(dir: &Path) -> &Path {
    dir.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("/"))
}

/// A temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn below(dir: &Path) -> io::Result<Self> {
        let path = existing(dir).join(format!(".crisp-check-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            // The findings are still printed.
            writeln!(io::stderr(), "crisp: removing {}: {error}", self.0.display()).ok();
        }
    }
}

fn space(setting: &'static str, dir: &Path, least: u64) -> Finding {
    let (at, name) = (existing(dir), format!("space of {setting}"));
    let hint = format!("free space, or set {setting} to a directory on another disk");
    match statvfs(at) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let words = format!("{}: {} MiB free", dir.display(), free >> 20);
            // f_files is 0 on file systems without a fixed number of inodes.
            if free < least {
                Finding::warn(TOPIC, name, format!("{words}; {} MiB or more recommended", least >> 20), hint)
            } else if stat.f_files > 0 && stat.f_favail < FILES_MIN {
                let words = format!("{words}, but only {} free inodes; {FILES_MIN} or more recommended", stat.f_favail);
                Finding::warn(TOPIC, name, words, hint)
            } else {
                Finding::ok(TOPIC, name, words)
            }
        }
        Err(error) => Finding::missing(TOPIC, name, format!("{}: {error}", at.display()), hint).essential(),
    }
}

/// Returns the name for a file system's magic number.
fn file_system(magic: u64) -> &'static str {
    match magic {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlay",
        0x6969 => "nfs",
        0xF2F5_2010 => "f2fs",
        0x2FC1_2FC1 => "zfs",
        0x6573_5546 => "fuse",
        0x0102_1997 => "9p",
        0x8584_58F6 => "ramfs",
        _ => "another kind",
    }
}

fn kind(setting: &'static str, dir: &Path) -> Finding {
    let name = format!("file system of {setting}");
    let magic = match statfs(existing(dir)) {
        Ok(stat) => u64::try_from(stat.f_type).unwrap_or(0),
        Err(error) => {
            return Finding::missing(TOPIC, name, error.to_string(), "check the disk for errors").essential();
        }
    };
    let kind = file_system(magic);
    let words = format!("{}: {kind}", dir.display());
    match (setting, kind) {
        ("root", "tmpfs" | "ramfs") => {
            let what = format!("{words}: images use memory and are lost at reboot");
            Finding::warn(TOPIC, name, what, "set root to a directory on a disk")
        }
        ("root", "overlay" | "nfs" | "fuse" | "9p") => {
            let what = format!("{words}: overlayfs may refuse it as upper directory");
            Finding::warn(TOPIC, name, what, "set root to a directory on ext4, xfs or btrfs")
        }
        ("state", "tmpfs" | "ramfs") | ("root", _) => Finding::ok(TOPIC, name, words),
        (_, _) => {
            let what = format!("{words}: not a tmpfs, so runtime state is slower to write and survives a reboot");
            Finding::warn(TOPIC, name, what, "set state to a directory on a tmpfs, such as /run/crisp")
        }
    }
}

/// Tests an overlay mount, as for a container; the mount stays detached.
fn overlay(root: &Path) -> Finding {
    let name = "overlayfs";
    match Scratch::below(root).and_then(|scratch| try_overlay(&scratch.0)) {
        Ok(()) => Finding::ok(TOPIC, name, format!("works in {} (tested)", root.display())),
        Err(error) => {
            let hint = "load the module (modprobe overlay), or set root to a directory on ext4, xfs or btrfs";
            Finding::missing(TOPIC, name, format!("does not work in {}: {error}", root.display()), hint).essential()
        }
    }
}

fn try_overlay(dir: &Path) -> io::Result<()> {
    for name in ["lower", "upper", "work"] {
        fs::create_dir(dir.join(name))?;
    }
    fs::write(dir.join("lower/below"), "below")?;
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, name) in [("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work")] {
        let path = CString::new(dir.join(name).into_os_string().into_encoded_bytes()).map_err(io::Error::other)?;
        fsconfig_set_string(&overlay, key, path.as_c_str())?;
    }
    fsconfig_create(&overlay)?;
    let root = fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let below = openat(&root, "below", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    if io::read_to_string(fs::File::from(below))? != "below" {
        return Err(io::Error::other("a file of the lower directory has wrong content"));
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let above = openat(&root, "above", flags, Mode::from_raw_mode(0o600))?;
    fs::File::from(above).write_all(b"above")?;
    match fs::read_to_string(dir.join("upper/above")) {
        Ok(text) if text == "above" => Ok(()),
        Ok(_) | Err(_) => Err(io::Error::other("a written file does not appear in the upper directory")),
    }
}

/// Runs the shim's user namespace probe, which the daemon also runs at start.
async fn user_namespaces(config: &Config) -> Finding {
    let name = "user namespaces";
    let hint = "use Linux 6.3 or later, user.max_user_namespaces above 0, and root on ext4, xfs or btrfs";
    let program = match ShimProgram::load(&config.shim) {
        Ok(program) => program,
        Err(error) => {
            let hint = "install crisp-shim beside crisp, or set path under [shim]";
            return Finding::missing(TOPIC, "crisp-shim", chain(&error), hint).essential();
        }
    };
    let dirs = Scratch::below(&config.root).and_then(|scratch| {
        let state = if config.state.is_dir() { None } else { Some(scratch.0.join("state")) };
        // The probe needs an empty directory.
        let own = scratch.0.join("probe");
        fs::create_dir(&own)?;
        state.as_ref().map(fs::create_dir).transpose()?;
        Ok((scratch, own, state))
    });
    let lack = match &dirs {
        Ok((_scratch, own, state)) => program.probe(own, state.as_deref().unwrap_or(&config.state)).await,
        Err(error) => Some(error.to_string()),
    };
    match lack {
        None => Finding::ok(TOPIC, name, "available for pods, with idmapped mounts (tested)"),
        Some(reason) => Finding::missing(TOPIC, name, format!("not available for pods: {reason}"), hint),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_missing_directory_is_checked_by_its_nearest_parent() {
        assert_eq!(existing(Path::new("/proc/self/none/of/this")), Path::new("/proc/self"));
        assert_eq!(space("root", Path::new("/dev/shm/none"), u64::MAX).level, Level::Warn);
        assert_eq!(kind("state", Path::new("/dev/shm")).level, Level::Ok);
        assert_eq!(kind("root", Path::new("/dev/shm")).level, Level::Warn);
    }

    #[test]
    #[ignore = "needs root"]
    fn the_overlay_test_leaves_no_files() {
        let dir = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
        let found = overlay(&dir.path().join("not/made/yet"));
        assert_eq!(found.level, Level::Ok, "{found:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
