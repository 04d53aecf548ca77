//! Plugins: finds and executes them, negotiates the CNI version, parses results and errors.

pub(crate) mod args;
pub(crate) mod chain;
pub(crate) mod error;
pub(crate) mod exec;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod result;
#[cfg(test)]
mod result_tests;
pub(crate) mod version;
