//! The resizes that a request for the history selects.

use model::PodId;

use super::entry::HistoryItem;
use super::{History, PodHistoryItem, PodName};
use crate::runtime::{LookupError, Runtime};
use crate::store::PodRecord;

/// Pods and containers whose resizes are selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HistorySelection {
    All,
    Pod(PodId),
    /// A container by name: its earlier attempts have other IDs.
    Container(PodId, String),
}

impl HistorySelection {
    pub(crate) fn has(&self, PodHistoryItem { pod, item }: &PodHistoryItem) -> bool {
        match self {
            Self::All => true,
            Self::Pod(id) => pod.id == *id,
            Self::Container(id, name) => pod.id == *id && is_of(item, name),
        }
    }
}

fn is_of(item: &HistoryItem, name: &str) -> bool {
    item.entry.container.as_ref().is_some_and(|container| container.name == name)
}

impl From<&PodRecord> for PodName {
    fn from(record: &PodRecord) -> Self {
        let meta = record.spec.meta.clone();
        Self { id: record.id.clone(), namespace: meta.namespace, name: meta.name, uid: meta.uid }
    }
}

impl Runtime {
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Returns the selection for the ID or ID prefix of a pod or container; all for an empty one.
    pub(crate) fn history_selection(&self, id: &str) -> Result<HistorySelection, LookupError> {
        if id.is_empty() {
            return Ok(HistorySelection::All);
        }
        if let Some(container) = self.containers.find(id)? {
            let record = container.get();
            return Ok(HistorySelection::Container(record.pod.clone(), record.spec.meta.name.clone()));
        }
        Ok(HistorySelection::Pod(self.pod(id)?.id.clone()))
    }

    /// Returns the kept resizes of the selection, the oldest first for each pod.
    pub(crate) fn kept_resizes(&self, selection: &HistorySelection) -> Vec<PodHistoryItem> {
        let pods = self.pods().into_iter().filter(|pod| match selection {
            HistorySelection::All => true,
            HistorySelection::Pod(id) | HistorySelection::Container(id, _) => pod.id == *id,
        });
        let items = pods.flat_map(|pod| {
            let name = PodName::from(&*pod);
            let items = self.history.read(&pod.id, self.pod_dir(&pod.id));
            items.into_iter().map(move |item| PodHistoryItem { pod: name.clone(), item })
        });
        items.filter(|item| selection.has(item)).collect()
    }
}
