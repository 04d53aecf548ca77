//! Names that are unique among pods or containers.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use model::{ErrorClass, ErrorKind};
use sync::Mutex;

/// The name is in use.
#[derive(Debug, thiserror::Error)]
#[error("name {name} is already used by the pod or container {owner}: remove that first")]
pub(crate) struct NameTaken {
    pub(crate) name: String,
    pub(crate) owner: String,
}

impl ErrorClass for NameTaken {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Exists
    }
}

/// Names and the IDs of their owners.
#[derive(Debug)]
pub(crate) struct Names<N>(Arc<Mutex<HashMap<N, String>>>);

impl<N> Default for Names<N> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// A reserved name of something that does not exist yet. Dropping it frees the name, so that no
/// reservation outlives its request.
#[derive(Debug)]
#[must_use = "dropping it frees the name"]
pub(crate) struct ReservedName<N: Hash + Eq> {
    names: Arc<Mutex<HashMap<N, String>>>,
    name: Option<N>,
}

impl<N: Hash + Eq + Clone> Names<N> {
    /// Reserves a name; `shown` formats it for the error.
    pub(crate) fn reserve(
        &self,
        name: N,
        shown: impl FnOnce(&N) -> String,
        owner: &str,
    ) -> Result<ReservedName<N>, NameTaken> {
        let mut names = self.0.lock();
        if let Some(other) = names.get(&name) {
            return Err(NameTaken { name: shown(&name), owner: other.clone() });
        }
        names.insert(name.clone(), owner.to_owned());
        Ok(ReservedName { names: self.0.clone(), name: Some(name) })
    }

    /// Frees the name of a removed owner; does nothing if another owner has it.
    pub(crate) fn release(&self, name: &N, owner: &str) {
        let mut names = self.0.lock();
        if names.get(name).is_some_and(|has| has == owner) {
            names.remove(name);
        }
    }
}

impl<N: Hash + Eq> ReservedName<N> {
    /// Keeps the name until [`Names::release`], because its owner exists now.
    pub(crate) fn keep(mut self) {
        self.name = None;
    }
}

impl<N: Hash + Eq> Drop for ReservedName<N> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.names.lock().remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_ends_with_its_request() {
        let names = Names::default();
        let first = names.reserve("a", |name| (*name).to_owned(), "1").unwrap();
        assert_eq!(names.reserve("a", |name| (*name).to_owned(), "2").unwrap_err().owner, "1");
        drop(first);
        names.reserve("a", |name| (*name).to_owned(), "3").unwrap().keep();
        assert_eq!(names.reserve("a", |name| (*name).to_owned(), "4").unwrap_err().owner, "3");
        names.release(&"a", "1");
        assert_eq!(
            names.reserve("a", |name| (*name).to_owned(), "4").unwrap_err().owner,
            "3",
            "the name is another's by now"
        );
        names.release(&"a", "3");
        drop(names.reserve("a", |name| (*name).to_owned(), "5").unwrap());
    }
}
