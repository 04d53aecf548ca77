//! Credentials for registries from a file in docker's config.json format.

use std::collections::BTreeMap;

use crate::endpoint::Credentials;

/// Credentials by registry, or by registry and the beginning of a path. Never printed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logins(BTreeMap<String, Credentials>);

/// A file that is not what `docker login` writes. Says no word of its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadLogins(String);
