//! Mounts into volumes with bidirectional propagation, without propagating these mounts to the
//! host.
//!
//! Such a volume is in one peer group with the host's mount. Everything that crisp mounts in it for
//! the container, such as `/etc/hosts` or `/sys/fs/cgroup`, would be mounted on the host as well,
//! and stay there. So the volume leaves its group before the first of these mounts and joins it
//! again after the last. Requires Linux 5.15.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use oci_spec::runtime::Mount;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use sys::mount::{Attributes, PRIVATE, Reach, set_attributes};

use crate::rootfs::mount_target::open_in_root;
use crate::rootfs::mounts::attach;

/// The mounts that have left their peer groups temporarily.
#[derive(Debug)]
pub(crate) struct PropagationGuard {
    /// Whether there can be any: a query of the kernel per mount would take longer than the mount.
    any: bool,
    /// The host's proc file system, for a process that is not in the PID namespace of the one at
    /// `/proc`.
    proc: Option<OwnedFd>,
    separated: Vec<SeparatedMount>,
}

#[derive(Debug)]
struct SeparatedMount {
    mount: OwnedFd,
    /// Another mount of its group, detached.
    group: OwnedFd,
}

impl PropagationGuard {
    pub(crate) fn new(any: bool, proc: Option<&OwnedFd>) -> io::Result<Self> {
        let proc = proc.filter(|_| any).map(OwnedFd::try_clone).transpose()?;
        Ok(Self { any, proc, separated: Vec::new() })
    }

    /// Returns whether `mount` propagates mounts.
    pub(crate) fn has(mount: &Mount) -> bool {
        mount.options().iter().flatten().any(|option| matches!(option.as_str(), "shared" | "rshared"))
    }

    /// Attaches `mount` at `place`, in the container only.
    pub(crate) fn attach(&mut self, mount: impl AsFd, place: OwnedFd) -> io::Result<()> {
        if self.any {
            self.leave_peer_group(&place)?;
        }
        attach(mount, place)
    }

    fn leave_peer_group(&mut self, place: &OwnedFd) -> io::Result<()> {
        let id = mount_id(place)?;
        let Some(point) = self.shared_at(id)? else { return Ok(()) };
        let mount = open_in_root(&point)?;
        if mount_id(&mount)? != id {
            let message = format!("mounts at {} propagate to the host, and another mount covers it", point.display());
            return Err(io::Error::other(message));
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let group = open_tree(&mount, "", flags)?;
        set_attributes(&mount, Attributes { propagation: PRIVATE, ..Attributes::default() }, Reach::Top)?;
        self.separated.push(SeparatedMount { mount, group });
        Ok(())
    }

    /// Returns the mount point of `id`, if mounts created there propagate to other members of its
    /// peer group.
    fn shared_at(&self, id: u64) -> io::Result<Option<PathBuf>> {
        // Some names in it may not be UTF-8.
        let mut table = Vec::new();
        let mut file = match &self.proc {
            Some(proc) => File::from(openat(proc, "self/mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?),
            None => File::open("/proc/self/mountinfo")?,
        };
        file.read_to_end(&mut table)?;
        let table = String::from_utf8_lossy(&table);
        Ok(table.lines().find_map(|line| shared(line, id)))
    }

    /// Puts all of them back into their groups.
    pub(crate) fn rejoin_peer_group(self) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_SET_GROUP
            | MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        for SeparatedMount { mount, group } in self.separated {
            move_mount(&group, "", &mount, "", flags)?;
        }
        Ok(())
    }
}

fn mount_id(place: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

fn shared(line: &str, id: u64) -> Option<PathBuf> {
    let fields: Vec<&str> = line.split(' ').collect();
    let is_it = fields.first()?.parse() == Ok(id);
    let mut groups = fields.iter().skip(6).take_while(|field| **field != "-");
    (is_it && groups.any(|group| group.starts_with("shared:"))).then(|| unescape(fields.get(4).copied().unwrap_or("/")))
}

/// Decodes blanks and similar characters, which are written as three octal digits.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_mount_is_found_by_its_mount_id() {
        let line = r"36 35 98:0 / /a\040b\134c rw,noatime master:1 shared:7 - ext3 /dev/root rw";
        assert_eq!(shared(line, 36), Some(PathBuf::from(r"/a b\c")));
        assert_eq!(shared(line, 35), None);
        assert_eq!(shared("36 35 98:0 / /a rw master:1 - ext3 shared:1 rw", 36), None);
        assert_eq!(shared("", 36), None);
    }
}
