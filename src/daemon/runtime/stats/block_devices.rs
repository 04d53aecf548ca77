//! Names of block devices, and the file system of writable layers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use model::metrics::FileSystem;

/// Names of block devices, looked up once each.
#[derive(Debug, Default)]
pub(crate) struct Devices(BTreeMap<(u32, u32), String>);

impl Devices {
    /// Looks up the name of a device: its file below `/dev`, else its number.
    pub(super) fn learn(&mut self, major: u32, minor: u32) {
        self.0.entry((major, minor)).or_insert_with(|| {
            let number = format!("{major}:{minor}");
            let link = fs::read_link(Path::new("/sys/dev/block").join(&number));
            let name = link.ok().and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
            name.map_or(number, |name| format!("/dev/{name}"))
        });
    }

    pub(crate) fn name(&self, major: u32, minor: u32) -> &str {
        self.0.get(&(major, minor)).map_or("", String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn known(names: &[(u32, u32, &str)]) -> Self {
        Self(names.iter().map(|&(major, minor, name)| ((major, minor), name.to_owned())).collect())
    }
}

/// Returns the file system of `dir`.
pub(super) fn file_system(dir: &Path) -> Option<FileSystem> {
    let room = rustix::fs::statvfs(dir).ok()?;
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    Some(FileSystem {
        device: device_of(&String::from_utf8_lossy(&mounts), dir),
        bytes: room.f_blocks.saturating_mul(room.f_frsize),
        inodes: room.f_files,
        inodes_free: room.f_ffree,
    })
}

/// Returns the device of the mount of `dir`, from the text of mountinfo; of several mounts at one
/// path, the last is on top.
fn device_of(mounts: &str, dir: &Path) -> String {
    let mut found: (PathBuf, String) = (PathBuf::new(), String::new());
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let Some(point) = fields.nth(4) else { continue };
        let point = PathBuf::from(point.replace("\\040", " "));
        let mut rest = fields.skip_while(|field| *field != "-").skip(2);
        let Some(source) = rest.next() else { continue };
        if dir.starts_with(&point) && point.components().count() >= found.0.components().count() {
            found = (point, source.replace("\\040", " "));
        }
    }
    found.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_has_the_device() {
        let mounts = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
            23 22 254:2 / /var/lib rw - ext4 /dev/vdb rw\n\
            24 22 254:3 / /var/lib rw shared:7 - xfs /dev/vdc rw\n\
            25 22 0:30 / /var/library rw - tmpfs none rw\n\
            26 22 0:31 / /my\\040disk rw - tmpfs a\\040name rw\n";
        for (dir, device) in [
            ("/", "/dev/vda1"),
            ("/var", "/dev/vda1"),
            ("/var/lib/crisp", "/dev/vdc"),
            ("/var/library", "none"),
            ("/my disk/x", "a name"),
        ] {
            assert_eq!(device_of(mounts, Path::new(dir)), device, "{dir}");
        }
        assert_eq!(device_of("", Path::new("/")), "");
    }

    #[test]
    fn a_device_without_a_name_has_its_number() {
        let mut devices = Devices::default();
        devices.learn(4_000_000, 7);
        assert_eq!(devices.name(4_000_000, 7), "4000000:7");
        let real =
            fs::read_dir("/sys/dev/block").ok().and_then(|mut all| all.next()?.ok()).map(|entry| entry.file_name());
        if let Some((major, minor)) = real.as_ref().and_then(|name| name.to_str()?.split_once(':')) {
            let (major, minor) = (major.parse().unwrap(), minor.parse().unwrap());
            devices.learn(major, minor);
            assert!(devices.name(major, minor).starts_with("/dev/"), "{devices:?}");
        }
    }

    #[test]
    fn the_file_system_of_a_directory_has_device_and_size() {
        let found = file_system(Path::new("/proc/self")).unwrap();
        assert_eq!((found.device.as_str(), found.bytes), ("proc", 0));
        assert!(file_system(Path::new("/nowhere")).is_none());
    }
}
