//! Plans a change: from the kernel's values and a patch to an ordered list of writes, or a refusal
//! before the first write.
//!
//! Pure: nothing here accesses a file. No step is a state that the kernel refuses, or larger than
//! both the old and the new value. Steps that may be refused come before those that cannot be
//! undone easily: memory is lowered first and raised last.

use model::resources::{Bytes, LimitsPatch};
use model::{ErrorClass, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::layout::Version;
use crate::limits::knob::{AppliedValue, AppliedValues, Knob, Unreadable, Values};
use crate::limits::value::KnobValue;
use crate::limits::{memory_shrink, v1, v2};

/// One write, with the value that undoes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WriteText")]
pub struct Write {
    pub knob: Knob,
    pub had: KnobValue,
    pub want: KnobValue,
}

/// A write in a journal: its values are texts, which the knob parses.
#[derive(Deserialize)]
struct WriteText {
    knob: Knob,
    had: String,
    want: String,
}

impl From<WriteText> for Write {
    fn from(WriteText { knob, had, want }: WriteText) -> Self {
        let (had, want) = (knob.value(had), knob.value(want));
        Self { knob, had, want }
    }
}

/// A planned change: the writes, and the current values of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// In the order of writing. A file may occur twice.
    pub writes: Vec<Write>,
    /// Every file of the change, also those that need no write.
    pub wanted: AppliedValues,
}

/// Why a change cannot be made on this host; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{field} requires the cgroup controller {}: this host has no {knob}", knob.controller())]
    Missing { field: &'static str, knob: Knob },
    #[error("limit of memory plus swap ({memory_swap} bytes) must be at least the memory limit ({memory})")]
    SwapBelowMemory { memory: Limit, memory_swap: Bytes },
    #[error("unified settings ({}) require cgroup v2: this host has cgroup v1", .0.join(", "))]
    UnifiedOnV1(Vec<String>),
    #[error("{field}: {want:?} is not a valid limit for the cgroup file {knob}")]
    NoLimit { field: &'static str, knob: Knob, want: String },
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// A limit in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<Bytes>);

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} bytes"),
            None => f.write_str("unlimited"),
        }
    }
}

impl ErrorClass for PlanError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } => ErrorKind::Precondition,
            Self::SwapBelowMemory { .. } | Self::UnifiedOnV1(_) | Self::NoLimit { .. } => ErrorKind::Invalid,
            Self::Unreadable(_) => ErrorKind::Internal,
        }
    }
}

impl Write {
    /// Returns the write that undoes this one.
    #[must_use]
    pub fn back(&self) -> Write {
        Write { knob: self.knob.clone(), had: self.want.clone(), want: self.had.clone() }
    }

    /// Returns the new limit if this write lowers a memory limit.
    pub(crate) fn lowered_memory(&self) -> Option<Bytes> {
        let had = self.had.limit()?;
        let want = self.want.limit()??;
        (self.knob.is_memory_limit() && had.is_none_or(|had| want < had)).then_some(want)
    }

    /// The position of this write in a change. Memory must never exceed memory and swap, and a
    /// raised limit whose memory is in use cannot be undone, so no write that may fail comes after
    /// it.
    fn rank(&self) -> u8 {
        let both = self.knob == Knob::MEMSW_LIMIT;
        match (self.knob.is_memory_limit(), self.lowered_memory().is_some()) {
            (true, true) => u8::from(both),
            (false, _) => 2,
            (true, false) => 4 - u8::from(both),
        }
    }
}

impl Change {
    /// Whether the kernel has all values already.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Whether no write waits: lowering memory may wait for reclaim, and shrinking a cpuset for
    /// CPUs to be freed.
    pub fn is_quick(&self) -> bool {
        let quick = |write: &Write| match write.knob.controller() {
            "cpu" => true,
            "memory" => write.knob.is_memory_limit() && write.lowered_memory().is_none(),
            _ => false,
        };
        self.writes.iter().all(quick)
    }

    /// Returns the change that undoes this one: each file gets the value it had before the first
    /// write.
    #[must_use]
    pub fn reversed(&self) -> Change {
        let mut change = Change::default();
        for write in self.writes.iter().rev().map(Write::back) {
            let had = change.writes.iter().position(|later| later.knob == write.knob);
            let had = had.map_or_else(|| write.had.clone(), |at| change.writes.remove(at).had);
            let setting =
                AppliedValue { written: write.want.text().to_owned(), read_back: write.want.text().to_owned() };
            change.wanted.insert(write.knob.clone(), setting);
            change.writes.push(Write { had, ..write });
        }
        change
    }
}

/// Returns the knobs whose values [`plan`] needs for this patch.
pub fn knobs(version: Version, patch: &LimitsPatch) -> Vec<Knob> {
    match version {
        Version::V1 => v1::knobs(patch),
        Version::V2 => v2::knobs(patch),
    }
}

/// Orders the writes that change `now` to the values of `patch`; values that are equal already are
/// not written. The caller applies `oom_score_adj`. On v1 any `unified` entry is refused; an
/// update, which only warns about them, removes them from the patch first.
pub fn plan(version: Version, now: &Values, patch: &LimitsPatch) -> Result<Change, PlanError> {
    let mut draft = PlanBuilder { now, change: Change::default() };
    match version {
        Version::V1 => v1::plan(&mut draft, patch)?,
        Version::V2 => v2::plan(&mut draft, patch)?,
    }
    let mut change = draft.change;
    change.writes.sort_by_key(Write::rank);
    if version == Version::V2 {
        memory_shrink::insert_memory_high_steps(&mut change, now)?;
    }
    Ok(change)
}

/// A plan that is being built.
pub(crate) struct PlanBuilder<'a> {
    now: &'a Values,
    change: Change,
}

impl PlanBuilder<'_> {
    pub(crate) fn now(&self, knob: &Knob) -> Option<&KnobValue> {
        self.now.get(knob)
    }

    /// Returns the value of a knob that `field` requires.
    pub(crate) fn need(&self, field: &'static str, knob: &Knob) -> Result<&KnobValue, PlanError> {
        self.now(knob).ok_or_else(|| PlanError::Missing { field, knob: knob.clone() })
    }

    /// Returns the active limit of a knob that `field` requires.
    pub(crate) fn limit(&self, field: &'static str, knob: &Knob) -> Result<Option<Bytes>, PlanError> {
        Ok(knob.limit(self.need(field, knob)?)?)
    }

    /// Adds a write unless it would change nothing. A later write to the same knob replaces an
    /// earlier one.
    pub(crate) fn set(&mut self, field: &'static str, knob: Knob, want: impl Into<String>) -> Result<(), PlanError> {
        let had = self.need(field, &knob)?.clone();
        let want = knob.value(want);
        if knob.is_memory_limit() && want.limit().is_none() {
            return Err(PlanError::NoLimit { field, knob, want: want.to_string() });
        }
        self.change.writes.retain(|write| write.knob != knob);
        let applied = AppliedValue { written: want.to_string(), read_back: had.to_string() };
        self.change.wanted.insert(knob.clone(), applied);
        if !knob.same(&had, &want) {
            self.change.writes.push(Write { knob, had, want });
        }
        Ok(())
    }
}
