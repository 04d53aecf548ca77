//! Counts and durations of calls of plugins, for metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use model::metrics::histogram::Histogram;
use sync::Mutex;

use super::plugin::error::{PluginError, Verb};

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];
/// The maximum number of operations that are counted separately: configurations may change for years.
const OPERATIONS_MAX: usize = 128;
/// The network and plugin of all others.
const OTHER: &str = "other";

/// A verb of one plugin of one network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    /// In capitals, as in `CNI_COMMAND`.
    pub verb: &'static str,
    pub network: String,
    pub plugin: String,
}

/// The calls of an [`Operation`].
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    pub succeeded: u64,
    pub failed: u64,
    /// Killed because of the time limit.
    pub timed_out: u64,
    pub durations: Histogram,
}

/// All calls since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct Operations(Mutex<BTreeMap<Operation, Calls>>);

impl Operations {
    pub(crate) fn note<T>(
        &self,
        verb: Verb,
        network: &str,
        plugin: &str,
        duration: Duration,
        outcome: &Result<T, PluginError>,
    ) {
        let operation = |network: &str, plugin: &str| {
            let (network, plugin) = (network.to_owned(), plugin.to_owned());
            Operation { verb: verb.as_str(), network, plugin }
        };
        let mut all = self.0.lock();
        let mut this = operation(network, plugin);
        if all.len() >= OPERATIONS_MAX && !all.contains_key(&this) {
            this = operation(OTHER, OTHER);
        }
        let calls = all.entry(this).or_insert_with(|| Calls {
            succeeded: 0,
            failed: 0,
            timed_out: 0,
            durations: Histogram::new(&BOUNDS),
        });
        calls.durations.note(duration);
        match outcome {
            Ok(_) => calls.succeeded += 1,
            // Nothing is left to remove.
            Err(error) if verb == Verb::Del && error.is_unknown_container() => calls.succeeded += 1,
            Err(PluginError::Late { .. }) => calls.timed_out += 1,
            Err(_) => calls.failed += 1,
        }
    }

    pub(crate) fn all(&self) -> BTreeMap<Operation, Calls> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late() -> Result<(), PluginError> {
        let (plugin, limit) = ("bridge".to_owned(), Duration::from_secs(1));
        Err(PluginError::Late { plugin, verb: Verb::Add, limit, stderr: String::new() })
    }

    fn refused(code: u64) -> Result<(), PluginError> {
        let (plugin, msg) = ("bridge".to_owned(), "no".to_owned());
        Err(PluginError::Refused { plugin, verb: Verb::Del, code, msg, details: String::new(), stderr: String::new() })
    }

    #[test]
    fn calls_are_counted_by_verb_network_plugin_and_outcome() {
        let operations = Operations::default();
        let took = Duration::from_millis(7);
        operations.note(Verb::Add, "net", "bridge", took, &Ok(()));
        operations.note(Verb::Add, "net", "bridge", took, &late());
        operations.note(Verb::Del, "net", "bridge", took, &refused(3));
        operations.note(Verb::Del, "net", "bridge", took, &refused(7));
        let all = operations.all();
        let of = |verb| &all[&Operation { verb, network: "net".to_owned(), plugin: "bridge".to_owned() }];
        assert_eq!((of("ADD").succeeded, of("ADD").failed, of("ADD").timed_out), (1, 0, 1));
        assert_eq!((of("DEL").succeeded, of("DEL").failed, of("DEL").timed_out), (1, 1, 0));
        assert_eq!((of("ADD").durations.count(), of("ADD").durations.sum()), (2, took * 2));
    }

    #[test]
    fn the_number_of_counted_networks_is_bounded() {
        let operations = Operations::default();
        for number in 0..OPERATIONS_MAX * 2 {
            operations.note(Verb::Add, &format!("net{number}"), "bridge", Duration::ZERO, &Ok(()));
        }
        let all = operations.all();
        assert_eq!(all.len(), OPERATIONS_MAX + 1);
        let others = Operation { verb: "ADD", network: OTHER.to_owned(), plugin: OTHER.to_owned() };
        assert_eq!(all[&others].succeeded, u64::try_from(OPERATIONS_MAX).unwrap());
    }
}
