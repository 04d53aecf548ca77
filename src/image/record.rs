//! The record of an image in the store.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// An image whose layers are all unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The digest of its config: the image's identity.
    pub id: Digest,
    /// Tags that currently refer to it, in full, such as `docker.io/library/busybox:latest`.
    pub repo_tags: Vec<String>,
    /// Digest references it was pulled under, `repository@digest`.
    pub repo_digests: Vec<String>,
    /// The digest of its manifest; an imported docker archive has none.
    pub manifest: Option<Digest>,
    /// Disk space of its layers, shared ones included.
    pub size: u64,
    /// `user[:group]` of its config. The other fields of the config are on disk only: see
    /// [`Store::config`](crate::Store::config).
    pub user: String,
    /// Chain ids of its layers, lowest first.
    pub chain: Vec<Digest>,
}

impl Image {
    /// Returns the image's user if it is a number.
    pub fn uid(&self) -> Option<u32> {
        crate::rootfs::passwd::id(self.user_part())
    }

    /// Returns the image's user if it is a name, otherwise an empty string.
    pub fn username(&self) -> &str {
        if self.uid().is_some() { "" } else { self.user_part() }
    }

    fn user_part(&self) -> &str {
        self.user.split(':').next().unwrap_or_default()
    }

    /// Adds the names of `other`, each once.
    pub(crate) fn add_names(&mut self, tags: &[String], digests: &[String]) {
        for (have, new) in [(&mut self.repo_tags, tags), (&mut self.repo_digests, digests)] {
            have.extend_from_slice(new);
            have.sort();
            have.dedup();
        }
    }

    /// Returns whether the record already has all these names.
    pub(crate) fn has_names(&self, tags: &[String], digests: &[String]) -> bool {
        tags.iter().all(|tag| self.repo_tags.contains(tag))
            && digests.iter().all(|digest| self.repo_digests.contains(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_a_number_or_a_name() {
        let of = |user: &str| {
            let image: Image = serde_json::from_value(serde_json::json!({
                "id": Digest::of(b""), "repo_tags": [], "repo_digests": [], "manifest": null, "size": 1, "user": user,
                "chain": [],
            }))
            .unwrap();
            (image.uid(), image.username().to_owned())
        };
        assert_eq!(of(""), (None, String::new()));
        assert_eq!(of("1000:5"), (Some(1000), String::new()));
        assert_eq!(of("web:5"), (None, "web".into()));
        assert_eq!(of("4294967296"), (None, "4294967296".into()));
    }
}
