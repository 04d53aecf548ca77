//! One thing that was looked at, and what follows from it.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// Pods run, but something is slower, weaker or less than it could be.
    Warn,
    /// Something is not there.
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) topic: &'static str,
    pub(super) name: String,
    pub(super) level: Level,
    /// What was found, and what follows.
    pub(super) what: String,
    /// What to do about it.
    pub(super) hint: Option<String>,
    /// Whether no pod can run without it.
    pub(super) essential: bool,
}

impl Finding {
    pub(super) fn ok(topic: &'static str, name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { topic, name: name.into(), level: Level::Ok, what: what.into(), hint: None, essential: false }
    }

    pub(super) fn warn(
        topic: &'static str,
        name: impl Into<String>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warn, hint: Some(hint.into()), ..Self::ok(topic, name, what) }
    }

    /// Pods run without it.
    pub(super) fn missing(
        topic: &'static str,
        name: impl Into<String>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { level: Level::Missing, hint: Some(hint.into()), ..Self::ok(topic, name, what) }
    }

    /// No pod runs without it.
    pub(super) fn essential(self) -> Self {
        Self { essential: true, ..self }
    }
}

/// Whether pods can run.
pub(super) fn can_run(findings: &[Finding]) -> bool {
    !findings.iter().any(|finding| finding.essential && finding.level == Level::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_essential_and_missing_keeps_pods_from_running() {
        let warn = Finding::warn("a", "b", "c", "d");
        let missing = Finding::missing("a", "b", "c", "d");
        assert!(can_run(&[Finding::ok("a", "b", "c"), warn.clone().essential(), missing.clone()]));
        assert!(!can_run(&[warn, missing.essential()]));
    }
}
