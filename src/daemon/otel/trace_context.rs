//! Parses the W3C headers `traceparent` and `tracestate` of a request.

use http::header::GetAll;
use http::{HeaderMap, HeaderValue};

/// Maximum bytes of the trace state; longer ones are dropped, as the standard allows.
const STATE_MAX: usize = 512;

pub(crate) type TraceId = [u8; 16];
pub(crate) type SpanId = [u8; 8];

/// The caller's span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    /// The caller's sampling flag.
    pub(crate) sampled: bool,
    pub(crate) state: String,
}

impl Context {
    /// Returns `None` for a missing or invalid header: the request then starts a trace.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all("traceparent").iter();
        let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
        let (trace, span, sampled) = parsed(parent.to_str().ok()?)?;
        Some(Self { trace, span, sampled, state: state(headers.get_all("tracestate")) })
    }
}

/// Returns the trace ID of the caller's span in hexadecimal, whether the span is sampled or not.
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<String> {
    Context::of(headers).map(|context| context.trace.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Parses `VERSION-TRACE-SPAN-FLAGS` in lower-case hexadecimal. Later versions may append fields.
fn parsed(text: &str) -> Option<(TraceId, SpanId, bool)> {
    let mut parts = text.splitn(5, '-');
    let [version] = hex(parts.next()?)?;
    let (trace, span) = (hex(parts.next()?)?, hex(parts.next()?)?);
    let [flags] = hex(parts.next()?)?;
    let is_known = match (version, parts.next()) {
        (0xff, _) | (0, Some(_)) => false,
        (_, _) => true,
    };
    (is_known && trace != [0; 16] && span != [0; 8]).then_some((trace, span, flags & 1 == 1))
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(bytes)
}

fn state(values: GetAll<'_, HeaderValue>) -> String {
    let texts: Option<Vec<&str>> = values.iter().map(|value| value.to_str().ok()).collect();
    texts.map(|texts| texts.join(",")).filter(|text| text.len() <= STATE_MAX).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(headers: &[(&'static str, &str)]) -> Option<Context> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        Context::of(&map)
    }

    #[test]
    fn a_parent_is_read_with_its_flag_and_state() {
        let context = of(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]).unwrap();
        assert_eq!(context.trace[..3], [0x0a, 0xf7, 0x65]);
        let headers = [("traceparent".parse().unwrap(), PARENT.parse().unwrap())].into_iter().collect();
        assert_eq!(trace_id(&headers).as_deref(), Some(&PARENT[3..35]));
        assert_eq!(context.span, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert_eq!((context.sampled, context.state.as_str()), (true, "a=1,b=2"));
        assert!(!of(&[("traceparent", &PARENT.replace("-01", "-02"))]).unwrap().sampled);
        assert!(of(&[("traceparent", &PARENT.replacen("00-", "01-", 1)), ("x", "y")]).unwrap().sampled);
        assert!(of(&[("traceparent", &format!("01{}-more-to-come", &PARENT[2..]))]).unwrap().sampled);
        assert_eq!(of(&[("traceparent", PARENT), ("tracestate", &"x".repeat(513))]).unwrap().state, "");
    }

    #[test]
    fn an_invalid_parent_is_ignored() {
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-00",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-001",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c8031-9c-b7ad6b7169203331-01",
        ] {
            assert_eq!(of(&[("traceparent", bad)]), None, "{bad}");
        }
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("traceparent", PARENT), ("traceparent", PARENT)]), None, "which one?");
    }
}
