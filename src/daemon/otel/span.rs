//! A recorded span: a request or a step of one, with a bounded number of attributes.

use std::fmt;
use std::time::{Instant, SystemTime};

use tracing::field::{Field, Visit};

use super::trace_context::{Context, SpanId, TraceId};

/// Maximum attributes of a span; more are counted and dropped.
const ATTRIBUTES_MAX: usize = 32;
/// Maximum bytes of a text; longer ones are truncated.
const TEXT_MAX: usize = 1024;

/// A request, or a step of one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Span {
    pub(crate) trace: TraceId,
    pub(crate) id: SpanId,
    pub(crate) parent: Option<SpanId>,
    /// The trace state of vendors.
    pub(crate) state: String,
    pub(crate) name: String,
    pub(crate) kind: SpanKind,
    pub(crate) begin: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(String, Value)>,
    /// The number of dropped attributes.
    pub(crate) dropped: u32,
    /// The message of a server error.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// The kind: a request, and whether its parent is remote.
    Request {
        remote: bool,
    },
    Step,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
    Bool(bool),
}

/// A span that has not ended.
#[derive(Debug)]
pub(super) struct Recording {
    span: Span,
    began: Instant,
    ended: bool,
}

impl Recording {
    /// Creates the first span of a request.
    pub(super) fn request(name: &str, trace: TraceId, parent: Option<Context>) -> Self {
        let kind = SpanKind::Request { remote: parent.is_some() };
        let (parent, state) = parent.map(|context| (context.span, context.state)).unzip();
        Self::new(trace, parent, state.unwrap_or_default(), cut(name), kind)
    }

    pub(super) fn step(&self, name: &str) -> Self {
        Self::new(self.span.trace, Some(self.span.id), self.span.state.clone(), cut(name), SpanKind::Step)
    }

    fn new(trace: TraceId, parent: Option<SpanId>, state: String, name: String, kind: SpanKind) -> Self {
        let begin = SystemTime::now();
        let (id, attributes) = (random(), Vec::new());
        let span =
            Span { trace, id, parent, state, name, kind, begin, end: begin, attributes, dropped: 0, error: None };
        Self { span, began: Instant::now(), ended: false }
    }

    /// Sets an attribute; the last value of a name counts.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        let Span { attributes, dropped, .. } = &mut self.span;
        if let Some((_, known)) = attributes.iter_mut().find(|(known, _)| known == name) {
            *known = value;
        } else if attributes.len() < ATTRIBUTES_MAX {
            attributes.push((name.to_owned(), value));
        } else {
            *dropped = dropped.saturating_add(1);
        }
    }

    pub(super) fn fail(&mut self, error: &str) {
        self.span.error = Some(cut(error));
    }

    /// Ends the span now.
    pub(super) fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            // Uses the monotonic clock.
            self.span.end = self.span.begin + self.began.elapsed();
        }
    }

    pub(super) fn finish(mut self) -> Span {
        self.end();
        self.span
    }
}

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Text(cut(text))
    }
}

/// Truncates a text to [`TEXT_MAX`].
fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Returns random bytes that are not all 0.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // getrandom(2) does not fail after the system has booted.
    while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(N) || bytes == [0; N] {}
    bytes
}

impl Visit for Recording {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(attribute(field), Value::Number(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(
            attribute(field),
            i64::try_from(value).map_or_else(|_| Value::text(&value.to_string()), Value::Number),
        );
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(attribute(field), Value::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(attribute(field), Value::text(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(attribute(field), Value::text(&format!("{value:?}")));
    }
}

/// Returns OpenTelemetry's name of a field, if it has one.
fn attribute(field: &Field) -> &'static str {
    match field.name() {
        "namespace" => "k8s.namespace.name",
        "pod_name" => "k8s.pod.name",
        "pod_uid" => "k8s.pod.uid",
        "container_name" => "k8s.container.name",
        "pod" => "crisp.pod",
        "container" => "container.id",
        "image" => "container.image.name",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_bounded_attributes_and_the_last_value_of_each() {
        let mut recording = Recording::request("a", [1; 16], None);
        for number in 0..40 {
            recording.set(&number.to_string(), Value::Number(number));
        }
        recording.set("0", Value::text(&"\u{e4}".repeat(TEXT_MAX)));
        let span = recording.finish();
        assert_eq!((span.attributes.len(), span.dropped), (ATTRIBUTES_MAX, 8));
        assert_eq!(span.attributes[0].1, Value::Text("\u{e4}".repeat(TEXT_MAX / 2)));
    }

    #[test]
    fn a_step_belongs_to_its_request_and_changes_after_the_end_are_ignored() {
        let context = Context { trace: [1; 16], span: [2; 8], sampled: true, state: "a=1".into() };
        let mut request = Recording::request("a", context.trace, Some(context));
        let step = request.step("b").finish();
        request.end();
        let end = request.span.end;
        std::thread::sleep(std::time::Duration::from_millis(2));
        let request = request.finish();
        assert_eq!((request.end, request.parent), (end, Some([2; 8])));
        assert_eq!((step.trace, step.parent, step.state.as_str()), ([1; 16], Some(request.id), "a=1"));
        assert_ne!(step.id, request.id);
    }
}
