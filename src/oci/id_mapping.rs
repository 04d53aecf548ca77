//! Sets the id mappings of a container and of its mounts.

use model::{IdMapping, NsMode, RequestField, UserNs, UserRef};
use oci_spec::OciSpecError;
use oci_spec::runtime::{LinuxIdMapping, LinuxIdMappingBuilder, Mount};

use super::{OciError, SpecInputs};

/// Returns the id mappings of the pod, or `None` without a user namespace. Checks that the container
/// has the same mappings and that they contain its user and groups.
pub(super) fn of<'a>(given: &SpecInputs<'a>) -> Result<Option<&'a UserNs>, OciError> {
    let asked = &given.container.security.namespaces;
    let ids = given.pod.spec.security.namespaces.user.as_ref();
    if asked.user.as_ref() != ids {
        return Err(OciError::NotThePodsIds);
    }
    let Some(ids) = ids else { return Ok(None) };
    if asked.pid == NsMode::Node {
        return Err(OciError::HostPids);
    }
    let security = &given.container.security;
    let user = match &security.run_as {
        Some(UserRef::Id(_)) => Some(RequestField::RunAsUser),
        Some(UserRef::Name(_)) => Some(RequestField::RunAsUsername),
        None => None,
    };
    let group = if security.run_as_group.is_some() { Some(RequestField::RunAsGroup) } else { user.clone() };
    let others = |gid: &u32| {
        if security.supplemental_groups.contains(gid) {
            Some(RequestField::SupplementalGroups)
        } else if given.devices.edits.groups.contains(gid) {
            Some(RequestField::CdiDevices)
        } else {
            user.clone()
        }
    };
    check_mapped(given.process.user.uid, ids.uid(given.process.user.uid), || user.clone())?;
    check_mapped(given.process.user.gid, ids.gid(given.process.user.gid), || group)?;
    given.process.groups.iter().try_for_each(|gid| check_mapped(*gid, ids.gid(*gid), || others(gid)))?;
    Ok(Some(ids))
}

/// Refuses an id without an id on the host. `field` returns its field in the request; `None` for the image's user.
fn check_mapped(id: u32, host: Option<u32>, field: impl FnOnce() -> Option<RequestField>) -> Result<(), OciError> {
    match host {
        Some(_) => Ok(()),
        None => Err(match field() {
            Some(field) => OciError::NoSuchId { field, id },
            None => OciError::NoSuchImageId(id),
        }),
    }
}

pub(super) fn lines(lines: &[IdMapping]) -> Result<Vec<LinuxIdMapping>, OciSpecError> {
    let line = |IdMapping { host, container, length }: &IdMapping| {
        LinuxIdMappingBuilder::default().host_id(*host).container_id(*container).size(*length).build()
    };
    lines.iter().map(line).collect()
}

/// Returns the mount as an idmapped mount with `ids`.
pub(super) fn shown(mut mount: Mount, ids: Option<&UserNs>) -> Result<Mount, OciSpecError> {
    if let Some(UserNs { uids, gids }) = ids {
        mount.set_uid_mappings(Some(lines(uids)?)).set_gid_mappings(Some(lines(gids)?));
    }
    Ok(mount)
}
