//! The entries of the history, as they are stored: one JSON object per line.

use std::time::{Duration, SystemTime};

use cgroup::Knob;
use model::resources::Bytes;
use serde::{Deserialize, Serialize};

use crate::runtime::resize::caller::Caller;
use crate::runtime::resize::finished::{ContainerTarget, FileChange, FinishedResize};
use crate::runtime::resize::resources::{ResourceChange, resource_changes};

/// Maximum bytes of an error and of a file's value; longer ones are truncated.
const TEXT_MAX: usize = 512;
/// Maximum files of an entry. A request can name any number in `unified`.
const FILES_MAX: usize = 32;
/// Maximum foreign writes that are noted with one entry.
pub(super) const DRIFT_MAX: usize = 8;

/// A finished resize.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HistoryEntry {
    /// Nanoseconds since 1970 when the resize began; identifies the entry in its pod.
    pub(crate) began_ns: u64,
    pub(crate) duration_us: u64,
    /// `None` for the pod itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<ContainerTarget>,
    pub(crate) caller: Caller,
    pub(crate) files: Vec<FileLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) oom_score_adj: Option<(Option<i16>, i16)>,
    /// The words of the metric, so that another release can read them.
    pub(crate) outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reclaimed_bytes: Option<u64>,
}

/// The old and new value of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileLine {
    pub(crate) file: Knob,
    pub(crate) old: String,
    pub(crate) new: String,
}

/// A value that another process wrote after the resize.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForeignWrite {
    pub(crate) at_ns: u64,
    pub(crate) file: Knob,
    /// `None` if the file no longer exists.
    pub(crate) found: Option<String>,
}

/// Facts found after a resize. Counts are totals, so a later line replaces an earlier one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaterFacts {
    /// The entry, by its `began_ns`.
    pub(crate) of: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) drift: Vec<ForeignWrite>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) oom_kills: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) throttled_periods: Option<u64>,
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Resize(HistoryEntry),
    Later(LaterFacts),
}

/// An entry with everything that was found later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HistoryItem {
    pub(crate) entry: HistoryEntry,
    pub(crate) drift: Vec<ForeignWrite>,
    pub(crate) oom_kills: u64,
    pub(crate) throttled_periods: u64,
}

impl HistoryEntry {
    pub(super) fn new(resize: &FinishedResize) -> Self {
        let FinishedResize { began, duration, target, caller, files, oom_score_adj, outcome, error, reclaimed } =
            resize;
        let (outcome, reason) = outcome.words();
        let line = |FileChange { knob, old, new }: &FileChange| FileLine {
            file: knob.clone(),
            old: truncated(old.text()),
            new: truncated(new.text()),
        };
        Self {
            began_ns: nanos(*began),
            duration_us: micros(*duration),
            container: target.container.clone(),
            caller: caller.clone(),
            files: files.iter().take(FILES_MAX).map(line).collect(),
            oom_score_adj: oom_score_adj.map(|(old, new)| (old.map(|old| old.get()), new.get())),
            outcome: outcome.to_owned(),
            reason: reason.map(str::to_owned),
            error: error.as_deref().map(truncated),
            reclaimed_bytes: reclaimed.map(|Bytes(bytes)| bytes),
        }
    }

    /// The changed resources, in the units of a pod spec.
    pub(crate) fn resources(&self) -> Vec<ResourceChange> {
        let file = |FileLine { file, old, new }: &FileLine| FileChange {
            old: file.value(old.as_str()),
            new: file.value(new.as_str()),
            knob: file.clone(),
        };
        resource_changes(&self.files.iter().map(file).collect::<Vec<_>>())
    }

    /// The container's ID, or `pod` for the pod itself.
    pub(super) fn target_id<'a>(&'a self, pod: &'a str) -> &'a str {
        self.container.as_ref().map_or(pod, |container| container.id.as_str())
    }
}

impl From<HistoryEntry> for HistoryItem {
    fn from(entry: HistoryEntry) -> Self {
        Self { entry, drift: Vec::new(), oom_kills: 0, throttled_periods: 0 }
    }
}

impl HistoryItem {
    pub(super) fn add(&mut self, later: LaterFacts) {
        let LaterFacts { of: _, drift, oom_kills, throttled_periods } = later;
        let room = DRIFT_MAX.saturating_sub(self.drift.len());
        self.drift.extend(drift.into_iter().take(room));
        self.oom_kills = oom_kills.unwrap_or(self.oom_kills);
        self.throttled_periods = throttled_periods.unwrap_or(self.throttled_periods);
    }
}

pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the text, cut at [`TEXT_MAX`] bytes.
pub(super) fn truncated(text: &str) -> String {
    if text.len() <= TEXT_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        assert_eq!(truncated("short"), "short");
        let text = truncated(&"é".repeat(TEXT_MAX));
        assert_eq!(text, format!("{}…", "é".repeat(TEXT_MAX / 2)));
        assert_eq!(truncated(&format!("x{}", "é".repeat(TEXT_MAX))).len(), TEXT_MAX - 1 + "…".len());
    }
}
