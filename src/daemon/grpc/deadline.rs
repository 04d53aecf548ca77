//! Deadlines of requests.
//!
//! tonic ends a request at its deadline too, but with CANCELLED, which clients report as their own
//! cancellation.

use std::future::Future;
use std::time::Duration;

use tonic::Status;
use tonic::codegen::http::{HeaderMap, Response};

/// The time by which this must be earlier than tonic, whose timers count in milliseconds.
const AHEAD: Duration = Duration::from_millis(1);

/// Returns the deadline of the request, if it has one: at most eight digits and a unit.
pub(super) fn of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Returns the response of `call`, or DEADLINE_EXCEEDED.
pub(super) async fn within<O: Default, E>(
    limit: Option<Duration>,
    call: impl Future<Output = Result<Response<O>, E>>,
) -> Result<Response<O>, E> {
    let Some(limit) = limit else { return call.await };
    match tokio::time::timeout(limit.saturating_sub(AHEAD), call).await {
        Ok(answer) => answer,
        Err(_) => Ok(Status::deadline_exceeded(format!("no response within the deadline of {limit:?}")).into_http()),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn parsed(text: &str) -> Option<Duration> {
        of(&HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]))
    }

    #[test]
    fn a_deadline_is_a_number_and_a_unit() {
        let all = ["3H", "2M", "1S", "150m", "2u", "99999999n"].map(|text| parsed(text).unwrap());
        let seconds = [10800.0, 120.0, 1.0, 0.15, 0.000_002, 0.099_999_999];
        assert_eq!(all, seconds.map(Duration::from_secs_f64));
        for bad in ["", "S", "1", "1s", "-1S", "123456789S", "1.5S", "S1", "1SS"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
        assert_eq!(of(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn a_late_request_gets_deadline_exceeded() {
        let ready = async { Ok::<_, ()>(Response::new(())) };
        let answer = within(Some(Duration::ZERO), ready).await.unwrap();
        assert!(Status::from_header_map(answer.headers()).is_none());
        let never = std::future::pending::<Result<Response<()>, ()>>();
        let answer = within(Some(Duration::from_millis(5)), never).await.unwrap();
        assert_eq!(Status::from_header_map(answer.headers()).unwrap().code(), Code::DeadlineExceeded);
    }
}
