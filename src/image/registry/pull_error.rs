//! What can go wrong with a pull.

use crate::layer::unpack::UnpackError;
use crate::manifest::ManifestError;
use crate::reference::BadReference;
use crate::registry::endpoint::BadEndpoint;
use crate::registry::fetch_error::{Attempts, error_chain};
use crate::store::durable::DiskError;

/// An image that could not be pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name is not one.
    #[error(transparent)]
    Reference(#[from] BadReference),
    /// The name's registry cannot be turned into a URL.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// No endpoint had it.
    #[error("fetching {image}")]
    Fetch {
        /// The image.
        image: String,
        /// What the endpoints said.
        source: Attempts,
    },
    /// No registry that is searched for names without one had it.
    #[error("no registry that is searched has {name}: {}", causes(tried))]
    Search {
        /// The name as asked for.
        name: String,
        /// What became of each of its meanings, in order.
        tried: Vec<PullError>,
    },
    /// The image is not usable here.
    #[error("image {image}")]
    Manifest {
        /// The image.
        image: String,
        /// Why not.
        source: ManifestError,
    },
    /// A layer could not be unpacked.
    #[error("unpacking {image}")]
    Unpack {
        /// The image.
        image: String,
        /// The layer's trouble.
        source: UnpackError,
    },
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A task of ours died.
    #[error("pulling {0} was cut short")]
    Cut(String),
}

impl PullError {
    /// The class of this error.
    pub fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Reference(source) => source.kind(),
            Self::Endpoint(_) => model::ErrorKind::Invalid,
            Self::Fetch { source, .. } => source.kind(),
            Self::Search { tried, .. } => tried.last().map_or(model::ErrorKind::NotFound, Self::kind),
            Self::Manifest { source, .. } => source.kind(),
            Self::Unpack { source, .. } => source.kind(),
            Self::Disk(source) => source.kind(),
            Self::Cut(_) => model::ErrorKind::Internal,
        }
    }

    /// Whether a registry says that it does not have what was asked for. Some say so by asking for credentials.
    pub(crate) fn is_absence(&self) -> bool {
        use model::ErrorKind::{Denied, NotFound, Unauthenticated};
        matches!(self, Self::Fetch { .. }) && matches!(self.kind(), NotFound | Unauthenticated | Denied)
    }
}

fn causes(tried: &[PullError]) -> String {
    tried.iter().map(|error| error_chain(error)).collect::<Vec<_>>().join("; ")
}
