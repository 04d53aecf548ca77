//! The cgroup hierarchies of this host: one v2 tree, or one tree per v1 controller.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use model::{CgroupPath, InvalidCgroupPath};

const MOUNTINFO: &str = "/proc/self/mountinfo";
const CGROUPS: &str = "/proc/cgroups";

/// The cgroup trees of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// Controllers are in v1 trees; `unified` is the v2 tree of a hybrid host, which only tracks
    /// processes.
    V1 { hierarchies: Vec<Hierarchy>, unified: Option<PathBuf> },
    /// All controllers are in one v2 tree.
    V2 { root: PathBuf },
}

/// One v1 tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    pub kind: HierarchyKind,
    pub mount: PathBuf,
}

/// The purpose of a v1 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HierarchyKind {
    /// One controller, or several mounted together, in the kernel's order.
    Controllers(Vec<String>),
    /// No controller, only a name: `systemd`.
    Named(String),
}

/// The version of a cgroup, which decides its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The layout of this host could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    #[error("reading {path} to find the host's cgroup mounts")]
    Read { path: &'static str, source: io::Error },
    #[error("this host has no mounted cgroup file system: mount cgroup2 at /sys/fs/cgroup")]
    NotMounted,
}

impl model::ErrorClass for DetectError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Read { .. } | Self::NotMounted => model::ErrorKind::Internal,
        }
    }
}

impl Layout {
    /// Reads the current mounts.
    pub fn detect() -> Result<Self, DetectError> {
        let mountinfo = fs::read(MOUNTINFO).map_err(|source| DetectError::Read { path: MOUNTINFO, source })?;
        // A kernel without v1 support may lack this file: then no mount can name a v1 controller.
        let cgroups = match fs::read_to_string(CGROUPS) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(DetectError::Read { path: CGROUPS, source }),
        };
        Self::parse(&mountinfo, &cgroups).ok_or(DetectError::NotMounted)
    }

    /// Reads the layout from the text of `/proc/self/mountinfo` and `/proc/cgroups`, or `None`
    /// where there is no cgroup mount.
    pub fn parse(mountinfo: &[u8], cgroups: &str) -> Option<Self> {
        let known: Vec<&str> =
            cgroups.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_whitespace().next()).collect();
        let mut mounts: Vec<Mount> = mountinfo.split(|b| *b == b'\n').filter_map(Mount::parse).collect();
        // The same tree may be mounted again, for instance inside a container's root: whole trees
        // at the usual path come first.
        mounts.sort_by_key(|m| (m.root != b"/", !m.point.starts_with("/sys/fs/cgroup")));

        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for mount in mounts.iter().filter(|m| m.fs_type == b"cgroup") {
            if let Some(kind) = mount.hierarchy(&known)
                && hierarchies.iter().all(|h| h.kind != kind)
            {
                hierarchies.push(Hierarchy { kind, mount: mount.point.clone() });
            }
        }
        let unified = mounts.iter().find(|m| m.fs_type == b"cgroup2").map(|m| m.point.clone());
        // A v1 mount of another controller does not make the host v1: these two decide.
        let v1 = hierarchies.iter().any(|h| h.kind.has("cpu") || h.kind.has("memory"));
        match (v1, unified) {
            (true, unified) => Some(Self::V1 { hierarchies, unified }),
            (false, Some(root)) => Some(Self::V2 { root }),
            (false, None) => None,
        }
    }

    pub fn version(&self) -> Version {
        match self {
            Self::V1 { .. } => Version::V1,
            Self::V2 { .. } => Version::V2,
        }
    }

    /// The root of the tree with the files of `controller`.
    pub fn mount_of(&self, controller: &str) -> Option<&Path> {
        match self {
            Self::V1 { hierarchies, .. } => {
                hierarchies.iter().find(|h| h.kind.has(controller)).map(|h| h.mount.as_path())
            }
            Self::V2 { root } => Some(root),
        }
    }

    /// The root of every tree that a process joins.
    pub fn mounts(&self) -> Vec<&Path> {
        match self {
            Self::V1 { hierarchies, unified } => {
                hierarchies.iter().map(|h| h.mount.as_path()).chain(unified.as_deref()).collect()
            }
            Self::V2 { root } => vec![root],
        }
    }

    /// Rejects a path at or below a file that exists now: files of controllers that
    /// [`CgroupPath::refuse_kernel_files`] does not know.
    pub fn refuse_existing_files(&self, path: CgroupPath) -> Result<CgroupPath, InvalidCgroupPath> {
        let is_file = |mount: &Path| match fs::symlink_metadata(path.under(mount)) {
            Ok(found) => !found.is_dir(),
            Err(e) => e.kind() == io::ErrorKind::NotADirectory,
        };
        if self.mounts().into_iter().any(is_file) { Err(InvalidCgroupPath::kernel_file(&path)) } else { Ok(path) }
    }

    /// The v2 tree, which a hybrid host has too.
    pub fn unified(&self) -> Option<&Path> {
        match self {
            Self::V1 { unified, .. } => unified.as_deref(),
            Self::V2 { root } => Some(root),
        }
    }
}

impl HierarchyKind {
    fn has(&self, controller: &str) -> bool {
        match self {
            Self::Controllers(names) => names.iter().any(|n| n == controller),
            Self::Named(_) => false,
        }
    }
}

/// The fields of a mountinfo line that are used here.
struct Mount {
    root: Vec<u8>,
    point: PathBuf,
    fs_type: Vec<u8>,
    options: Vec<u8>,
}

impl Mount {
    /// `36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`; see proc(5).
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|b| *b == b' ');
        let root = unescape(fields.nth(3)?);
        let point = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
        let mut rest = fields.skip_while(|f| *f != b"-").skip(1);
        let fs_type = rest.next()?.to_vec();
        let options = rest.nth(1)?.to_vec();
        Some(Self { root, point, fs_type, options })
    }

    fn hierarchy(&self, known: &[&str]) -> Option<HierarchyKind> {
        let options = String::from_utf8_lossy(&self.options);
        if let Some(name) = options.split(',').find_map(|o| o.strip_prefix("name=")) {
            return Some(HierarchyKind::Named(name.to_owned()));
        }
        let names: Vec<String> = options.split(',').filter(|o| known.contains(o)).map(str::to_owned).collect();
        (!names.is_empty()).then_some(HierarchyKind::Controllers(names))
    }
}

/// Replaces mountinfo's octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\')
            .then(|| std::str::from_utf8(tail.get(..3)?).ok().and_then(|t| u8::from_str_radix(t, 8).ok()))
            .flatten();
        match code {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &str = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t1\t1\ncpu\t1\t1\t1\ncpuacct\t2\t1\t1\nblkio\t7\t1\t1\nmemory\t4\t1\t1\ndevices\t5\t1\t1\nfreezer\t6\t1\t1\nnet_cls\t0\t1\t1\npids\t8\t1\t1\n";

    fn controllers(names: &[&str], mount: &str) -> Hierarchy {
        let names = names.iter().map(|n| (*n).to_owned()).collect();
        Hierarchy { kind: HierarchyKind::Controllers(names), mount: mount.into() }
    }

    #[test]
    fn plain_v1_has_a_tree_per_controller() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
        let layout = Layout::parse(text, KNOWN).unwrap();
        assert_eq!(
            layout,
            Layout::V1 {
                hierarchies: vec![
                    controllers(&["cpu"], "/sys/fs/cgroup/cpu"),
                    controllers(&["memory"], "/sys/fs/cgroup/memory")
                ],
                unified: None
            }
        );
        assert_eq!(layout.mount_of("memory"), Some(Path::new("/sys/fs/cgroup/memory")));
        assert_eq!(layout.mount_of("hugetlb"), None);
    }

    #[test]
    fn controllers_mounted_together_share_a_tree() {
        let text = b"33 24 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:16 - cgroup cgroup rw,cpu,cpuacct\n\
            34 24 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:17 - cgroup cgroup rw,xattr,memory\n";
        let layout = Layout::parse(text, KNOWN).unwrap();
        assert_eq!(layout.mount_of("cpu"), layout.mount_of("cpuacct"));
        assert_eq!(layout.mounts().len(), 2);
    }

    #[test]
    fn hybrid_has_v1_controllers_a_named_tree_and_a_v2_tree() {
        let text = b"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let layout = Layout::parse(text, KNOWN).unwrap();
        assert_eq!(layout.version(), Version::V1);
        assert_eq!(layout.unified(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(layout.mounts().len(), 3);
        let Layout::V1 { hierarchies, .. } = layout else { panic!("not v1") };
        assert_eq!(hierarchies[1].kind, HierarchyKind::Named("systemd".into()));
    }

    #[test]
    fn a_v2_host_with_a_v1_mount_of_a_minor_controller_is_v2() {
        let v2 =
            b"35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
        assert_eq!(Layout::parse(v2, KNOWN), Some(Layout::V2 { root: "/sys/fs/cgroup".into() }));
        assert_eq!(Layout::parse(v2, ""), Some(Layout::V2 { root: "/sys/fs/cgroup".into() }));
        let mut stray = v2.to_vec();
        stray.extend_from_slice(b"90 24 0:44 / /mnt/net_cls rw - cgroup cgroup rw,net_cls\n");
        assert_eq!(Layout::parse(&stray, KNOWN), Some(Layout::V2 { root: "/sys/fs/cgroup".into() }));
    }

    #[test]
    fn a_second_mount_of_a_tree_inside_a_container_is_ignored() {
        let text = b"90 1 0:29 /kubepods/pod1/c1 /run/c1/sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n\
            91 1 0:29 / /mnt/cpu rw - cgroup cgroup rw,cpu\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        assert_eq!(Layout::parse(text, KNOWN).unwrap().mounts(), [Path::new("/sys/fs/cgroup/cpu")]);
    }

    #[test]
    fn escaped_mount_points_are_read() {
        let text = b"35 24 0:30 / /mnt/a\\040b\\134c rw - cgroup2 cgroup2 rw\n";
        assert_eq!(Layout::parse(text, ""), Some(Layout::V2 { root: "/mnt/a b\\c".into() }));
    }

    #[test]
    fn a_host_without_cgroup_mounts_has_no_layout() {
        assert_eq!(Layout::parse(b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\ngarbage\n", KNOWN), None);
    }

    #[test]
    fn a_path_through_an_existing_file_is_refused_whatever_its_name() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("pods")).unwrap();
        fs::write(root.path().join("pods/future"), "").unwrap();
        let layout = Layout::V2 { root: root.path().to_owned() };
        let refused = |path: &str| layout.refuse_existing_files(CgroupPath::new(path).unwrap()).is_err();
        assert!(refused("/pods/future") && refused("/pods/future/x"));
        assert!(!refused("/pods") && !refused("/pods/new") && !refused("/new/x"));
    }
}
