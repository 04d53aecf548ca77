//! Images: pulled from registries or imported from files, and unpacked into layers for overlayfs.
//!
//! A [`Store`] owns one directory. An [`Image`] is identified by the digest of its config and has
//! names (tags and digest references) and a chain of layers. A layer is a directory named by a
//! short number and identified by its chain id, so images share layers. A container that runs from
//! an image *holds* its layers: they stay when the image is removed, until the last hold is
//! released.
//!
//! [`Store::pull`]: name → endpoints (mirrors first) → manifest for this machine → config → all
//! missing layers at once, each streaming from the network through the digest of the blob,
//! decompression and the digest of the tar stream into its own directory → one sync of the
//! filesystem → renamed to its final place → image record written. Transient errors are retried
//! with growing pauses, then the next endpoint is tried; an interrupted blob is resumed. Beside its
//! files, a layer keeps the rest of its tar stream (tar-split), so that an export reproduces it
//! exactly. [`Store::import`] does the same from an OCI layout or docker archive, and
//! [`Store::export`] writes an OCI layout from which another store gets the same image.
//! [`Store::prune`] removes unused images and layers. A crash leaves the old state or the new one;
//! leftovers are removed when the store is opened.
//!
//! All input from outside is treated as hostile: names follow a strict grammar, documents have a
//! size limit, layers cannot write outside of their directory or make memory grow, and credentials
//! are sent only to the host they are for. The registry protocol is implemented here on top of an
//! HTTP client, because the common crate reads manifests and tokens without a limit and leaves
//! redirects to the client.
//!
//! Limits: sha256 and sha512 digests, at most 256 layers, no encrypted layers, no Docker schema 1.
#![forbid(unsafe_code)]

mod archive;
mod bounded;
mod config;
mod digest;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod layer;
mod layer_plan;
mod limits;
mod manifest;
mod platform;
mod record;
mod reference;
mod registry;
mod rootfs;
mod store;
pub(crate) mod tar;
#[cfg(test)]
mod test_support;

pub use archive::export::{Compress, ExportError};
pub use archive::import::ImportError;
pub use archive::progress::{Progress, ProgressFn, ignore_progress};
pub use config::Config;
pub use digest::{BadDigest, Digest};
pub use layer::free_space::{NoRoom, Reserve};
pub use layer::unpack::UnpackError;
pub use layer::untar::UntarError;
pub use limits::Limits;
pub use manifest::ManifestError;
pub use record::Image;
pub use reference::{BadReference, HUB, Reference, TagOrDigest};
pub use registry::docker_config::{InvalidCredentialsFile, RegistryCredentials};
pub use registry::endpoint::{BadEndpoint, Credentials, Endpoint, Registries, Registry, RegistryLogin};
pub use registry::fetch_error::{Attempts, FetchError};
pub use registry::progress::{ActivePull, PullTotals};
pub use registry::pull::PullRequest;
pub use registry::pull_error::PullError;
pub use registry::tls::{BadTls, Tls};
pub use rootfs::passwd::{Accounts, Group, Passwd};
pub use rootfs::read_files::RootfsError;
pub use rootfs::user::{User, UserError, UserRequest, resolve_user};
pub use rootfs::volume::{FileKind, Volume, VolumeError};
pub use store::catalog::OpenError;
pub use store::disk_usage::Usage;
pub use store::layer_refs::HoldError;
pub use store::prune::{PruneError, Pruned, RemoveError, Removed};
pub use store::{AccountsCause, AccountsError, AmbiguousImageId, ConfigCause, ConfigError, Store};
pub use tar::reader::TarError;
pub use tar::tar_split::{TarSplitError, assemble};
