//! The record of an image in the store.

use model::ImageName;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::reference::Reference;

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

    /// Returns the name of the image for display in the status of a container: the kubelet requests images by id.
    #[must_use]
    pub fn display_name(&self, requested: &ImageName) -> String {
        let digits = requested.image.strip_prefix("sha256:").unwrap_or(&requested.image);
        if !self.id.hex().starts_with(digits) {
            requested.image.clone()
        } else if !requested.user_specified.is_empty() {
            requested.user_specified.clone()
        } else {
            self.repo_tags.first().unwrap_or(&requested.image).clone()
        }
    }

    /// Returns the digest reference of the image in the repository of `name`, otherwise any, otherwise its id.
    #[must_use]
    pub fn digest_reference(&self, name: &str) -> String {
        let repository = name.parse::<Reference>().map(|name| name.repository() + "@").unwrap_or_default();
        let same = self.repo_digests.iter().find(|digest| digest.starts_with(&repository));
        same.or(self.repo_digests.first()).cloned().unwrap_or_else(|| self.id.to_string())
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
    fn an_image_requested_by_id_is_displayed_by_name() {
        let id = format!("sha256:{}", "ab".repeat(32));
        let mut image: Image = serde_json::from_value(serde_json::json!({
            "id": id, "repo_tags": ["a.example/b:1"], "repo_digests": [], "manifest": null, "size": 1,
            "user": "", "chain": [],
        }))
        .unwrap();
        let requested = |image: &str, user_specified: &str| ImageName {
            image: image.to_owned(),
            user_specified: user_specified.to_owned(),
            annotations: Default::default(),
            handler: String::new(),
        };
        assert_eq!(image.display_name(&requested("a.example/b:1", "c")), "a.example/b:1");
        assert_eq!(image.display_name(&requested(&id, "b")), "b");
        assert_eq!(image.display_name(&requested("abab", "")), "a.example/b:1");
        image.repo_tags.clear();
        assert_eq!(image.display_name(&requested(&id, "")), id);
        assert_eq!(image.digest_reference(&id), id);
        image.repo_digests =
            vec![format!("a.example/bc@{id}"), format!("b.example/c@{id}"), format!("c.example/d@{id}")];
        for (name, digest) in [("b.example/c:1", 1), ("a.example/b", 0), ("e.example/f:1", 0), (id.as_str(), 0)] {
            assert_eq!(image.digest_reference(name), image.repo_digests[digest], "{name}");
        }
    }

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
