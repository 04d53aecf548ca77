//! Hostile bytes for what reads layers, documents and the frames of streaming clients: by libFuzzer, and from seeds by a plain test.
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

#[cfg(test)]
#[path = "seeds_tests.rs"]
mod tests;
