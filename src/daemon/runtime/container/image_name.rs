//! The names under which CRI reports the image of a container.

use model::ImageName;

/// What people call the image that was asked for: the kubelet asks by id.
pub(super) fn display_image_name(asked: &ImageName, image: &image::Image) -> String {
    let digits = asked.image.strip_prefix("sha256:").unwrap_or(&asked.image);
    if !image.id.hex().starts_with(digits) {
        asked.image.clone()
    } else if !asked.user_specified.is_empty() {
        asked.user_specified.clone()
    } else {
        image.repo_tags.first().unwrap_or(&asked.image).clone()
    }
}

/// The digest under which the image is known in the repository of `name`, else in any; its id where it is in none.
pub(super) fn image_ref(name: &str, image: &image::Image) -> String {
    let repository = name.parse::<image::Reference>().map(|name| name.repository() + "@").unwrap_or_default();
    let same = image.repo_digests.iter().find(|digest| digest.starts_with(&repository));
    same.or(image.repo_digests.first()).cloned().unwrap_or_else(|| image.id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_asked_for_by_id_is_shown_by_its_name() {
        let id = format!("sha256:{}", "ab".repeat(32));
        let mut image: image::Image = serde_json::from_value(serde_json::json!({
            "id": id, "repo_tags": ["a.example/b:1"], "repo_digests": [], "manifest": null, "size": 1,
            "user": "", "chain": [],
        }))
        .unwrap();
        let asked = |image: &str, user_specified: &str| ImageName {
            image: image.to_owned(),
            user_specified: user_specified.to_owned(),
            annotations: Default::default(),
            handler: String::new(),
        };
        assert_eq!(display_image_name(&asked("a.example/b:1", "c"), &image), "a.example/b:1");
        assert_eq!(display_image_name(&asked(&id, "b"), &image), "b");
        assert_eq!(display_image_name(&asked("abab", ""), &image), "a.example/b:1");
        image.repo_tags.clear();
        assert_eq!(display_image_name(&asked(&id, ""), &image), id);
        assert_eq!(image_ref(&id, &image), id);
        image.repo_digests =
            vec![format!("a.example/bc@{id}"), format!("b.example/c@{id}"), format!("c.example/d@{id}")];
        for (name, digest) in [("b.example/c:1", 1), ("a.example/b", 0), ("e.example/f:1", 0), (id.as_str(), 0)] {
            assert_eq!(image_ref(name, &image), image.repo_digests[digest], "{name}");
        }
    }
}
