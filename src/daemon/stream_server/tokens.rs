//! Tokens that are valid once, for a short time.
//!
//! A token's request is dropped when the token expires: arguments of commands can be secret and
//! large. If there are too many tokens, the pod with the most loses its oldest, so that no pod can
//! keep the clients of others from getting one.

use std::collections::{HashMap, VecDeque};
use std::sync::MutexGuard;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::PodId;
use sync::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The lifetime of a token.
const TTL: Duration = Duration::from_secs(60);
/// Maximum number of valid tokens.
const MOST: usize = 1000;
/// Maximum memory of their requests, in bytes. A single new one may have more.
const MOST_HELD: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Tokens<T> {
    inner: Mutex<Inner<T>>,
    issued: Notify,
}

/// The request of a token.
pub(super) trait TokenPayload {
    /// The pod of the request.
    fn pod(&self) -> &PodId;
    /// Its approximate size in bytes.
    fn size(&self) -> usize;
}

#[derive(Debug)]
struct Inner<T> {
    good: HashMap<String, T>,
    /// The size of all requests, in bytes.
    held: usize,
    /// Oldest first.
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

    pub(super) fn issue(&self, value: T) -> String {
        self.issue_at(value, Instant::now())
    }

    fn issue_at(&self, value: T, now: Instant) -> String {
        let mut inner = self.inner();
        inner.forget_old(now);
        inner.make_room(&value);
        inner.held = inner.held.saturating_add(value.size());
        let mut bytes = [0; 16];
        // getrandom(2) does not fail after the system has booted.
        while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(16) {}
        let token = URL_SAFE_NO_PAD.encode(bytes);
        inner.good.insert(token.clone(), value);
        inner.order.push_back((now, token.clone()));
        self.issued.notify_one();
        token
    }

    /// Returns the request of a valid token, and invalidates the token.
    pub(super) fn redeem(&self, token: &str) -> Option<T> {
        self.redeem_at(token, Instant::now())
    }

    fn redeem_at(&self, token: &str, now: Instant) -> Option<T> {
        let mut inner = self.inner();
        inner.forget_old(now);
        inner.take(token)
    }

    /// Drops expired tokens when they expire. Never returns.
    pub(super) async fn forget_in_time(&self) {
        loop {
            match self.oldest() {
                Some(issued) => tokio::time::sleep_until(issued + TTL).await,
                None => self.issued.notified().await,
            }
        }
    }

    /// Returns when the oldest valid token was issued.
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
        self.order.retain(|(_, other)| other != token);
        Some(value)
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some((issued, token)) = self.order.front()
            && now.saturating_duration_since(*issued) >= TTL
        {
            let token = token.clone();
            self.take(&token);
        }
    }

    /// Drops tokens until there is room for `new`.
    fn make_room(&mut self, new: &T) {
        while self.good.len() >= MOST && self.forget_oldest_of_largest(new.pod(), 1, |_| 1) {}
        while self.held.saturating_add(new.size()) > MOST_HELD
            && self.forget_oldest_of_largest(new.pod(), new.size(), T::size)
        {}
    }

    /// Drops the oldest token of the pod with the most by `measure`, where `asking` has `more` than
    /// it holds now. Returns false if that is `asking` itself and it holds none.
    fn forget_oldest_of_largest(&mut self, asking: &PodId, more: usize, measure: impl Fn(&T) -> usize) -> bool {
        let mut sums: HashMap<&PodId, usize> = HashMap::from([(asking, more)]);
        for value in self.good.values() {
            *sums.entry(value.pod()).or_default() += measure(value);
        }
        let most = sums.values().copied().max().unwrap_or_default();
        // In order of age: of equal pods the one with the oldest token.
        let largest = self.order.iter().find(|(_, token)| {
            self.good.get(token).is_some_and(|value| sums.get(value.pod()).is_some_and(|sum| *sum == most))
        });
        match largest.map(|(_, token)| token.clone()) {
            Some(token) => self.take(&token).is_some(),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a request of this pod with this size.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Held(PodId, usize);

    impl TokenPayload for Held {
        fn pod(&self) -> &PodId {
            &self.0
        }

        fn size(&self) -> usize {
            self.1
        }
    }

    fn of(pod: u8, bytes: usize) -> Held {
        Held(PodId::from_bytes([pod; 32]), bytes)
    }

    #[derive(Debug)]
    struct Counted(PodId, #[allow(dead_code, reason = "its count is read")] std::sync::Arc<()>);

    impl TokenPayload for Counted {
        fn pod(&self) -> &PodId {
            &self.0
        }

        fn size(&self) -> usize {
            0
        }
    }

    #[test]
    fn a_token_is_valid_once() {
        let tokens = Tokens::default();
        let (a, b) = (tokens.issue(of(1, 1)), tokens.issue(of(1, 2)));
        assert!(a != b && a.len() == 22, "{a} {b}");
        assert_eq!((tokens.redeem(&a), tokens.redeem(&a)), (Some(of(1, 1)), None));
        assert_eq!((tokens.redeem(""), tokens.redeem("guess"), tokens.redeem(&b)), (None, None, Some(of(1, 2))));
    }

    #[test]
    fn a_token_is_valid_for_a_minute() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let (early, late) = (tokens.issue_at(of(1, 1), now), tokens.issue_at(of(1, 2), now));
        assert_eq!(tokens.redeem_at(&early, now + TTL - Duration::from_millis(1)), Some(of(1, 1)));
        assert_eq!(tokens.redeem_at(&late, now + TTL), None);
        let inner = tokens.inner();
        assert!(inner.good.is_empty() && inner.order.is_empty() && inner.held == 0);
    }

    #[test]
    fn a_pod_with_too_many_tokens_loses_its_own() {
        let tokens = Tokens::default();
        let neighbour = tokens.issue(of(2, 0));
        let all: Vec<_> = (0..3 * MOST).map(|n| tokens.issue(of(1, n % 2))).collect();
        let late = tokens.issue(of(3, 0));
        assert_eq!(tokens.inner().good.len(), MOST);
        assert_eq!(tokens.redeem(&all[2 * MOST]), None, "the oldest went");
        for token in [neighbour, late, all[3 * MOST - 1].clone()] {
            assert!(tokens.redeem(&token).is_some());
        }
    }

    #[test]
    fn many_pods_with_one_each_lose_the_oldest() {
        let tokens = Tokens::default();
        let one_each = |n: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.to_le_bytes());
            tokens.issue(Held(PodId::from_bytes(id), 0))
        };
        let all: Vec<_> = (0..=MOST).map(one_each).collect();
        assert_eq!((tokens.redeem(&all[0]), tokens.inner().good.len()), (None, MOST));
        assert!(tokens.redeem(&all[1]).is_some() && tokens.redeem(&all[MOST]).is_some());
    }

    #[test]
    fn tokens_hold_a_bounded_amount_of_memory() {
        let tokens = Tokens::default();
        let (small, large) = (tokens.issue(of(1, 10)), tokens.issue(of(2, MOST_HELD)));
        assert!(tokens.redeem(&large).is_some() && tokens.redeem(&small).is_some(), "one alone may have more");
        let small = tokens.issue(of(1, 10));
        let large: Vec<_> = (0..8).map(|_| tokens.issue(of(2, MOST_HELD / 4))).collect();
        assert!(tokens.inner().held <= MOST_HELD);
        assert_eq!(tokens.redeem(&large[0]), None);
        assert!(tokens.redeem(&small).is_some() && tokens.redeem(&large[7]).is_some());
        // With one large token for each pod, the oldest is dropped.
        let large: Vec<_> = (3..13).map(|pod| tokens.issue(of(pod, MOST_HELD))).collect();
        assert!(tokens.inner().held <= 2 * MOST_HELD);
        assert!(tokens.redeem(&large[9]).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_token_expires_by_itself() {
        let (tokens, value) = (std::sync::Arc::new(Tokens::default()), std::sync::Arc::new(()));
        let counted = || Counted(PodId::from_bytes([1; 32]), value.clone());
        let forgetting = tokens.clone();
        let forgetting = tokio::spawn(async move { forgetting.forget_in_time().await });
        for _ in 0..2 {
            tokens.issue(counted());
            tokio::time::sleep(TTL / 2).await;
            let late = tokens.issue(counted());
            tokio::time::sleep(TTL / 2 + Duration::from_millis(10)).await;
            assert_eq!(std::sync::Arc::strong_count(&value), 2, "the second one is still good");
            tokens.redeem(&late).unwrap();
            tokens.issue(counted());
            tokio::time::sleep(TTL + Duration::from_millis(10)).await;
            assert_eq!(std::sync::Arc::strong_count(&value), 1);
        }
        forgetting.abort();
    }

    #[test]
    fn used_tokens_leave_nothing_behind() {
        let tokens = Tokens::default();
        let _waits = tokens.issue(of(1, 0));
        for _ in 0..10_000 {
            let token = tokens.issue(of(1, 0));
            tokens.redeem(&token).unwrap();
        }
        assert_eq!(tokens.inner().order.len(), 1);
    }
}
