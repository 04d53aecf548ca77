//! Hostile bytes for everything that reads documents and frames of others: layers, manifests, records, CDI specs, streaming
//! clients, netlink and CNI results. By libFuzzer, and from seeds by a plain test.
//!
//! `seeds/NAME/` has inputs that are worth starting from, among them all that ever failed; each is named by what it is.
//! `hack/dev fuzz NAME` lets libFuzzer go on from them. The test in this crate runs them and thousands of their
//! mutants, the same ones every time, through the same functions.
#![forbid(unsafe_code)]

mod env;
mod frames;
pub mod mutate;

pub use env::TestEnv;
pub use frames::{spdy, websocket};

/// Reads `data` as whatever a registry may send; only a panic is a failure.
pub fn manifest(data: &[u8]) {
    image::fuzzing::documents(data);
}

/// Reads `data` as the kernel's answer over netlink; only a panic is a failure.
pub fn netlink(data: &[u8]) {
    net::fuzzing::netlink(data);
}

/// Reads `data` as what a CNI plugin writes. What is taken has to be the same when it is read again.
pub fn cni_result(data: &[u8]) {
    net::fuzzing::cni_result(data);
}

/// Reads `data` as each file that a daemon finds in its state directory; only a panic is a failure.
pub fn records(data: &[u8]) {
    daemon::fuzzing::records(data);
}

/// Reads `data` as a vendor's CDI spec; only a panic is a failure.
pub fn cdi(data: &[u8]) {
    oci::cdi::fuzzing::spec(data);
}

#[cfg(test)]
#[path = "seeds_tests.rs"]
mod tests;
