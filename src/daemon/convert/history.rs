//! The history of resizes in crisp.admin.v1.

use cri_api::admin;

use crate::runtime::{Caller, HistoryEntry, HistoryItem, PodHistoryItem};

pub(crate) fn resize(PodHistoryItem { pod, item }: &PodHistoryItem) -> admin::Resize {
    let HistoryItem { entry, drift, oom_kills, throttled_periods } = item;
    let HistoryEntry {
        began_ns,
        duration_us,
        container,
        caller: by,
        files,
        oom_score_adj,
        outcome,
        reason,
        error,
        reclaimed_bytes,
    } = entry;
    let mut resources: Vec<admin::ResourceChange> = entry
        .resources()
        .into_iter()
        .map(|change| admin::ResourceChange {
            resource: change.resource.name().to_owned(),
            old: change.old,
            new: change.new,
        })
        .collect();
    resources.extend(oom_score_adj.map(|(old, new)| admin::ResourceChange {
        resource: "oom_score_adj".to_owned(),
        old: old.map(|old| old.to_string()).unwrap_or_default(),
        new: new.to_string(),
    }));
    let file = |line: &crate::runtime::FileLine| admin::FileChange {
        file: line.file.to_string(),
        old: line.old.clone(),
        new: line.new.clone(),
    };
    let write = |write: &crate::runtime::ForeignWrite| admin::ForeignWrite {
        at_ns: write.at_ns,
        file: write.file.to_string(),
        found: write.found.clone().unwrap_or_default(),
    };
    let (container_id, container_name) =
        container.as_ref().map(|target| (target.id.to_string(), target.name.clone())).unwrap_or_default();
    admin::Resize {
        began_ns: *began_ns,
        duration_us: *duration_us,
        pod_id: pod.id.to_string(),
        pod_namespace: pod.namespace.clone(),
        pod_name: pod.name.clone(),
        pod_uid: pod.uid.clone(),
        container_id,
        container_name,
        caller: Some(caller(by)),
        resources,
        files: files.iter().map(file).collect(),
        outcome: outcome.clone(),
        reason: reason.clone().unwrap_or_default(),
        error: error.clone().unwrap_or_default(),
        reclaimed_bytes: *reclaimed_bytes,
        drift: drift.iter().map(write).collect(),
        oom_kills: *oom_kills,
        throttled_periods: *throttled_periods,
    }
}

fn caller(Caller { peer, trace, task }: &Caller) -> admin::Caller {
    admin::Caller {
        program: peer.as_ref().map(|peer| peer.program.clone()).unwrap_or_default(),
        pid: peer.as_ref().and_then(|peer| peer.pid).unwrap_or_default(),
        uid: peer.as_ref().map(|peer| peer.uid),
        trace_id: trace.clone().unwrap_or_default(),
        task: task.map(|task| task.as_str().to_owned()).unwrap_or_default(),
    }
}
