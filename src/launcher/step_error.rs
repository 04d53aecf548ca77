//! The error of a named step.

use std::io;

/// A step that the kernel or the file system refused. Errors of the shim and the launcher repeat
/// their source in the text, unlike others: they cross a socket or a pipe as text. Only the shim
/// walks their chain, for the errno.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct StepError {
    step: &'static str,
    source: io::Error,
}

/// Returns a function that adds the name of the step to its error.
pub fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> StepError {
    move |source| StepError { step, source: source.into() }
}
