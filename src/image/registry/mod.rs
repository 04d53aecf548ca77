//! Pulls images from registries: endpoints, credentials, requests, and the pull itself.

pub(crate) mod address;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod docker_config;
pub(crate) mod endpoint;
pub(crate) mod fetch_error;
pub(crate) mod http;
pub(crate) mod progress;
pub(crate) mod pull;
pub(crate) mod pull_cause;
pub(crate) mod pull_error;
pub(crate) mod repository;
pub(crate) mod retry;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod tls;
pub(crate) mod transfer;
