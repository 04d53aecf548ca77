//! Whether a container is what was announced when its pod was made (KEP-4112).

use std::fmt;

use model::kubernetes::{Announced, Difference, Source};
use model::{Classed, ContainerSpec, Kind};

use crate::config::MismatchPolicy;

/// A container that is not what was announced.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the container is not as announced with its pod: {0}")]
pub(crate) struct NotAsAnnounced(Differences);

impl Classed for NotAsAnnounced {
    fn kind(&self) -> Kind {
        Kind::Precondition
    }
}

/// Never empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Differences(Vec<Difference>);

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More are only counted: the text has to fit into the header of an answer.
        const TOLD: usize = 16;
        for (index, difference) in self.0.iter().take(TOLD).enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}config.{difference}")?;
        }
        match self.0.len().checked_sub(TOLD) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "; and {more} more"),
        }
    }
}

/// Gives the container what its pod's annotation says of it, where it says nothing itself, and compares it with what was
/// announced. What may be told of is handed back.
pub(super) fn settle(
    policy: MismatchPolicy,
    announced: Option<&Announced>,
    spec: &mut ContainerSpec,
) -> Result<Option<Differences>, NotAsAnnounced> {
    let Some(announced) = announced else { return Ok(None) };
    let differences = match announced.of(spec) {
        Some(container) => {
            if announced.source == Source::Annotation && spec.kubernetes_resources.is_none() {
                spec.kubernetes_resources.clone_from(&container.resources);
            }
            container.differences(spec)
        }
        None => vec![Difference::unannounced(spec)],
    };
    match policy {
        _ if differences.is_empty() => Ok(None),
        MismatchPolicy::Warn => Ok(Some(Differences(differences))),
        MismatchPolicy::Refuse => Err(NotAsAnnounced(Differences(differences))),
    }
}

#[cfg(test)]
#[path = "announced_tests.rs"]
mod tests;
