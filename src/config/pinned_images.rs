//! Images that the kubelet must not garbage-collect.

use image::{Image, Reference};

use super::resolve::{InvalidSetting, invalid};

/// Patterns for image names: full names and prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PinnedImages(Vec<Pattern>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Name(String),
    Beginning(String),
}

impl PinnedImages {
    pub fn parse(names: &[String]) -> Result<Self, InvalidSetting> {
        let pattern = |(index, name): (usize, &String)| {
            let key = format!("image.pinned[{index}]");
            match name.strip_suffix('*') {
                Some(beginning) => from_beginning(&key, beginning),
                None => match name.parse::<Reference>() {
                    Ok(reference) => Ok(Pattern::Name(reference.to_string())),
                    Err(bad) => Err(invalid(&key, bad)),
                },
            }
        };
        names.iter().enumerate().map(pattern).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether pruning keeps an unused `image`: a pinned one, or a tagged one unless `all`.
    pub fn spares(&self, image: &Image, all: bool) -> bool {
        self.keeps(image) || (!all && !image.repo_tags.is_empty())
    }

    /// Returns whether `image` is pinned: any of its names matches a pattern.
    pub fn keeps(&self, image: &Image) -> bool {
        image.repo_tags.iter().chain(&image.repo_digests).any(|name| {
            self.0.iter().any(|pattern| match pattern {
                Pattern::Name(pinned) => pinned == name,
                Pattern::Beginning(beginning) => name.starts_with(beginning),
            })
        })
    }
}

/// Parses the prefix of a full name, since images are compared by their full names.
fn from_beginning(key: &str, beginning: &str) -> Result<Pattern, InvalidSetting> {
    // A prefix alone may not parse as a name, so one more character stands for the rest.
    let example: Reference = format!("{beginning}x").parse().map_err(|bad| invalid(key, bad))?;
    if !example.to_string().starts_with(beginning) {
        return Err(invalid(key, format_args!("must begin with a registry, got \"{beginning}*\"")));
    }
    Ok(Pattern::Beginning(beginning.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(names: &[&str]) -> Image {
        let id = format!("sha256:{}", "ab".repeat(32));
        Image {
            id: id.parse().unwrap(),
            repo_tags: names.iter().map(|name| (*name).to_owned()).collect(),
            repo_digests: vec![format!("a.example/b@{id}")],
            manifest: None,
            size: 1,
            user: String::new(),
            chain: Vec::new(),
        }
    }

    fn pins(pattern: &str, names: &[&str]) -> bool {
        PinnedImages::parse(&[pattern.to_owned()]).unwrap().keeps(&image(names))
    }

    #[test]
    fn a_name_matches_itself_in_any_spelling() {
        assert!(pins("pause", &["x.example/y:1", "docker.io/library/pause:latest"]));
        assert!(!pins("pause", &["docker.io/library/pause:1"]));
        assert!(pins(&format!("a.example/b@sha256:{}", "ab".repeat(32)), &[]));
    }

    #[test]
    fn pruning_keeps_pinned_images_and_without_all_tagged_ones() {
        let pinned = PinnedImages::parse(&["a.example/b:1".to_owned()]).unwrap();
        let spared = |image: &Image| (pinned.spares(image, false), pinned.spares(image, true));
        assert_eq!(spared(&image(&["a.example/b:1"])), (true, true));
        assert_eq!(spared(&image(&["a.example/c:1"])), (true, false));
        assert_eq!(spared(&image(&[])), (false, false));
    }

    #[test]
    fn a_star_at_the_end_matches_any_rest() {
        assert!(pins("a.example/pause:*", &["a.example/pause:3.9"]));
        assert!(!pins("a.example/pause:*", &["a.example/pause-not:3.9"]));
        assert!(pins("a.example/team/*", &["a.example/team/x/y:1"]));
        assert!(!pins("a.example/team/*", &["a.example/teams/x:1"]));
        assert!(pins("a.example:5000/p*", &["a.example:5000/pause:1"]));
        assert!(pins("*", &["a.example/b:1"]));
    }

    #[test]
    fn a_star_elsewhere_or_after_a_partial_registry_is_refused() {
        for bad in ["*/pause:1", "a.example/*/pause", "pause:*", "a.example*", "a.example/A*", "a.example/b@*"] {
            let refused = PinnedImages::parse(&["a".to_owned(), bad.to_owned()]).unwrap_err();
            assert_eq!(refused.key, "image.pinned[1]", "{bad}");
        }
    }
}
