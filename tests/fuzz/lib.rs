//! Fuzz targets for all parsers of untrusted input: layers, manifests, records, CDI specs, streaming
//! clients, netlink, CNI results and NRI plugins.
//!
//! `seeds/NAME/` has useful inputs, among them all that ever failed; each is named by its content.
//! `hack/dev fuzz NAME` runs libFuzzer from these seeds. The tests of this crate run the seeds and
//! thousands of mutants, the same ones every time, through the same functions.
#![forbid(unsafe_code)]

mod env;
mod frames;
pub mod mutate;

pub use env::TestEnv;
pub use frames::{spdy, websocket};

/// Parses `data` as each document of a registry; only a panic is a failure.
pub fn manifest(data: &[u8]) {
    image::fuzzing::documents(data);
}

/// Parses `data` as a netlink response of the kernel; only a panic is a failure.
pub fn netlink(data: &[u8]) {
    net::fuzzing::netlink(data);
}

/// Parses `data` as the output of a CNI plugin. An accepted result must be equal when it is written and
/// parsed again.
pub fn cni_result(data: &[u8]) {
    net::fuzzing::cni_result(data);
}

/// Parses `data` as each file of a daemon's state directory; only a panic is a failure.
pub fn records(data: &[u8]) {
    daemon::fuzzing::records(data);
}

/// Decodes `data` as the bytes of an NRI plugin, at once and in small pieces, and checks that both results
/// are equal.
pub fn nri(data: &[u8]) {
    nri::fuzzing::wire(data);
}

/// Merges parts of `data` as the answers of NRI plugins, and checks that each key has one value.
pub fn nri_merge(data: &[u8]) {
    nri::fuzzing::merge(data);
}

/// Parses `data` as a vendor's CDI spec; only a panic is a failure.
pub fn cdi(data: &[u8]) {
    oci::cdi::fuzzing::spec(data);
}

#[cfg(test)]
#[path = "seeds_tests.rs"]
mod tests;
