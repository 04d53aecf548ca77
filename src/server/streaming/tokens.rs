//! Tokens that are good once, and not for long.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::TooMany;

/// How long a token is good.
const TTL: Duration = Duration::from_secs(60);
/// The most that are good at the same time.
const MOST: usize = 1000;

#[derive(Debug)]
pub(super) struct Tokens<T>(Mutex<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    good: HashMap<String, (Instant, T)>,
    /// Oldest first; also of those that were used.
    order: VecDeque<(Instant, String)>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self(Mutex::new(Inner { good: HashMap::new(), order: VecDeque::new() }))
    }
}

impl<T> Tokens<T> {
    pub(super) fn issue(&self, value: T) -> Result<String, TooMany> {
        self.issue_at(value, Instant::now())
    }

    fn issue_at(&self, value: T, now: Instant) -> Result<String, TooMany> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.forget_old(now);
        if inner.good.len() >= MOST {
            return Err(TooMany);
        }
        let mut bytes = [0; 16];
        // The kernel's generator does not fail once the system has booted.
        while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(16) {}
        let token = URL_SAFE_NO_PAD.encode(bytes);
        inner.good.insert(token.clone(), (now, value));
        inner.order.push_back((now, token.clone()));
        Ok(token)
    }

    /// What the token stands for, if it is good. It is not any more.
    pub(super) fn redeem(&self, token: &str) -> Option<T> {
        self.redeem_at(token, Instant::now())
    }

    fn redeem_at(&self, token: &str, now: Instant) -> Option<T> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.forget_old(now);
        inner.good.remove(token).map(|(_, value)| value)
    }
}

impl<T> Inner<T> {
    fn forget_old(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(issued, token)| {
            now.saturating_duration_since(*issued) >= TTL || !self.good.contains_key(token)
        }) {
            if let Some((_, token)) = self.order.pop_front() {
                self.good.remove(&token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once() {
        let tokens = Tokens::default();
        let (a, b) = (tokens.issue("a").unwrap(), tokens.issue("b").unwrap());
        assert!(a != b && a.len() == 22, "{a} {b}");
        assert_eq!((tokens.redeem(&a), tokens.redeem(&a)), (Some("a"), None));
        assert_eq!((tokens.redeem(""), tokens.redeem("guess"), tokens.redeem(&b)), (None, None, Some("b")));
    }

    #[test]
    fn a_token_is_good_for_a_minute() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let (early, late) = (tokens.issue_at(1, now).unwrap(), tokens.issue_at(2, now).unwrap());
        assert_eq!(tokens.redeem_at(&early, now + TTL - Duration::from_millis(1)), Some(1));
        assert_eq!(tokens.redeem_at(&late, now + TTL), None);
        let inner = tokens.0.lock().unwrap();
        assert!(inner.good.is_empty() && inner.order.is_empty());
    }

    #[test]
    fn there_are_not_too_many_and_old_ones_make_room() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let mut all: Vec<_> = (0..MOST).map(|n| tokens.issue_at(n, now).unwrap()).collect();
        assert_eq!(tokens.issue_at(0, now), Err(TooMany));
        assert_eq!(tokens.redeem_at(&all.swap_remove(7), now), Some(7));
        tokens.issue_at(0, now).unwrap();
        assert_eq!(tokens.issue_at(0, now), Err(TooMany));
        tokens.issue_at(0, now + TTL).unwrap();
        assert_eq!(tokens.0.lock().unwrap().good.len(), 1);
    }

    #[test]
    fn used_tokens_leave_nothing_behind() {
        let tokens = Tokens::default();
        for _ in 0..10_000 {
            let token = tokens.issue(()).unwrap();
            tokens.redeem(&token).unwrap();
        }
        assert!(tokens.0.lock().unwrap().order.len() <= 1);
    }
}
