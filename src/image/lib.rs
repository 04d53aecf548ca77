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

mod accounts;
mod add;
mod adopt;
mod answer;
mod archive;
mod auth;
#[cfg(test)]
mod authority;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(feature = "fuzzing"), expect(unreachable_pub, reason = "public for the fuzzer alone"))]
mod canary;
mod config;
mod copy;
#[cfg(test)]
mod crash_tests;
mod decompress;
mod digest;
mod disk;
mod download;
mod endpoint;
mod entry;
mod export;
mod fetch;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod full_tests;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(test)]
mod ground;
mod header;
mod http;
mod image;
mod import;
mod layer;
mod link;
mod load;
mod logins;
mod looks;
mod lost;
mod manifest;
mod pack;
mod package;
mod pax;
mod pipe;
mod plan;
mod progress;
mod prune;
mod pull;
mod pull_error;
#[cfg(test)]
mod race_tests;
mod reference;
mod registry;
mod replay;
mod retry;
mod root;
mod shelf;
mod site;
mod sparse;
mod spool;
mod stack;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod stock;
mod store;
mod stream;
mod tape;
mod tls;
mod traffic;
mod turns;
mod unpack;
mod untar;
mod usage;
mod user;
mod view;
mod volume;
mod whiteout;

pub use accounts::{Accounts, Group, Passwd};
pub use archive::TarError;
pub use config::Config;
pub use digest::{BadDigest, Digest};
pub use disk::DiskError;
pub use endpoint::{BadEndpoint, Credentials, Endpoint, Registries, Registry};
pub use export::{Compress, ExportError};
pub use fetch::{FetchError, Tried};
pub use image::Image;
pub use import::ImportError;
pub use logins::{BadLogins, Logins};
pub use manifest::ManifestError;
pub use progress::{Progress, Watch, unwatched};
pub use prune::{PruneError, Pruned};
pub use pull_error::PullError;
pub use reference::{BadReference, Pick, Reference};
pub use shelf::{HoldError, OpenError};
pub use store::{AccountsCause, AccountsError, Store};
pub use tape::{TapeError, replay};
pub use tls::{BadTls, Tls};
pub use traffic::{Pulling, Traffic};
pub use unpack::{Limits, UnpackError};
pub use untar::UntarError;
pub use usage::Usage;
pub use user::{User, UserAsk, UserError, resolve_user};
pub use view::ViewError;

#[cfg(test)]
mod real_tests;
pub use volume::{Found, Volume, VolumeError};
