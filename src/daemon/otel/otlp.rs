//! Converts recorded spans to an OTLP export request.

use std::time::{SystemTime, UNIX_EPOCH};

use cri_api::otlp;
use cri_api::otlp::any_value::Value as WireValue;

use crate::otel::{Span, SpanKind, Value};

/// The flag "sampled" of a trace.
const SAMPLED: u32 = 1;
/// Flags: whether the parent is in another process, and that this is known.
const PARENT_KNOWN: u32 = 0x100;
const PARENT_REMOTE: u32 = 0x200;

/// Builds an export request. `service` is the service name of this process.
pub(crate) fn export(service: &str, spans: &[Span]) -> otlp::ExportTraceServiceRequest {
    let version = env!("CARGO_PKG_VERSION");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let about = [("service.name", service), ("service.version", version), ("host.name", &host)];
    let attributes = about.map(|(name, text)| attribute(name, &Value::Text(text.to_owned())));
    otlp::ExportTraceServiceRequest {
        resource_spans: vec![otlp::ResourceSpans {
            resource: Some(otlp::Resource { attributes: attributes.into() }),
            scope_spans: vec![otlp::ScopeSpans {
                scope: Some(otlp::InstrumentationScope { name: "crisp".to_owned(), version: version.to_owned() }),
                spans: spans.iter().map(span).collect(),
            }],
        }],
    }
}

fn span(span: &Span) -> otlp::Span {
    let Span { trace, id, parent, state, name, kind, begin, end, attributes, dropped, error } = span;
    let (kind, remote) = match kind {
        SpanKind::Request { remote } => (otlp::span::SpanKind::Server, *remote),
        SpanKind::Step => (otlp::span::SpanKind::Internal, false),
    };
    let status = error
        .as_ref()
        .map(|error| otlp::Status { message: error.clone(), code: otlp::status::StatusCode::Error.into() });
    otlp::Span {
        trace_id: trace.to_vec(),
        span_id: id.to_vec(),
        trace_state: state.clone(),
        parent_span_id: parent.map(Vec::from).unwrap_or_default(),
        name: name.clone(),
        kind: kind.into(),
        start_time_unix_nano: nanos(*begin),
        end_time_unix_nano: nanos(*end),
        attributes: attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
        dropped_attributes_count: *dropped,
        status,
        flags: SAMPLED | PARENT_KNOWN | if remote { PARENT_REMOTE } else { 0 },
    }
}

fn attribute(name: &str, value: &Value) -> otlp::KeyValue {
    let value = match value {
        Value::Text(text) => WireValue::StringValue(text.clone()),
        Value::Number(number) => WireValue::IntValue(*number),
        Value::Bool(yes) => WireValue::BoolValue(*yes),
    };
    otlp::KeyValue { key: name.to_owned(), value: Some(otlp::AnyValue { value: Some(value) }) }
}

/// Returns nanoseconds since 1970; 0 for a time out of range.
fn nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tests::support::time;

    #[test]
    fn every_field_of_a_span_is_exported() {
        let recorded = Span {
            trace: [1; 16],
            id: [2; 8],
            parent: Some([3; 8]),
            state: "a=1".into(),
            name: "s/m".into(),
            kind: SpanKind::Request { remote: true },
            begin: time(7),
            end: time(8),
            attributes: vec![
                ("t".into(), Value::Text("x".into())),
                ("n".into(), Value::Number(-1)),
                ("b".into(), Value::Bool(true)),
            ],
            dropped: 4,
            error: Some("broken".into()),
        };
        let request = export("me", std::slice::from_ref(&recorded));
        let [of_us] = &request.resource_spans[..] else { panic!("{request:?}") };
        let about = &of_us.resource.as_ref().unwrap().attributes;
        assert_eq!(about[0], attribute("service.name", &Value::Text("me".into())));
        assert_eq!((about[1].key.as_str(), about[2].key.as_str()), ("service.version", "host.name"));
        assert_eq!(of_us.scope_spans[0].scope.as_ref().unwrap().name, "crisp");
        let sent = &of_us.scope_spans[0].spans[0];
        let value = |value| Some(otlp::AnyValue { value: Some(value) });
        let expected = otlp::Span {
            trace_id: vec![1; 16],
            span_id: vec![2; 8],
            trace_state: "a=1".into(),
            parent_span_id: vec![3; 8],
            name: "s/m".into(),
            kind: 2,
            start_time_unix_nano: nanos(time(7)),
            end_time_unix_nano: nanos(time(8)),
            attributes: vec![
                otlp::KeyValue { key: "t".into(), value: value(WireValue::StringValue("x".into())) },
                otlp::KeyValue { key: "n".into(), value: value(WireValue::IntValue(-1)) },
                otlp::KeyValue { key: "b".into(), value: value(WireValue::BoolValue(true)) },
            ],
            dropped_attributes_count: 4,
            status: Some(otlp::Status { message: "broken".into(), code: 2 }),
            flags: 0x301,
        };
        assert_eq!(*sent, expected);
        assert_eq!(nanos(time(8)) - nanos(time(7)), 1_000_000_000);
        let step = Span { kind: SpanKind::Step, parent: None, error: None, ..recorded };
        let step = span(&step);
        assert_eq!((step.kind, step.flags, step.status), (1, 0x101, None));
        assert!(step.parent_span_id.is_empty());
    }
}
