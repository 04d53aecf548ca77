//! A finished resize: the record from which the log line, the metrics and the history are made.

use std::time::{Duration, SystemTime};

use cgroup::{AppliedValues, Change, Knob, KnobValue};
use model::resources::{Bytes, OomScoreAdj};
use model::{ContainerId, PodId, PodMeta};

use super::caller::Caller;
use super::outcomes::Outcome;
use super::resources::{ResourceChange, resource_changes};

/// The pod or container that was resized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResizeTarget {
    pub(crate) pod: PodId,
    pub(crate) namespace: String,
    pub(crate) pod_name: String,
    pub(crate) uid: String,
    /// `None` if the pod itself was resized.
    pub(crate) container: Option<ContainerTarget>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ContainerTarget {
    pub(crate) id: ContainerId,
    pub(crate) name: String,
}

impl ResizeTarget {
    /// `meta` is missing if the pod was removed meanwhile.
    pub(crate) fn new(pod: PodId, meta: Option<PodMeta>, container: Option<ContainerTarget>) -> Self {
        let (namespace, pod_name, uid) = meta.map(|meta| (meta.namespace, meta.name, meta.uid)).unwrap_or_default();
        Self { pod, namespace, pod_name, uid, container }
    }

    pub(crate) fn kind(&self) -> &'static str {
        if self.container.is_some() { "container" } else { "pod" }
    }

    /// The ID of the container, or of the pod if it was resized itself.
    pub(crate) fn id(&self) -> &str {
        self.container.as_ref().map_or(self.pod.as_str(), |container| container.id.as_str())
    }
}

/// One file of a resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileChange {
    pub(crate) knob: Knob,
    /// The value in the kernel before the resize.
    pub(crate) old: KnobValue,
    /// The value read back from the kernel after the resize; the requested value if the resize was not applied.
    pub(crate) new: KnobValue,
}

/// A resize that was applied, refused, rolled back or left half done; not one that changed nothing.
#[derive(Debug, Clone)]
pub(crate) struct FinishedResize {
    pub(crate) began: SystemTime,
    pub(crate) duration: Duration,
    pub(crate) target: ResizeTarget,
    pub(crate) caller: Caller,
    /// A period that a changed v1 quota refers to is among them also if it is unchanged.
    pub(crate) files: Vec<FileChange>,
    /// The OOM score before and after, if it was to change.
    pub(crate) oom_score_adj: Option<(Option<OomScoreAdj>, OomScoreAdj)>,
    pub(crate) outcome: Outcome,
    /// The error of a resize that was not applied, with its causes.
    pub(crate) error: Option<String>,
    /// The decrease of the memory in use while a memory limit was lowered.
    pub(crate) reclaimed: Option<Bytes>,
}

impl FinishedResize {
    /// The changed resources, in the units of a pod spec.
    pub(crate) fn resources(&self) -> Vec<ResourceChange> {
        resource_changes(&self.files)
    }

    /// Logs the values of the resize. Its error is logged where its request ends.
    /// `resources` are the changed ones.
    pub(super) fn log(&self, resources: &[ResourceChange]) {
        let Self { duration, target, caller, oom_score_adj, outcome, reclaimed, .. } = self;
        let of =
            |name: &str| resources.iter().find(|change| change.resource.name() == name).map(ResourceChange::to_string);
        let named = ["cpu", "cpu_shares", "cpu_weight", "memory", "memory_swap", "cpuset_cpus", "cpuset_mems"];
        let [cpu, cpu_shares, cpu_weight, memory, memory_swap, cpuset_cpus, cpuset_mems] = named.map(of);
        let others: Vec<String> = resources
            .iter()
            .filter(|change| !named.contains(&change.resource.name()))
            .map(|change| format!("{}={change}", change.resource.name()))
            .collect();
        let other = (!others.is_empty()).then(|| others.join(" "));
        let oom_score_adj = oom_score_adj.map(|(old, new)| match old {
            Some(old) => format!("{}→{}", old.get(), new.get()),
            None => format!("→{}", new.get()),
        });
        let (result, reason) = outcome.words();
        macro_rules! line {
            ($level:ident, $message:literal, $outcome:expr) => {
                tracing::$level!(
                    kind = target.kind(),
                    id = target.id(),
                    name = target.container.as_ref().map(|container| container.name.as_str()),
                    cpu,
                    cpu_shares,
                    cpu_weight,
                    memory,
                    memory_swap,
                    cpuset_cpus,
                    cpuset_mems,
                    oom_score_adj,
                    other,
                    caller = %caller,
                    caller_trace = caller.trace,
                    outcome = $outcome,
                    reason,
                    reclaimed_bytes = reclaimed.map(|Bytes(bytes)| bytes),
                    duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
                    $message
                )
            };
        }
        match result {
            "applied" => line!(info, "resized", None::<&str>),
            "rollback_failed" => line!(warn, "resize left half done", Some(result)),
            _ => line!(info, "not resized", Some(result)),
        }
    }
}

/// Returns the files of a change with their values before, and with those in `read_back`, or the requested ones
/// without it. `known` has the values of earlier resizes.
pub(super) fn file_changes(
    change: &Change,
    known: &AppliedValues,
    read_back: Option<&AppliedValues>,
) -> Vec<FileChange> {
    let mut files: Vec<FileChange> = Vec::with_capacity(change.writes.len() + 1);
    for write in &change.writes {
        // A file that comes twice: the first write has the value before, the last one the value after.
        match files.iter_mut().find(|file| file.knob == write.knob) {
            Some(file) => file.new.clone_from(&write.want),
            None => {
                files.push(FileChange { knob: write.knob.clone(), old: write.had.clone(), new: write.want.clone() })
            }
        }
    }
    for file in &mut files {
        if let Some(applied) = read_back.and_then(|values| values.get(&file.knob)) {
            file.new = file.knob.value(applied.read_back.as_str());
        }
    }
    // Slowed down and back: `memory.high` around a lower limit.
    files.retain(|file| !file.knob.same(&file.old, &file.new));
    let has = |knob: &Knob| files.iter().any(|file| file.knob == *knob);
    if has(&Knob::CFS_QUOTA)
        && !has(&Knob::CFS_PERIOD)
        && let Some(period) = change.wanted.get(&Knob::CFS_PERIOD).or_else(|| known.get(&Knob::CFS_PERIOD))
    {
        let value = Knob::CFS_PERIOD.value(period.read_back.as_str());
        files.push(FileChange { knob: Knob::CFS_PERIOD, old: value.clone(), new: value });
    }
    files
}

#[cfg(test)]
mod tests {
    use cgroup::{AppliedValue, Write};

    use super::*;

    fn write(knob: Knob, had: &str, want: &str) -> Write {
        Write { had: knob.value(had), want: knob.value(want), knob }
    }

    fn shown(files: &[FileChange]) -> Vec<String> {
        files.iter().map(|FileChange { knob, old, new }| format!("{knob} {old} {new}")).collect()
    }

    fn applied(values: &[(Knob, &str)]) -> AppliedValues {
        let value = |text: &str| AppliedValue { written: "?".to_owned(), read_back: text.to_owned() };
        values.iter().map(|(knob, text)| (knob.clone(), value(text))).collect()
    }

    #[test]
    fn a_file_that_is_written_twice_is_one_change_and_none_if_it_ends_as_it_was() {
        let mut change = Change {
            writes: vec![
                write(Knob::MEMORY_HIGH, "max", "1048576"),
                write(Knob::MEMORY_MAX, "2097152", "1048577"),
                write(Knob::MEMORY_HIGH, "1048576", "max"),
            ],
            wanted: AppliedValues::new(),
        };
        let none = AppliedValues::new();
        assert_eq!(shown(&file_changes(&change, &none, None)), ["memory.max 2097152 1048577"]);
        let read_back = applied(&[(Knob::MEMORY_MAX, "1048576")]);
        assert_eq!(shown(&file_changes(&change, &none, Some(&read_back))), ["memory.max 2097152 1048576"]);
        change.writes[2].want = Knob::MEMORY_HIGH.value("4096");
        assert_eq!(shown(&file_changes(&change, &none, None)), ["memory.high max 4096", "memory.max 2097152 1048577"]);
    }

    #[test]
    fn a_quota_of_v1_comes_with_its_period() {
        let change = Change { writes: vec![write(Knob::CFS_QUOTA, "-1", "50000")], wanted: AppliedValues::new() };
        let known = applied(&[(Knob::CFS_PERIOD, "100000")]);
        let expected = ["cpu.cfs_quota_us -1 50000", "cpu.cfs_period_us 100000 100000"];
        assert_eq!(shown(&file_changes(&change, &known, None)), expected);
        assert_eq!(shown(&file_changes(&change, &AppliedValues::new(), None)), expected[..1]);
    }
}
