//! Images: pulled from registries or imported from files, unpacked into layers for overlayfs.
//!
//! A [`Store`] owns one directory. An [`Image`] in it is known by the digest of its config, has names (tags and digest
//! references) and a chain of layers; a layer is a directory of files named by a short number and known by its chain
//! id, so images share what they have in common. A container that runs from an image *holds* its layers: they stay
//! when the image is removed, and go with the last hold.
//!
//! [`Store::pull`]: name → endpoints (mirrors first) → manifest for this machine → config → all missing layers at
//! once, each streaming from the network through the digest of the blob, decompression and the digest of the tar
//! stream into its own directory → one sync of the filesystem → renamed into place → image record written.
//! What may pass is tried again with growing pauses, then at the next endpoint; a blob goes on where it broke off.
//! Beside its files a layer keeps a tape of the rest of its tar stream, so that it can be written out as it came.
//! [`Store::import`] does the same from an OCI layout or docker archive, and [`Store::export`] writes one from which
//! another store gets the very same image. [`Store::prune`] removes what nobody uses. A crash leaves the old state or the new one;
//! the rest is swept when the store is opened.
//!
//! Everything that comes from outside is hostile: names follow a strict grammar, documents are read up to a bound,
//! layers cannot reach out of their directory nor make memory grow, and credentials go only to the host they are for.
//! The registry protocol is written here on top of an HTTP client, because the usual crate reads manifests and
//! tokens without bound and leaves redirects to the client.
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
pub use reference::{BadReference, Reference, TagOrDigest};
pub use registry::docker_config::{InvalidCredentialsFile, RegistryCredentials};
pub use registry::endpoint::{BadEndpoint, Credentials, Endpoint, Registries, Registry, RegistryLogin};
pub use registry::fetch_error::{Attempts, FetchError};
pub use registry::progress::{ActivePull, PullTotals};
pub use registry::pull_error::PullError;
pub use registry::tls::{BadTls, Tls};
pub use rootfs::passwd::{Accounts, Group, Passwd};
pub use rootfs::read_files::RootfsError;
pub use rootfs::user::{User, UserError, UserRequest, resolve_user};
pub use rootfs::volume::{FileKind, Volume, VolumeError};
pub use store::catalog::OpenError;
pub use store::disk_usage::Usage;
pub use store::durable::DiskError;
pub use store::layer_refs::HoldError;
pub use store::prune::{PruneError, Pruned};
pub use store::{AccountsCause, AccountsError, AmbiguousImageId, ConfigCause, ConfigError, Store};
pub use tar::reader::TarError;
pub use tar::tar_split::{TarSplitError, assemble};
