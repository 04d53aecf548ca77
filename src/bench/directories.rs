//! The file systems of a runtime's directories: creating and removing files is faster on some.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cri_api::v1;
use serde_json::Value;

/// A directory of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(super) struct Directory {
    /// `images`, `containers` (writable layers), `root` or `state`.
    pub(super) of: &'static str,
    pub(super) path: PathBuf,
    /// Type and mount point of its file system.
    pub(super) filesystem: String,
}

pub(super) const CONTAINERS: &str = "containers";

/// Keys of the directories in the verbose status of crisp and containerd.
const ROOT: [&str; 2] = ["root", "containerdRootDir"];
const STATE: [&str; 2] = ["state", "stateDir"];

/// Returns the directories that a runtime reports in ImageFsInfo and its verbose status, with their file systems.
pub(super) fn directories(
    info: Option<v1::ImageFsInfoResponse>,
    status: &HashMap<String, String>,
    mountinfo: &str,
) -> Vec<Directory> {
    let info = info.unwrap_or_default();
    let mountpoint = |usage: Vec<v1::FilesystemUsage>| Some(usage.into_iter().next()?.fs_id?.mountpoint.into());
    let found: [(&'static str, Option<PathBuf>); 4] = [
        ("images", mountpoint(info.image_filesystems)),
        (CONTAINERS, mountpoint(info.container_filesystems)),
        ("root", configured(status, &ROOT)),
        ("state", configured(status, &STATE)),
    ];
    let known = found.into_iter().filter_map(|(of, path)| {
        let path = path?;
        let filesystem = filesystem(mountinfo, &path)?;
        Some(Directory { of, path, filesystem })
    });
    known.collect()
}

/// Returns the first of these settings in the JSON objects of a verbose status.
fn configured(status: &HashMap<String, String>, names: &[&str]) -> Option<PathBuf> {
    let objects: Vec<Value> = status.values().filter_map(|text| serde_json::from_str(text).ok()).collect();
    let found = names.iter().flat_map(|name| objects.iter().map(move |object| object.get(name)));
    found.flatten().find_map(|value| Some(PathBuf::from(value.as_str()?)))
}

/// Returns type and mount point of the mount with the longest path that contains `path`.
fn filesystem(mountinfo: &str, path: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        Some((Path::new(mount.split(' ').nth(4)?), source.split(' ').next()?))
    });
    let containing = mounts.filter(|(point, _)| path.starts_with(point));
    // Of several mounts at one point, the last one covers the others.
    let (point, kind) = containing.max_by_key(|(point, _)| point.as_os_str().len())?;
    Some(format!("{kind} {}", point.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 254:1 / / rw shared:1 - ext4 /dev/vda1 rw\n30 22 0:25 / /var/lib rw - tmpfs tmpfs rw\n\
                          31 30 7:0 / /var/lib rw - xfs /dev/loop0 rw\n";

    #[test]
    fn the_file_system_is_that_of_the_innermost_mount() {
        assert_eq!(filesystem(MOUNTS, Path::new("/var/lib/crisp")).as_deref(), Some("xfs /var/lib"));
        assert_eq!(filesystem(MOUNTS, Path::new("/var/library")).as_deref(), Some("ext4 /"));
        assert_eq!(filesystem("", Path::new("/")), None);
    }

    #[test]
    fn directories_are_those_that_the_runtime_reports() {
        let usage = |path: &str| {
            let fs_id = Some(v1::FilesystemIdentifier { mountpoint: path.to_owned() });
            vec![v1::FilesystemUsage { fs_id, ..Default::default() }]
        };
        let info = v1::ImageFsInfoResponse {
            image_filesystems: usage("/var/lib/images"),
            container_filesystems: usage("/data"),
        };
        let texts = |key: &str, text: &str| HashMap::from([(key.to_owned(), text.to_owned())]);
        let of = |status| {
            let found = directories(Some(info.clone()), &status, MOUNTS);
            found.into_iter().map(|found| format!("{} {}", found.of, found.filesystem)).collect::<Vec<_>>()
        };
        let both = ["images xfs /var/lib", "containers ext4 /"];
        let crisp = texts("info", r#"{"root": "/var/lib/crisp", "state": "/run/crisp"}"#);
        assert_eq!(of(crisp), [&both[..], &["root xfs /var/lib", "state ext4 /"]].concat());
        let containerd = texts("config", r#"{"containerdRootDir": "/a", "rootDir": "/b", "stateDir": "/var/lib/s"}"#);
        assert_eq!(of(containerd), [&both[..], &["root ext4 /", "state xfs /var/lib"]].concat());
        assert_eq!(of(texts("config", "{")), both);
    }
}
