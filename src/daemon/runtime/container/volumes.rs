//! Images that a container mounts, and the volumes that its own image declares.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use image::{FileKind, Image, Volume};
use model::{ErrorClass, ErrorKind, Mount, MountSource, RequestField};

use crate::runtime::Runtime;

/// The maximum number of volumes of an image: each costs a descriptor and a mount.
const VOLUMES_MAX: usize = 128;
/// The kernel's or the pod's mounts: an image declares no volume on or below them.
const RESERVED: [&str; 7] =
    ["/proc", "/sys", "/dev", "/etc/resolv.conf", "/etc/hostname", "/etc/hosts", oci::RESIZE_NOTICE];

/// An image that cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    #[error("image {1:?} of an image volume not found: pull it first")]
    NoSuchImage(usize, String),
    #[error("image {1} of an image volume has no layers, so it cannot be mounted")]
    NoLayers(usize, String),
    #[error("opening image_sub_path in the image of an image volume")]
    Look(usize, #[source] image::VolumeError),
    #[error("path {1:?} does not exist in image {2}, so it cannot be mounted")]
    NoSuchPath(usize, String, String),
    #[error("path {1:?} in image {2} cannot be mounted: it is neither a directory nor a file")]
    Special(usize, String, String),
}

impl ErrorClass for MountError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchImage(..) => ErrorKind::NotFound,
            Self::NoLayers(..) | Self::NoSuchPath(..) | Self::Special(..) => ErrorKind::Invalid,
            Self::Look(_, e) => e.kind(),
        }
    }

    fn field(&self) -> Option<RequestField> {
        Some(match self {
            Self::NoSuchImage(index, _) | Self::NoLayers(index, _) => RequestField::MountImage(*index),
            Self::Look(index, _) | Self::NoSuchPath(index, ..) | Self::Special(index, ..) => {
                RequestField::MountImageSubPath(*index)
            }
        })
    }
}

/// A volume of an image that cannot be created.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ImageVolumeError {
    #[error("the container's image declares {0} paths as VOLUME: at most {VOLUMES_MAX} are allowed")]
    TooMany(usize),
    #[error("the container's image declares {0:?} as a VOLUME: expected a path below the root without `..`")]
    Path(String),
}

impl ErrorClass for ImageVolumeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::TooMany(_) | Self::Path(_) => ErrorKind::Invalid,
        }
    }
}

impl Runtime {
    /// Returns the images that `mounts` name, by these names.
    pub(crate) fn mounted(&self, mounts: &[Mount]) -> Result<BTreeMap<String, Arc<Image>>, MountError> {
        let mut mounted = BTreeMap::new();
        for (index, mount) in mounts.iter().enumerate() {
            let MountSource::Image { image: asked, sub_path } = &mount.source else { continue };
            let name = &asked.image;
            let image = self.images.find(name).ok_or_else(|| MountError::NoSuchImage(index, name.clone()))?;
            if image.chain.is_empty() {
                return Err(MountError::NoLayers(index, name.clone()));
            }
            if !sub_path.is_empty() {
                let found = self.images.inspect(&image, Path::new(sub_path));
                match found.map_err(|e| MountError::Look(index, e))? {
                    Some(FileKind::Directory | FileKind::File) => {}
                    Some(FileKind::Special) => {
                        return Err(MountError::Special(index, sub_path.clone(), name.clone()));
                    }
                    None => return Err(MountError::NoSuchPath(index, sub_path.clone(), name.clone())),
                }
            }
            mounted.insert(name.clone(), image);
        }
        Ok(mounted)
    }
}

/// Returns the source of a mount: a path on the host, or the id of an image and a path in it.
pub(crate) fn source(mount: &Mount, mounted: &BTreeMap<String, Arc<Image>>) -> PathBuf {
    match &mount.source {
        MountSource::Host(path) => path.clone(),
        MountSource::Image { image, sub_path } => {
            let id = mounted.get(&image.image).map(|image| image.id.to_string()).unwrap_or_default();
            // Without the slash that joining an empty path adds.
            [id.as_str(), sub_path.as_str()].iter().filter(|part| !part.is_empty()).collect()
        }
    }
}

/// Returns the volumes of an image that a container gets, each with a directory below `above`.
///
/// A mount of the container at the same path or above it takes precedence, so nothing is created in
/// a directory of the client. So do the [`RESERVED`] paths.
pub(crate) fn image_volumes(
    declared: &[String],
    mounts: &[Mount],
    above: &Path,
) -> Result<Vec<Volume>, ImageVolumeError> {
    if declared.len() > VOLUMES_MAX {
        return Err(ImageVolumeError::TooMany(declared.len()));
    }
    let paths = declared.iter().map(|path| normal(path)).collect::<Result<BTreeSet<_>, _>>()?;
    let taken = |path: &Path| mounts.iter().any(|mount| path.starts_with(&mount.container_path));
    let reserved = |path: &Path| RESERVED.iter().any(|place| path.starts_with(place));
    let wanted = paths.into_iter().filter(|path| !reserved(path) && !taken(path)).enumerate();
    Ok(wanted.map(|(number, path)| Volume { path, directory: above.join(number.to_string()) }).collect())
}

/// Returns the path from the root; a path without the first slash is read as containerd and CRI-O
/// do.
fn normal(path: &str) -> Result<PathBuf, ImageVolumeError> {
    let mut normal = PathBuf::from("/");
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(ImageVolumeError::Path(path.to_owned())),
        }
    }
    if normal == Path::new("/") { Err(ImageVolumeError::Path(path.to_owned())) } else { Ok(normal) }
}

#[cfg(test)]
mod tests {
    use model::Propagation;

    use super::*;

    fn mount(path: &str) -> Mount {
        Mount {
            container_path: path.into(),
            source: MountSource::Host("/src".into()),
            readonly: false,
            recursive_read_only: false,
            selinux_relabel: false,
            propagation: Propagation::Private,
            uid_mappings: vec![],
            gid_mappings: vec![],
            options: vec![],
        }
    }

    fn paths(volumes: &[&str], mounts: &[&str]) -> Result<Vec<String>, ImageVolumeError> {
        let volumes: Vec<String> = volumes.iter().map(|path| (*path).to_owned()).collect();
        let mounts: Vec<Mount> = mounts.iter().map(|path| mount(path)).collect();
        let found = image_volumes(&volumes, &mounts, Path::new("/v"))?;
        Ok(found.iter().map(|volume| volume.path.display().to_string()).collect())
    }

    #[test]
    fn each_volume_gets_a_directory_of_its_own() {
        let volumes = ["/data", "/var/lib/x/"].map(str::to_owned);
        let found = image_volumes(&volumes, &[], Path::new("/v")).unwrap();
        let volume = |path: &str, directory: &str| Volume { path: path.into(), directory: directory.into() };
        assert_eq!(found, [volume("/data", "/v/0"), volume("/var/lib/x", "/v/1")]);
    }

    #[test]
    fn one_path_is_one_volume_in_every_spelling() {
        assert_eq!(paths(&["/a/b", "a/b", "/a//b/", "/./a/b"], &[]).unwrap(), ["/a/b"]);
    }

    #[test]
    fn mounts_on_a_volume_or_above_it_replace_it() {
        let volumes = ["/data", "/data/deep", "/database", "/srv"];
        assert_eq!(paths(&volumes, &["/data", "/srv/"]).unwrap(), ["/database"]);
        assert_eq!(paths(&["/data"], &["/data/below"]).unwrap(), ["/data"]);
    }

    #[test]
    fn image_volumes_do_not_cover_kernel_file_systems_or_pod_files() {
        let volumes = [
            "/proc",
            "/sys/fs/cgroup",
            "/dev/shm",
            "/etc/hosts",
            "/etc/hosts/x",
            "/process",
            "/etc",
            "/run/crisp-resize/x",
        ];
        assert_eq!(paths(&volumes, &[]).unwrap(), ["/etc", "/process"]);
    }

    #[test]
    fn volumes_outside_of_the_root_are_refused() {
        for bad in ["/", "", ".", "//", "..", "/../../etc", "/a/../b", "a/.."] {
            assert_eq!(paths(&["/fine", bad], &[]), Err(ImageVolumeError::Path(bad.to_owned())), "{bad:?}");
        }
        let many: Vec<String> = (0..1000).map(|number| format!("/v{number}")).collect();
        assert_eq!(image_volumes(&many, &[], Path::new("/v")), Err(ImageVolumeError::TooMany(1000)));
    }
}
