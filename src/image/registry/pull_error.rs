//! The errors of a pull, with the failed endpoints.

use model::ErrorClass;
use model::error_chain::chain;
use safe_fs::FileError;

use crate::layer::unpack::UnpackError;
use crate::manifest::ManifestError;
use crate::registry::endpoint::BadEndpoint;
use crate::registry::fetch_error::Attempts;

/// A pull that failed.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name's registry is not a valid URL host.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// All endpoints failed.
    #[error("pulling image {image}")]
    Fetch {
        /// The image.
        image: String,
        /// The errors of the endpoints.
        source: Attempts,
    },
    /// None of the registries to search has the image.
    #[error("image not found in the searched registries: {}", causes(tried))]
    Search {
        /// The error for each candidate, in order.
        tried: Vec<PullError>,
    },
    /// The image is not supported.
    #[error("cannot use image {image}")]
    Manifest {
        /// The image.
        image: String,
        /// The reason.
        source: ManifestError,
    },
    /// A layer could not be unpacked.
    #[error("unpacking image {image}")]
    Unpack {
        /// The image.
        image: String,
        /// The error of the layer.
        source: UnpackError,
    },
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] FileError),
    /// A task of the pull panicked or was cancelled.
    #[error("pulling image {0} was interrupted: pull it again")]
    Cut(String),
}

impl ErrorClass for PullError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Endpoint(_) => model::ErrorKind::Invalid,
            Self::Fetch { source, .. } => source.kind(),
            Self::Search { tried, .. } => tried.last().map_or(model::ErrorKind::NotFound, Self::kind),
            Self::Manifest { source, .. } => source.kind(),
            Self::Unpack { source, .. } => source.kind(),
            Self::Disk(source) => source.kind(),
            Self::Cut(_) => model::ErrorKind::Internal,
        }
    }
}

impl PullError {
    /// Returns whether the registry reports that the content does not exist. Some registries
    /// require credentials instead.
    pub(crate) fn is_absence(&self) -> bool {
        use model::ErrorKind::{Denied, NotFound, Unauthenticated};
        matches!(self, Self::Fetch { .. }) && matches!(self.kind(), NotFound | Unauthenticated | Denied)
    }
}

fn causes(tried: &[PullError]) -> String {
    tried.iter().map(|error| chain(error)).collect::<Vec<_>>().join("; ")
}
