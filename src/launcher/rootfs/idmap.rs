//! The ids of a container and of its mounts, from its OCI configuration.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::{IdMapping, UserNs};
use nix::sched::CloneFlags;
use oci_spec::runtime::{LinuxIdMapping, LinuxNamespace, LinuxNamespaceType, Mount, Spec};
use sys::mount::{Reach, map_ids};

use crate::namespaces::create_user_ns;

/// Returns the ids of a container that has a user namespace.
pub(crate) fn of_container(spec: &Spec) -> Option<UserNs> {
    let linux = spec.linux().as_ref()?;
    of_namespaces(linux.namespaces().as_deref(), linux.uid_mappings().as_deref(), linux.gid_mappings().as_deref())
}

/// Returns the ids of a container whose OCI configuration has these fields, if it has a user
/// namespace.
pub(crate) fn of_namespaces(
    namespaces: Option<&[LinuxNamespace]>,
    uids: Option<&[LinuxIdMapping]>,
    gids: Option<&[LinuxIdMapping]>,
) -> Option<UserNs> {
    let has_user_ns = namespaces.iter().copied().flatten().any(|namespace| namespace.typ() == LinuxNamespaceType::User);
    has_user_ns.then(|| ids(uids, gids))
}

fn ids(uids: Option<&[LinuxIdMapping]>, gids: Option<&[LinuxIdMapping]>) -> UserNs {
    let line =
        |line: &LinuxIdMapping| IdMapping { host: line.host_id(), container: line.container_id(), length: line.size() };
    let lines = |lines: Option<&[LinuxIdMapping]>| lines.unwrap_or_default().iter().map(line).collect();
    UserNs { uids: lines(uids), gids: lines(gids) }
}

/// User namespaces with the ids of mounts: the container's own, and those created for other ids.
#[derive(Debug, Default)]
pub(crate) struct IdMaps(Vec<(UserNs, OwnedFd)>);

/// The mounts of a tree that got the requested ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapped {
    All,
    TopAlone,
}

impl IdMaps {
    pub(crate) fn of_container(ids: UserNs, namespace: OwnedFd) -> Self {
        Self(vec![(ids, namespace)])
    }

    /// Maps the ids of a tree of mounts as `mount` requests. If a mount below the top cannot be
    /// mapped, only the top is, as with containerd and CRI-O.
    pub(crate) fn map(&mut self, mount: &Mount, tree: impl AsFd, reach: Reach) -> io::Result<Mapped> {
        let Some(ids) = self.of_mount(mount)? else { return Ok(Mapped::All) };
        if reach == Reach::Tree && map_ids(&tree, ids, Reach::Tree).is_ok() {
            return Ok(Mapped::All);
        }
        map_ids(&tree, ids, Reach::Top)?;
        Ok(if reach == Reach::Tree { Mapped::TopAlone } else { Mapped::All })
    }

    /// Returns the user namespace for `mount`, or `None` if its files keep their ids.
    pub(crate) fn of_mount(&mut self, mount: &Mount) -> io::Result<Option<BorrowedFd<'_>>> {
        let wanted = ids(mount.uid_mappings().as_deref(), mount.gid_mappings().as_deref());
        if wanted.uids.is_empty() && wanted.gids.is_empty() {
            return Ok(None);
        }
        let place = match self.0.iter().position(|(ids, _)| *ids == wanted) {
            Some(place) => place,
            None => {
                let created = create_user_ns::create(&wanted, CloneFlags::empty())?.user;
                self.0.push((wanted, created));
                self.0.len() - 1
            }
        };
        Ok(Some(self.0[place].1.as_fd()))
    }
}
