//! Tests with shell scripts as plugins, and with the reference plugins where they are installed.

mod add;
mod del;
mod failures;
mod node;
mod real_plugins;
pub(crate) mod support;
