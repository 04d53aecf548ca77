//! The name of a plugin: index and base name.

use std::fmt;
use std::str::FromStr;

/// Bytes of a base name, so that it fits a file name.
const NAME_MAX: usize = 200;

/// Index and base name, as in `10-balloons`. Plugins are called in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    index: String,
    name: String,
}

/// A name that a plugin cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIdentity {
    #[error("plugin index {0:?}: expected two digits")]
    Index(String),
    #[error("plugin name {0:?}: expected 1 to {NAME_MAX} letters, digits and the characters . _ + -")]
    Name(String),
    #[error("file name {0:?}: expected INDEX-NAME, such as 10-example")]
    FileName(String),
}

impl Identity {
    /// Checks index and base name.
    pub fn new(index: &str, name: &str) -> Result<Self, InvalidIdentity> {
        if index.len() != 2 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidIdentity::Index(shortened(index)));
        }
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_allowed) {
            return Err(InvalidIdentity::Name(shortened(name)));
        }
        Ok(Self { index: index.to_owned(), name: name.to_owned() })
    }

    #[must_use]
    pub fn index(&self) -> &str {
        &self.index
    }

    /// The base name, which settings and annotations use.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for Identity {
    type Err = InvalidIdentity;

    /// Reads the file name of a pre-installed plugin.
    fn from_str(text: &str) -> Result<Self, InvalidIdentity> {
        let (index, name) = text.split_once('-').ok_or_else(|| InvalidIdentity::FileName(shortened(text)))?;
        Self::new(index, name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.name)
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(NAME_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_two_digits() {
        for index in ["", "1", "0a", "123", "١٢", "-1"] {
            assert_eq!(Identity::new(index, "a"), Err(InvalidIdentity::Index(index.to_owned())));
        }
        assert_eq!(Identity::new("00", "a").unwrap().to_string(), "00-a");
    }

    #[test]
    fn a_name_has_no_path_separator_or_control_character() {
        for name in ["", "../x", "a/b", "a b", "a\n", "ä", &"x".repeat(201)] {
            assert!(matches!(Identity::new("10", name), Err(InvalidIdentity::Name(_))), "{name}");
        }
        assert_eq!(Identity::new("10", "Az09._+-").unwrap().name(), "Az09._+-");
    }

    #[test]
    fn a_file_name_has_index_and_name() {
        let plugin: Identity = "10-with-dashes".parse().unwrap();
        assert_eq!((plugin.index(), plugin.name()), ("10", "with-dashes"));
        assert!(matches!("README".parse::<Identity>(), Err(InvalidIdentity::FileName(_))));
        assert!(matches!("a-b".parse::<Identity>(), Err(InvalidIdentity::Index(_))));
    }

    #[test]
    fn plugins_are_ordered_by_index_then_name() {
        let mut plugins: Vec<Identity> = ["90-a", "10-z", "10-a"].iter().map(|text| text.parse().unwrap()).collect();
        plugins.sort();
        let sorted: Vec<String> = plugins.iter().map(ToString::to_string).collect();
        assert_eq!(sorted, ["10-a", "10-z", "90-a"]);
    }
}
