//! Records the spans of requests and of their steps, from `tracing`.

use std::sync::Arc;

use config::SAMPLE_ALL;
use http::HeaderMap;
use tokio::sync::mpsc;
use tonic::Code;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Context as Surroundings, Filter, Layer};
use tracing_subscriber::registry::{LookupSpan, Registry};

use super::SpanCounters;
use super::span::{Recording, Span, Value, random};
use super::trace_context::Context;

/// Chooses the requests that are recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sampler {
    pub(super) per_million: u32,
}

impl Sampler {
    /// Starts to record the request of `span`, if it is sampled. The caller's sampling flag
    /// decides; a request without one starts a trace, of which a configured share is sampled.
    pub(crate) fn begin(self, span: &tracing::Span, path: &str, headers: &HeaderMap) {
        let parent = Context::of(headers);
        let trace = parent.as_ref().map_or_else(random, |parent| parent.trace);
        let sampled = parent.as_ref().map_or_else(|| self.samples(trace), |parent| parent.sampled);
        if !sampled {
            return;
        }
        let path = path.trim_start_matches('/');
        let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
        let mut recording = Recording::request(path, trace, parent);
        recording.set("rpc.system", Value::text("grpc"));
        recording.set("rpc.service", Value::text(service));
        recording.set("rpc.method", Value::text(method));
        with(span, |known| *known = Some(recording));
    }

    /// Decides by the random trace ID, so that all services with the same share decide alike.
    fn samples(self, trace: [u8; 16]) -> bool {
        let number =
            u64::from_be_bytes([0, trace[9], trace[10], trace[11], trace[12], trace[13], trace[14], trace[15]]);
        number % u64::from(SAMPLE_ALL) < u64::from(self.per_million)
    }
}

/// Records the end of the request of `span`; `error` is the message of a failure.
pub(crate) fn end(span: &tracing::Span, code: Code, error: Option<&str>) {
    with(span, |recording| {
        let Some(recording) = recording else { return };
        recording.set("rpc.grpc.status_code", Value::Number(i64::from(i32::from(code))));
        if let Some(error) = error.filter(|_| is_fault(code)) {
            recording.fail(error);
        }
        recording.end();
    });
}

/// Returns true for codes that OpenTelemetry counts as server errors.
fn is_fault(code: Code) -> bool {
    match code {
        Code::Unknown
        | Code::DeadlineExceeded
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => true,
        Code::Ok
        | Code::Cancelled
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unauthenticated => false,
    }
}

/// Runs `work` with the recorded data of an open span.
fn with(span: &tracing::Span, work: impl FnOnce(&mut Option<Recording>)) {
    span.with_subscriber(|(id, dispatch)| {
        let found = dispatch.downcast_ref::<Registry>().and_then(|registry| registry.span(id));
        if let Some(found) = found {
            let mut extensions = found.extensions_mut();
            let mut recording = extensions.remove::<Recording>();
            work(&mut recording);
            if let Some(recording) = recording {
                extensions.insert(recording);
            }
        }
    });
}

/// Queues a finished span, or counts it as dropped if the queue is full. Never waits.
#[derive(Debug)]
pub(crate) struct RecordingLayer {
    pub(super) queue: mpsc::Sender<Span>,
    pub(super) counters: Arc<SpanCounters>,
}

impl RecordingLayer {
    /// Selects the spans of `crates`, independent of the level of the log.
    pub(crate) fn filter<S>(crates: &'static [&'static str]) -> impl Filter<S> {
        let is_own =
            |metadata: &Metadata<'_>| metadata.target().split("::").next().is_some_and(|name| crates.contains(&name));
        let own_spans = filter_fn(move |metadata: &Metadata<'_>| metadata.is_span() && is_own(metadata));
        own_spans.with_max_level_hint(LevelFilter::DEBUG).and(LevelFilter::DEBUG)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for RecordingLayer {
    /// Records a step of a recorded request; requests are started by [`Sampler::begin`].
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, surroundings: Surroundings<'_, S>) {
        let Some(span) = surroundings.span(id) else { return };
        let step = span.parent().and_then(|parent| Some(parent.extensions().get::<Recording>()?.step(span.name())));
        if let Some(mut step) = step {
            attributes.record(&mut step);
            span.extensions_mut().insert(step);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, surroundings: Surroundings<'_, S>) {
        let Some(span) = surroundings.span(id) else { return };
        if let Some(recording) = span.extensions_mut().get_mut::<Recording>() {
            values.record(recording);
        }
    }

    fn on_close(&self, id: Id, surroundings: Surroundings<'_, S>) {
        let Some(span) = surroundings.span(&id) else { return };
        let recording = span.extensions_mut().remove::<Recording>();
        if let Some(recording) = recording
            && self.queue.try_send(recording.finish()).is_err()
        {
            self.counters.drop_spans(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::super::span::SpanKind;
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0";

    fn headers(parent: Option<&str>) -> HeaderMap {
        parent.map(|text| ("traceparent".parse().unwrap(), text.parse().unwrap())).into_iter().collect()
    }

    /// Returns the spans that `work` leaves in a queue of this size, and the number of dropped
    /// ones.
    fn recorded(places: usize, work: impl FnOnce()) -> (Vec<Span>, u64) {
        let (queue, mut spans) = mpsc::channel(places);
        let counters = Arc::<SpanCounters>::default();
        let recorder = RecordingLayer { queue, counters: Arc::clone(&counters) };
        let subscriber = tracing_subscriber::registry().with(recorder.with_filter(RecordingLayer::filter(&["daemon"])));
        tracing::subscriber::with_default(subscriber, work);
        (std::iter::from_fn(|| spans.try_recv().ok()).collect(), counters.dropped())
    }

    fn request(per_million: u32, parent: Option<&str>) {
        let span = tracing::error_span!("rpc", pod = tracing::field::Empty);
        Sampler { per_million }.begin(&span, "/runtime.v1.RuntimeService/Version", &headers(parent));
        span.in_scope(|| {
            tracing::Span::current().record("pod", "abc");
            tracing::debug_span!("look", container = "def").in_scope(|| tracing::info!("no span"));
            tracing::debug_span!(target: "h2", "frame").in_scope(|| {});
        });
        end(&span, Code::NotFound, Some("not there"));
    }

    #[test]
    fn a_request_is_a_child_of_its_callers_span_and_its_steps_are_its_children() {
        let (spans, dropped) = recorded(10, || request(0, Some(&format!("{PARENT}1"))));
        let [step, request] = &spans[..] else { panic!("{spans:?}") };
        assert_eq!(request.name, "runtime.v1.RuntimeService/Version");
        assert_eq!((request.trace[0], request.parent.unwrap()[0]), (0x0a, 0xb7));
        assert_eq!(request.kind, SpanKind::Request { remote: true });
        let attributes = [
            ("rpc.system", Value::text("grpc")),
            ("rpc.service", Value::text("runtime.v1.RuntimeService")),
            ("rpc.method", Value::text("Version")),
            ("crisp.pod", Value::text("abc")),
            ("rpc.grpc.status_code", Value::Number(5)),
        ];
        assert_eq!(request.attributes, attributes.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(request.error, None, "NOT_FOUND is not a server error");
        assert_eq!((step.name.as_str(), step.parent, step.kind), ("look", Some(request.id), SpanKind::Step));
        assert_eq!(step.attributes, [("container.id".to_owned(), Value::text("def"))]);
        // A span reads two clocks one after the other, and the thread may be interrupted in between.
        let slack = std::time::Duration::from_secs(1);
        assert!(request.begin <= step.begin && step.end <= request.end + slack);
        assert_eq!(dropped, 0);
    }

    #[test]
    fn the_callers_flag_decides_otherwise_the_sampling_rate() {
        let count = |per_million, parent: Option<&str>| recorded(10, || request(per_million, parent)).0.len();
        assert_eq!(count(SAMPLE_ALL, Some(&format!("{PARENT}0"))), 0);
        assert_eq!(count(0, None), 0);
        assert_eq!(count(SAMPLE_ALL, None), 2);
        assert_eq!(count(SAMPLE_ALL, Some("nonsense")), 2);
        let taken = |per_million| (0..4000).filter(|_| Sampler { per_million }.samples(random())).count();
        assert!((1600..2400).contains(&taken(SAMPLE_ALL / 2)), "half of them");
    }

    #[test]
    fn spans_that_do_not_fit_are_counted_without_waiting() {
        let (spans, dropped) = recorded(3, || (0..5).for_each(|_| request(SAMPLE_ALL, None)));
        assert_eq!((spans.len(), dropped), (3, 7));
    }

    #[test]
    fn a_server_error_has_its_message() {
        let (spans, _) = recorded(3, || {
            let span = tracing::error_span!("rpc");
            Sampler { per_million: SAMPLE_ALL }.begin(&span, "odd", &headers(None));
            end(&span, Code::Internal, Some("broken"));
        });
        assert_eq!((spans[0].name.as_str(), spans[0].error.as_deref()), ("odd", Some("broken")));
    }
}
