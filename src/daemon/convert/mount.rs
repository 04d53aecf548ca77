//! Converts mounts and devices of CreateContainer, and checks their options.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cri_api::v1;
use model::{Device, Mount, MountSource, Propagation};

use super::security::id_mapping;
use super::{FieldPath, InvalidField, Warnings, image};

pub(super) fn mount(at: FieldPath<'_>, asked: v1::Mount, warnings: &mut Warnings) -> Result<Mount, InvalidField> {
    let v1::Mount {
        container_path,
        host_path,
        readonly,
        selinux_relabel,
        propagation,
        uid_mappings,
        gid_mappings,
        recursive_read_only,
        image,
        image_sub_path,
        mount_options,
    } = asked;
    let (uid_mappings, gid_mappings) = id_mapping::of_mount(at, uid_mappings, gid_mappings)?;
    let propagation = match at.at("propagation").known(propagation)? {
        v1::MountPropagation::PropagationPrivate => Propagation::Private,
        v1::MountPropagation::PropagationHostToContainer => Propagation::HostToContainer,
        v1::MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
    };
    if recursive_read_only && !(readonly && propagation == Propagation::Private) {
        return Err(at.at("recursive_read_only").invalid("needs readonly and private propagation"));
    }
    let of_image = image.as_ref().is_some_and(|image| *image != v1::ImageSpec::default());
    if of_image && !readonly {
        return Err(at.at("readonly").invalid("must be true: images are mounted read-only"));
    }
    if of_image && propagation != Propagation::Private {
        return Err(at.at("propagation").invalid("must be private: mounts do not propagate into or out of images"));
    }
    Ok(Mount {
        container_path: at.at("container_path").absolute(container_path)?,
        source: source(at, host_path, image, image_sub_path, warnings)?,
        readonly,
        recursive_read_only,
        selinux_relabel,
        propagation,
        uid_mappings,
        gid_mappings,
        options: options(at.at("mount_options"), mount_options)?,
    })
}

/// Returns the source: a host path or an image, never both.
fn source(
    at: FieldPath<'_>,
    host_path: String,
    image: Option<v1::ImageSpec>,
    sub_path: String,
    warnings: &mut Warnings,
) -> Result<MountSource, InvalidField> {
    let image = image.filter(|image| *image != v1::ImageSpec::default());
    match image {
        Some(_) if !host_path.is_empty() => Err(at.at("host_path").invalid("set together with image")),
        Some(spec) => {
            let sub = at.at("image_sub_path");
            if sub_path.starts_with('/') || sub_path.split('/').any(|part| part == "..") {
                return Err(sub.invalid(format_args!("{sub_path:?} must not lead out of the image")));
            }
            let image = image::name(at.at("image"), spec, warnings)?;
            Ok(MountSource::Image { image, sub_path: sub.text(sub_path)? })
        }
        // Once a pod mounts an image, kubelets also send the sub path of all other volumes here;
        // their `host_path` contains it already.
        None => Ok(MountSource::Host(PathBuf::from(at.at("host_path").absolute(host_path)?))),
    }
}

/// The supported options: those that Kubernetes uses, which remove rights from a mount or set how
/// access times are updated. Options that duplicate other fields or add rights are refused.
const OPTIONS: [&str; 7] = ["noexec", "nodev", "nosuid", "noatime", "nodiratime", "relatime", "strictatime"];
/// A mount has at most one of these.
const ATIME: [&str; 3] = ["noatime", "relatime", "strictatime"];

fn options(at: FieldPath<'_>, asked: Vec<String>) -> Result<Vec<String>, InvalidField> {
    for (index, option) in asked.iter().enumerate() {
        let at = at.entry(index);
        let word = option.as_str();
        if matches!(word, "ro" | "rw" | "rro") {
            return Err(at.invalid(format_args!("{word:?} must be set by readonly and recursive_read_only")));
        }
        if !OPTIONS.contains(&word) {
            return Err(at.invalid(format_args!("{option:?} is not supported: expected one of {}", OPTIONS.join(", "))));
        }
        let other = asked[..index].iter().find(|other| ATIME.contains(&other.as_str()) && *other != option);
        if let Some(other) = other.filter(|_| ATIME.contains(&word)) {
            return Err(at.invalid(format_args!("{option:?} contradicts {other:?}")));
        }
    }
    Ok(asked)
}

pub(super) fn device(at: FieldPath<'_>, asked: v1::Device) -> Result<Device, InvalidField> {
    let v1::Device { container_path, host_path, permissions } = asked;
    let rights = |c: char| matches!(c, 'r' | 'w' | 'm');
    if permissions.is_empty() || !permissions.chars().all(rights) {
        return Err(at.at("permissions").invalid(format_args!("{permissions:?} must be a combination of r, w and m")));
    }
    Ok(Device {
        container_path: at.at("container_path").absolute(container_path)?,
        host_path: PathBuf::from(at.at("host_path").absolute(host_path)?),
        permissions,
    })
}

pub(super) fn device_to_wire(device: &Device) -> v1::Device {
    let Device { container_path, host_path, permissions } = device.clone();
    v1::Device { container_path, host_path: host_path.display().to_string(), permissions }
}

pub(super) fn cdi_device(at: FieldPath<'_>, v1::CdiDevice { name }: v1::CdiDevice) -> Result<String, InvalidField> {
    let at = at.at("name");
    let name = at.filled(name)?;
    model::cdi_name::check_name(&name).map_err(|problem| at.invalid(problem))?;
    Ok(name)
}

/// `mounted` has the ID of each image by the name in the request.
pub(super) fn mount_to_wire(mount: &Mount, mounted: &BTreeMap<String, String>) -> v1::Mount {
    let Mount {
        container_path,
        source,
        readonly,
        recursive_read_only,
        selinux_relabel,
        propagation,
        uid_mappings,
        gid_mappings,
        options,
    } = mount;
    let (host_path, image, image_sub_path) = match source {
        MountSource::Host(path) => (path.display().to_string(), None, String::new()),
        MountSource::Image { image, sub_path } => {
            let image_ref = mounted.get(&image.image).cloned().unwrap_or_default();
            let image = v1::ImageSpec { image_ref, ..image::name_to_wire(image) };
            (String::new(), Some(image), sub_path.clone())
        }
    };
    let propagation = match propagation {
        Propagation::Private => v1::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
    };
    v1::Mount {
        container_path: container_path.clone(),
        host_path,
        readonly: *readonly,
        selinux_relabel: *selinux_relabel,
        propagation: propagation.into(),
        uid_mappings: uid_mappings.iter().map(id_mapping::to_wire).collect(),
        gid_mappings: gid_mappings.iter().map(id_mapping::to_wire).collect(),
        recursive_read_only: *recursive_read_only,
        image,
        image_sub_path,
        mount_options: options.clone(),
    }
}

#[cfg(test)]
#[path = "tests/mount.rs"]
mod tests;
