//! Tests of the registry client against a test registry, with its certificates ([`ca`]).

pub(crate) mod ca;
pub(crate) mod real_registry;
pub(crate) mod support;
