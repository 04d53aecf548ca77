//! Lists with a key per element.

use std::collections::BTreeMap;

/// Values and removals by key, in the order of their last change.
#[derive(Debug, Clone)]
pub(super) struct Keyed<T> {
    entries: BTreeMap<String, (usize, Option<T>)>,
    changes: usize,
}

impl<T> Default for Keyed<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), changes: 0 }
    }
}

impl<T> Keyed<T> {
    /// Sets a key, or removes it.
    pub(super) fn put(&mut self, key: String, value: Option<T>) {
        self.changes += 1;
        self.entries.insert(key, (self.changes, value));
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the keys in order; the value of a removed key is `None`.
    pub(super) fn in_order(&self) -> Vec<(&str, Option<&T>)> {
        let mut all: Vec<_> = self.entries.iter().collect();
        all.sort_by_key(|(_, (position, _))| *position);
        all.into_iter().map(|(key, (_, value))| (key.as_str(), value.as_ref())).collect()
    }

    /// Reads a list of an answer: a key with a leading `-` is a removal, and counts before the
    /// values wherever it stands. The last value of a key counts.
    pub(super) fn of_answer(items: impl IntoIterator<Item = (String, T)>) -> Answer<T> {
        let (mut removed, mut set) = (Vec::new(), Self::default());
        for (key, value) in items {
            match key.strip_prefix('-') {
                Some(key) => removed.push(key.to_owned()),
                None => set.put(key, Some(value)),
            }
        }
        Answer { removed, set }
    }
}

/// The removals and values of one answer.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) removed: Vec<String>,
    pub(super) set: Keyed<T>,
}

/// Applies changes to a list: removes the elements of all their keys, and appends the new ones.
pub(super) fn replace<T: Clone>(list: &mut Vec<T>, changes: &Keyed<T>, key: impl Fn(&T) -> String) {
    if changes.is_empty() {
        return;
    }
    list.retain(|element| !changes.has(&key(element)));
    list.extend(changes.in_order().into_iter().filter_map(|(_, value)| value.cloned()));
}
