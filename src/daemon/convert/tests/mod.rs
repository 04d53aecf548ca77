//! Tests of the conversions, one file per module. [`support`] has messages and records with every field set.

pub(crate) mod support;
