//! Tokens that are good once, and not for long.
//!
//! What one stands for is held for no longer than it is good: arguments of commands are somebody's secrets, and as long as they like.

use std::collections::{HashMap, VecDeque};
use std::sync::MutexGuard;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sync::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::TooManyTokens;

/// How long a token is good.
const TTL: Duration = Duration::from_secs(60);
/// The most that are good at the same time.
const MOST: usize = 1000;
/// The most memory that they may stand for at the same time, in bytes. One alone may have more.
const MOST_HELD: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Tokens<T> {
    inner: Mutex<Inner<T>>,
    issued: Notify,
}

/// What a token stands for, which takes memory.
pub(super) trait TokenPayload {
    /// In bytes, more or less.
    fn size(&self) -> usize;
}

#[derive(Debug)]
struct Inner<T> {
    good: HashMap<String, T>,
    /// By all that are good, in bytes.
    held: usize,
    /// Oldest first; also of those that were used.
    order: VecDeque<(Instant, String)>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        let inner = Inner { good: HashMap::new(), held: 0, order: VecDeque::new() };
        Self { inner: Mutex::new(inner), issued: Notify::new() }
    }
}

impl<T: TokenPayload> Tokens<T> {
    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock()
    }

    pub(super) fn issue(&self, value: T) -> Result<String, TooManyTokens> {
        self.issue_at(value, Instant::now())
    }

    fn issue_at(&self, value: T, now: Instant) -> Result<String, TooManyTokens> {
        let mut inner = self.inner();
        inner.forget_old(now);
        let held = inner.held.saturating_add(value.size());
        if inner.good.len() >= MOST || inner.held > 0 && held > MOST_HELD {
            return Err(TooManyTokens);
        }
        inner.held = held;
        let mut bytes = [0; 16];
        // The kernel's generator does not fail once the system has booted.
        while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(16) {}
        let token = URL_SAFE_NO_PAD.encode(bytes);
        inner.good.insert(token.clone(), value);
        inner.order.push_back((now, token.clone()));
        self.issued.notify_one();
        Ok(token)
    }

    /// What the token stands for, if it is good. It is not any more.
    pub(super) fn redeem(&self, token: &str) -> Option<T> {
        self.redeem_at(token, Instant::now())
    }

    fn redeem_at(&self, token: &str, now: Instant) -> Option<T> {
        let mut inner = self.inner();
        inner.forget_old(now);
        inner.take(token)
    }

    /// Forgets those that are not good any more, also where nobody comes with or for another. Never ends.
    pub(super) async fn forget_in_time(&self) {
        loop {
            match self.oldest() {
                Some(issued) => tokio::time::sleep_until(issued + TTL).await,
                None => self.issued.notified().await,
            }
        }
    }

    /// When the oldest of those that are good was issued.
    fn oldest(&self) -> Option<Instant> {
        let mut inner = self.inner();
        inner.forget_old(Instant::now());
        inner.order.front().map(|(issued, _)| *issued)
    }
}

impl<T: TokenPayload> Inner<T> {
    fn take(&mut self, token: &str) -> Option<T> {
        let value = self.good.remove(token)?;
        self.held = self.held.saturating_sub(value.size());
        Some(value)
    }

    fn forget_old(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(issued, token)| {
            now.saturating_duration_since(*issued) >= TTL || !self.good.contains_key(token)
        }) {
            if let Some((_, token)) = self.order.pop_front() {
                self.take(&token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That many bytes.
    impl TokenPayload for usize {
        fn size(&self) -> usize {
            *self
        }
    }

    impl TokenPayload for std::sync::Arc<()> {
        fn size(&self) -> usize {
            0
        }
    }

    #[test]
    fn a_token_is_good_once() {
        let tokens = Tokens::default();
        let (a, b) = (tokens.issue(1).unwrap(), tokens.issue(2).unwrap());
        assert!(a != b && a.len() == 22, "{a} {b}");
        assert_eq!((tokens.redeem(&a), tokens.redeem(&a)), (Some(1), None));
        assert_eq!((tokens.redeem(""), tokens.redeem("guess"), tokens.redeem(&b)), (None, None, Some(2)));
    }

    #[test]
    fn a_token_is_good_for_a_minute() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let (early, late) = (tokens.issue_at(1, now).unwrap(), tokens.issue_at(2, now).unwrap());
        assert_eq!(tokens.redeem_at(&early, now + TTL - Duration::from_millis(1)), Some(1));
        assert_eq!(tokens.redeem_at(&late, now + TTL), None);
        let inner = tokens.inner();
        assert!(inner.good.is_empty() && inner.order.is_empty() && inner.held == 0);
    }

    #[test]
    fn there_are_not_too_many_and_old_ones_make_room() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let mut all: Vec<_> = (0..MOST).map(|n| tokens.issue_at(n, now).unwrap()).collect();
        assert_eq!(tokens.issue_at(0, now), Err(TooManyTokens));
        assert_eq!(tokens.redeem_at(&all.swap_remove(7), now), Some(7));
        tokens.issue_at(0, now).unwrap();
        assert_eq!(tokens.issue_at(0, now), Err(TooManyTokens));
        tokens.issue_at(0, now + TTL).unwrap();
        assert_eq!(tokens.inner().good.len(), 1);
    }

    #[test]
    fn they_hold_a_bounded_amount_of_memory() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let large = tokens.issue_at(2 * MOST_HELD, now).unwrap();
        assert_eq!(tokens.issue_at(1, now), Err(TooManyTokens));
        tokens.redeem_at(&large, now).unwrap();
        for _ in 0..4 {
            tokens.issue_at(MOST_HELD / 4, now).unwrap();
        }
        assert_eq!(tokens.issue_at(1, now), Err(TooManyTokens));
        tokens.issue_at(MOST_HELD, now + TTL).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_nobody_comes_with_is_forgotten_in_time_by_itself() {
        let (tokens, value) = (std::sync::Arc::new(Tokens::default()), std::sync::Arc::new(()));
        let forgetting = tokens.clone();
        let forgetting = tokio::spawn(async move { forgetting.forget_in_time().await });
        for _ in 0..2 {
            tokens.issue(value.clone()).unwrap();
            tokio::time::sleep(TTL / 2).await;
            let late = tokens.issue(value.clone()).unwrap();
            tokio::time::sleep(TTL / 2 + Duration::from_millis(10)).await;
            assert_eq!(std::sync::Arc::strong_count(&value), 2, "the second one is still good");
            tokens.redeem(&late).unwrap();
            tokens.issue(value.clone()).unwrap();
            tokio::time::sleep(TTL + Duration::from_millis(10)).await;
            assert_eq!(std::sync::Arc::strong_count(&value), 1);
        }
        forgetting.abort();
    }

    #[test]
    fn used_tokens_leave_nothing_behind() {
        let tokens = Tokens::default();
        for _ in 0..10_000 {
            let token = tokens.issue(0).unwrap();
            tokens.redeem(&token).unwrap();
        }
        assert!(tokens.inner().order.len() <= 1);
    }
}
