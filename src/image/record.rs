//! What the store knows about an image.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::digest::Digest;

/// An image whose layers are all unpacked here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The digest of its config: the image's identity.
    pub id: Digest,
    /// Names that point to it now, in full, such as `docker.io/library/busybox:latest`.
    pub repo_tags: Vec<String>,
    /// Names it was pulled under that can never point elsewhere, `repository@digest`.
    pub repo_digests: Vec<String>,
    /// The manifest it was made from; an imported docker archive has none.
    pub manifest: Option<Digest>,
    /// Disk space of its layers, shared ones included.
    pub size: u64,
    /// What it wants its containers to run.
    pub config: Config,
    /// Chain ids of its layers, lowest first.
    pub chain: Vec<Digest>,
}

impl Image {
    /// Adds the names of `other`, each once.
    pub(crate) fn add_names(&mut self, tags: &[String], digests: &[String]) {
        for (have, new) in [(&mut self.repo_tags, tags), (&mut self.repo_digests, digests)] {
            have.extend_from_slice(new);
            have.sort();
            have.dedup();
        }
    }

    /// Whether both names lists already hold these.
    pub(crate) fn has_names(&self, tags: &[String], digests: &[String]) -> bool {
        tags.iter().all(|tag| self.repo_tags.contains(tag))
            && digests.iter().all(|digest| self.repo_digests.contains(digest))
    }
}
