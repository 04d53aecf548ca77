//! A finding of `crisp check`: a level, the state that was found, and how to fix it.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// Pods run, but with a disadvantage.
    Warn,
    /// A feature is missing.
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) topic: &'static str,
    pub(super) name: String,
    pub(super) level: Level,
    /// The state that was found, and its effect.
    pub(super) what: String,
    /// How to fix it.
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

    /// Reports a missing feature that pods do not need.
    pub(super) fn missing(
        topic: &'static str,
        name: impl Into<String>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { level: Level::Missing, hint: Some(hint.into()), ..Self::ok(topic, name, what) }
    }

    /// Marks the finding as one that pods need.
    pub(super) fn essential(self) -> Self {
        Self { essential: true, ..self }
    }
}

/// Returns whether pods can run: no essential feature is missing.
pub(super) fn can_run(findings: &[Finding]) -> bool {
    !findings.iter().any(|finding| finding.essential && finding.level == Level::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_essential_features_prevent_pods_from_running() {
        let warn = Finding::warn("a", "b", "c", "d");
        let missing = Finding::missing("a", "b", "c", "d");
        assert!(can_run(&[Finding::ok("a", "b", "c"), warn.clone().essential(), missing.clone()]));
        assert!(!can_run(&[warn, missing.essential()]));
    }
}
