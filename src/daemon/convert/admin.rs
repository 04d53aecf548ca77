//! Converts requests and responses of `crisp.admin.v1.Images`.

use std::path::PathBuf;
use std::sync::Arc;

use ::image::{Compress, Image, Progress, Pruned, Removed};
use cri_api::admin;

use super::{FieldPath, InvalidField};

/// A request to import an archive, with the tag of its only image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) path: PathBuf,
    pub(crate) name: Option<String>,
}

pub(crate) fn import(request: admin::ImportRequest) -> Result<Import, InvalidField> {
    let admin::ImportRequest { path, name } = request;
    let path = PathBuf::from(FieldPath::top("path").absolute(path)?);
    Ok(Import { path, name: Some(name).filter(|name| !name.is_empty()) })
}

/// A request to export images.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) names: Vec<String>,
    pub(crate) compress: Compress,
}

pub(crate) fn export(request: admin::ExportRequest) -> Result<Export, InvalidField> {
    let admin::ExportRequest { names, compression } = request;
    let compress = match admin::Compression::try_from(compression) {
        Ok(admin::Compression::None) => Compress::No,
        Ok(admin::Compression::Gzip) => Compress::Gzip,
        Ok(admin::Compression::Zstd) => Compress::Zstd,
        Err(_) => return Err(FieldPath::top("compression").invalid(format_args!("unknown value {compression}"))),
    };
    Ok(Export { names, compress })
}

pub(crate) fn progress_to_wire(progress: Progress) -> admin::ImportProgress {
    let Progress { bytes, total, layers } = progress;
    admin::ImportProgress { bytes, total, layers, ..admin::ImportProgress::default() }
}

/// Returns the last message of an import.
pub(crate) fn imported_to_wire(progress: Progress, images: &[Arc<Image>]) -> admin::ImportProgress {
    let images = images.iter().map(|image| to_wire(image)).collect();
    admin::ImportProgress { images, done: true, ..progress_to_wire(progress) }
}

pub fn removed_to_wire(removed: Removed) -> admin::RemoveResponse {
    let Removed { id, untagged, image } = removed;
    admin::RemoveResponse { id: id.to_string(), untagged, removed: image }
}

pub fn pruned_to_wire(pruned: &Pruned) -> admin::PruneResponse {
    let Pruned { images, bytes } = pruned;
    admin::PruneResponse { images: images.iter().map(|image| to_wire(image)).collect(), bytes: *bytes }
}

pub fn to_wire(image: &Image) -> admin::Image {
    admin::Image { id: image.id.to_string(), tags: image.repo_tags.clone(), size: image.size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_imported() {
        let ask = |path: &str, name: &str| import(admin::ImportRequest { path: path.into(), name: name.into() });
        assert_eq!(ask("/a/b.tar", "").unwrap(), Import { path: "/a/b.tar".into(), name: None });
        assert_eq!(ask("/a", "x:1").unwrap().name.as_deref(), Some("x:1"));
        for bad in ["", "b.tar", "-"] {
            assert!(ask(bad, "").unwrap_err().to_string().starts_with("path: "));
        }
    }

    #[test]
    fn an_unknown_compression_is_refused() {
        let ask = |compression| export(admin::ExportRequest { names: vec!["x".into()], compression });
        assert_eq!(ask(2).unwrap(), Export { names: vec!["x".into()], compress: Compress::Zstd });
        assert_eq!((ask(0).unwrap().compress, ask(1).unwrap().compress), (Compress::No, Compress::Gzip));
        assert!(ask(3).unwrap_err().to_string().starts_with("compression: "));
    }
}
