//! The forecasts of refused shrinks, for metrics.

use std::collections::VecDeque;

use cgroup::{ApplyError, ShrinkForecast};
use sync::Mutex;

use crate::runtime::resize::journal::ResizeError;

/// Containers with a forecast; the oldest one is dropped.
const MOST: usize = 256;

/// The last refused shrink of each container, by its id, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct RefusedShrinks(Mutex<VecDeque<(String, ShrinkForecast)>>);

impl RefusedShrinks {
    /// Records the forecast of a refused shrink, and forgets it after a resize that was applied.
    pub(crate) fn note(&self, id: &str, result: &Result<(), ResizeError>) {
        match result {
            Ok(()) => self.forget(id),
            Err(ResizeError::Apply(ApplyError::BelowUsage { forecast: Some(forecast), .. })) => {
                self.put(id, **forecast);
            }
            Err(_) => {}
        }
    }

    fn put(&self, id: &str, forecast: ShrinkForecast) {
        let mut all = self.0.lock();
        all.retain(|(known, _)| known != id);
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back((id.to_owned(), forecast));
    }

    pub(crate) fn forget(&self, id: &str) {
        self.0.lock().retain(|(known, _)| known != id);
    }

    pub(crate) fn all(&self) -> Vec<(String, ShrinkForecast)> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_forecast_of_each_container_is_kept_up_to_a_bound() {
        let shrinks = RefusedShrinks::default();
        let forecast = |bytes| ShrinkForecast { smallest_limit: bytes, ..ShrinkForecast::default() };
        shrinks.put("a", forecast(1));
        shrinks.put("b", forecast(2));
        shrinks.put("a", forecast(3));
        assert_eq!(shrinks.all(), [("b".to_owned(), forecast(2)), ("a".to_owned(), forecast(3))]);
        shrinks.forget("b");
        (0..2 * MOST).for_each(|n| shrinks.put(&n.to_string(), forecast(4)));
        let all = shrinks.all();
        assert_eq!((all.len(), all[0].0.as_str()), (MOST, "256"));
    }
}
