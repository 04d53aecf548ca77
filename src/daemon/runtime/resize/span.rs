//! The span of a resize, whose children are its steps.

use model::resources::Bytes;
use tracing::Span;
use tracing::field::{Empty, display};

use super::finished::FinishedResize;
use super::resources::ResourceChange;

/// Returns the span. [`record`] sets its fields at the end of the resize.
pub(super) fn resize_span() -> Span {
    tracing::debug_span!(
        "resize",
        changes = Empty,
        outcome = Empty,
        reason = Empty,
        caller = Empty,
        reclaimed_bytes = Empty
    )
}

/// Records the end of a resize in the current span, with the values that the log and the history have.
pub(super) fn record(resize: &FinishedResize, resources: &[ResourceChange]) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    let changes: Vec<String> = resources.iter().map(|change| format!("{}={change}", change.resource.name())).collect();
    let (outcome, reason) = resize.outcome.words();
    span.record("changes", changes.join(" "));
    span.record("outcome", outcome);
    span.record("reason", reason);
    span.record("caller", display(&resize.caller));
    span.record("reclaimed_bytes", resize.reclaimed.map(|Bytes(bytes)| bytes));
}
