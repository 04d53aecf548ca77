//! Pauses and limits for retries of registry requests.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

const RETRIES: u32 = 3;
/// Shorter in tests, which would otherwise mostly sleep.
const FIRST_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 30 } else { 300 });
/// The longest pause that a server can request.
const ASKED_MAX: Duration = Duration::from_secs(30);
/// No third or later attempt starts after this time, since other endpoints and the caller wait.
const TOTAL_MAX: Duration = Duration::from_secs(60);

/// The pauses between attempts: each twice as long as the previous one, with jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    tries: u32,
    began: Instant,
}

impl Backoff {
    /// Starts with the first attempt.
    pub(crate) fn new() -> Self {
        Self { tries: 0, began: Instant::now() }
    }

    /// Returns the pause before the next attempt, at least `asked` by the server; `None` after the
    /// last attempt.
    pub(crate) fn pause(&mut self, asked: Option<Duration>) -> Option<Duration> {
        if self.tries == RETRIES {
            return None;
        }
        let own = jittered(FIRST_PAUSE * 2u32.pow(self.tries));
        let pause = asked.unwrap_or_default().min(ASKED_MAX).max(own);
        self.tries += 1;
        (self.tries == 1 || self.began.elapsed() + pause <= TOTAL_MAX).then_some(pause)
    }
}

/// Returns two thirds to all of `pause`: machines that failed together must not retry together.
fn jittered(pause: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(()) % 1024).unwrap_or(0);
    pause * 2 / 3 + pause / 3 * random / 1024
}

/// Parses a `Retry-After` header: seconds, or a date.
pub(crate) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end() {
        let mut backoff = Backoff::new();
        for base in [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4] {
            let pause = backoff.pause(None).unwrap();
            assert!((base * 2 / 3..=base).contains(&pause), "{pause:?} of {base:?}");
        }
        assert_eq!(backoff.pause(None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_requested_by_the_server_is_used_up_to_a_limit() {
        let mut backoff = Backoff::new();
        for (asked, given) in [(5, Some(Duration::from_secs(5))), (86_400, Some(ASKED_MAX)), (u64::MAX, None)] {
            let pause = backoff.pause(Some(Duration::from_secs(asked)));
            assert_eq!(pause, given);
            tokio::time::advance(pause.unwrap_or_default()).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_failure_is_retried_only_once() {
        let mut backoff = Backoff::new();
        tokio::time::advance(Duration::from_secs(300)).await;
        assert!(backoff.pause(None).is_some());
        tokio::time::advance(Duration::from_secs(300)).await;
        assert_eq!(backoff.pause(None), None);
    }

    #[test]
    fn retry_after_is_parsed_as_seconds_or_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let read = |value: &str| retry_after(value, now);
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read(" 0 "), Some(Duration::ZERO));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:47 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(read("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO), "in the past");
        for bad in ["", "-1", "soon", "99999999999999999999999"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
