//! How images come from registries: endpoints, credentials, requests, and the pull itself.

pub(crate) mod answer;
pub(crate) mod auth;
#[cfg(test)]
pub(crate) mod authority;
pub(crate) mod download;
pub(crate) mod endpoint;
pub(crate) mod fetch;
#[cfg(test)]
pub(crate) mod ground;
pub(crate) mod http;
pub(crate) mod logins;
pub(crate) mod pipe;
pub(crate) mod pull;
pub(crate) mod pull_error;
#[cfg(test)]
pub(crate) mod real_tests;
pub(crate) mod remote;
pub(crate) mod retry;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod traffic;
