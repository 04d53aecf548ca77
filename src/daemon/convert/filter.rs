//! Filters of list requests: converts them, and matches pods and containers.

use std::collections::BTreeMap;
use std::sync::Arc;

use cri_api::v1;

use super::{FieldPath, InvalidField, status};
use crate::store::{ContainerRecord, PodRecord};

/// A filter of pods: all conditions that are set must hold.
#[derive(Debug)]
pub(crate) struct PodFilter {
    id: String,
    state: Option<v1::PodSandboxState>,
    labels: BTreeMap<String, String>,
}

/// A filter of containers: all conditions that are set must hold.
#[derive(Debug)]
pub(crate) struct ContainerFilter {
    id: String,
    pod: String,
    state: Option<v1::ContainerState>,
    labels: BTreeMap<String, String>,
}

pub(crate) fn pods(asked: Option<v1::PodSandboxFilter>) -> Result<PodFilter, InvalidField> {
    let v1::PodSandboxFilter { id, state, label_selector: labels } = asked.unwrap_or_default();
    let at = FieldPath::top("filter.state.state");
    let state = state.map(|v1::PodSandboxStateValue { state }| at.known(state)).transpose()?;
    Ok(PodFilter { id, state, labels })
}

pub(crate) fn containers(asked: Option<v1::ContainerFilter>) -> Result<ContainerFilter, InvalidField> {
    let v1::ContainerFilter { id, state, pod_sandbox_id: pod, label_selector: labels } = asked.unwrap_or_default();
    let at = FieldPath::top("filter.state.state");
    let state = state.map(|v1::ContainerStateValue { state }| at.known(state)).transpose()?;
    Ok(ContainerFilter { id, pod, state, labels })
}

/// Filters of stats have no state: stats exist for what is running.
pub(crate) fn pod_stats(asked: Option<v1::PodSandboxStatsFilter>) -> PodFilter {
    let v1::PodSandboxStatsFilter { id, label_selector: labels } = asked.unwrap_or_default();
    PodFilter { id, state: None, labels }
}

pub(crate) fn container_stats(asked: Option<v1::ContainerStatsFilter>) -> ContainerFilter {
    let v1::ContainerStatsFilter { id, pod_sandbox_id: pod, label_selector: labels } = asked.unwrap_or_default();
    ContainerFilter { id, pod, state: None, labels }
}

impl PodFilter {
    pub(crate) fn apply(&self, all: Vec<Arc<PodRecord>>) -> Vec<Arc<PodRecord>> {
        let Some(id) = normalize_id(&self.id, all.iter().map(|pod| pod.id.as_str())) else { return Vec::new() };
        let wanted = |pod: &PodRecord| {
            id.is(pod.id.as_str())
                && self.state.is_none_or(|state| state == status::pod_state(pod.state))
                && selected(&pod.spec.labels, &self.labels)
        };
        all.iter().filter(|pod| wanted(pod)).cloned().collect()
    }
}

impl ContainerFilter {
    pub(crate) fn apply(&self, all: Vec<Arc<ContainerRecord>>) -> Vec<Arc<ContainerRecord>> {
        let id = normalize_id(&self.id, all.iter().map(|container| container.id.as_str()));
        let pod = normalize_id(&self.pod, all.iter().map(|container| container.pod.as_str()));
        let (Some(id), Some(pod)) = (id, pod) else { return Vec::new() };
        let wanted = |container: &ContainerRecord| {
            id.is(container.id.as_str())
                && pod.is(container.pod.as_str())
                && self.state.is_none_or(|state| state == status::container_state(&container.state))
                && selected(&container.spec.labels, &self.labels)
        };
        all.iter().filter(|container| wanted(container)).cloned().collect()
    }
}

/// The IDs that a filter matches.
#[derive(Debug, PartialEq, Eq)]
enum IdFilter<'a> {
    Any,
    One(&'a str),
}

impl IdFilter<'_> {
    fn is(&self, id: &str) -> bool {
        match self {
            Self::Any => true,
            Self::One(one) => *one == id,
        }
    }
}

/// Returns the only ID that starts with `text`; `None` if there are none or several.
fn normalize_id<'a>(text: &str, ids: impl Iterator<Item = &'a str>) -> Option<IdFilter<'a>> {
    if text.is_empty() {
        return Some(IdFilter::Any);
    }
    let mut found = None;
    for id in ids.filter(|id| id.starts_with(text)) {
        if found.is_some_and(|other| other != id) {
            return None;
        }
        found = Some(id);
    }
    found.map(IdFilter::One)
}

/// Returns true if `labels` has every pair of `selector`.
fn selected(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use model::{ContainerId, ContainerState, PodId, PodState};

    use super::super::tests::support;
    use super::*;

    fn pod(byte: u8, phase: PodState, app: &str) -> Arc<PodRecord> {
        let mut record = support::pod_record();
        record.id = PodId::from_bytes([byte; 32]);
        record.state = phase;
        record.spec.labels = [("app".to_owned(), app.to_owned()), ("x".to_owned(), "y".to_owned())].into();
        Arc::new(record)
    }

    fn container(byte: u8, pod: u8, phase: ContainerState) -> Arc<ContainerRecord> {
        let mut record = support::container_record();
        record.id = ContainerId::from_bytes([byte; 32]);
        record.pod = PodId::from_bytes([pod; 32]);
        record.state = phase;
        Arc::new(record)
    }

    fn found(id: &str, state: Option<i32>, labels: &[(&str, &str)]) -> Vec<String> {
        let all =
            vec![pod(0x11, PodState::Ready, "a"), pod(0x12, PodState::NotReady, "a"), pod(0x21, PodState::Ready, "b")];
        let filter = pods(Some(v1::PodSandboxFilter {
            id: id.to_owned(),
            state: state.map(|state| v1::PodSandboxStateValue { state }),
            label_selector: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        }));
        filter.unwrap().apply(all).iter().map(|pod| pod.id.as_str()[..2].to_owned()).collect()
    }

    #[test]
    fn pods_are_found_by_id_state_and_labels() {
        assert_eq!(found("", None, &[]), ["11", "12", "21"]);
        assert_eq!(found(&"11".repeat(32), None, &[]), ["11"]);
        assert_eq!(found("2", None, &[]), ["21"]);
        assert_eq!(found("", Some(0), &[]), ["11", "21"]);
        assert_eq!(found("", Some(1), &[]), ["12"]);
        assert_eq!(found("", None, &[("app", "a"), ("x", "y")]), ["11", "12"]);
        assert_eq!(found("", Some(0), &[("app", "a")]), ["11"]);
    }

    #[test]
    fn no_match_or_an_ambiguous_id_gives_an_empty_list() {
        for (id, labels) in [("1", &[][..]), ("ff", &[]), ("", &[("app", "c")]), ("", &[("none", "")])] {
            assert!(found(id, None, labels).is_empty(), "{id} {labels:?}");
        }
    }

    #[test]
    fn containers_are_found_by_pod_and_state_too() {
        let created = ContainerState::Created { pid: std::num::NonZeroU32::MIN };
        let exit = model::Exit { code: 0, at: std::time::SystemTime::UNIX_EPOCH, oom: false, abnormal: None };
        let exited = ContainerState::Exited { started: None, exit };
        let all =
            vec![container(0x11, 0xa1, created.clone()), container(0x12, 0xa1, exited), container(0x21, 0xa2, created)];
        let found = |id: &str, pod: &str, state: Option<i32>| {
            let filter = containers(Some(v1::ContainerFilter {
                id: id.to_owned(),
                pod_sandbox_id: pod.to_owned(),
                state: state.map(|state| v1::ContainerStateValue { state }),
                label_selector: BTreeMap::new(),
            }));
            let list = filter.unwrap().apply(all.clone());
            list.iter().map(|container| container.id.as_str()[..2].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found("", "", None), ["11", "12", "21"]);
        assert_eq!(found("", "a1", None), ["11", "12"]);
        assert_eq!(found("", "a", None), [""; 0]);
        assert_eq!(found("", "a1", Some(2)), ["12"]);
        assert_eq!(found("", "a1", Some(3)), [""; 0], "CONTAINER_UNKNOWN");
        assert_eq!(found("11", "a2", None), [""; 0]);
        assert_eq!(found("2", "", Some(0)), ["21"]);
    }

    #[test]
    fn stats_are_filtered_by_the_same_rules() {
        let all = vec![pod(0x11, PodState::Ready, "a"), pod(0x21, PodState::NotReady, "b")];
        let found = |id: &str, labels: &[(&str, &str)]| {
            let filter =
                pod_stats(Some(v1::PodSandboxStatsFilter { id: id.to_owned(), label_selector: support::map(labels) }));
            filter.apply(all.clone()).iter().map(|pod| pod.id.as_str()[..2].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found("", &[]), ["11", "21"]);
        assert_eq!(found("2", &[]), ["21"]);
        assert_eq!(found("", &[("app", "a")]), ["11"]);
        assert_eq!(found("2", &[("app", "a")]), [""; 0]);
        assert_eq!(pod_stats(None).apply(all.clone()).len(), 2);
        let created = ContainerState::Created { pid: std::num::NonZeroU32::MIN };
        let all = vec![container(0x11, 0xa1, created.clone()), container(0x21, 0xa2, created)];
        let found = |id: &str, pod: &str, labels: &[(&str, &str)]| {
            let filter = container_stats(Some(v1::ContainerStatsFilter {
                id: id.to_owned(),
                pod_sandbox_id: pod.to_owned(),
                label_selector: support::map(labels),
            }));
            let list = filter.apply(all.clone());
            list.iter().map(|container| container.id.as_str()[..2].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found("", "", &[]), ["11", "21"]);
        assert_eq!(found("1", "", &[]), ["11"]);
        assert_eq!(found("", "a2", &[]), ["21"]);
        assert_eq!(found("1", "a2", &[]), [""; 0]);
        assert_eq!(found("", "", &[("none", "")]), [""; 0]);
        assert_eq!(container_stats(None).apply(all.clone()).len(), 2);
    }

    #[test]
    fn an_unknown_state_is_refused() {
        let filter = v1::PodSandboxFilter { state: Some(v1::PodSandboxStateValue { state: 7 }), ..Default::default() };
        assert_eq!(pods(Some(filter)).unwrap_err().to_string(), "filter.state.state: 7 is not a known value");
    }
}
