//! From what the kernel holds and what is wanted to an ordered list of writes, or a refusal before the first one.
//!
//! Pure: nothing here touches a file. The order is such that nothing passes through a state which the kernel refuses or
//! which is larger than both the old and the new one.

use model::Kind;
use model::resources::{Bytes, LimitsPatch};

use crate::knob::{Knob, Unreadable, Values};
use crate::layout::Version;
use crate::{v1, v2};

/// One step of a change, and the step back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub knob: Knob,
    pub had: String,
    pub want: String,
}

/// Why a change cannot be made here; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{field} needs the {} controller, and this host offers no {knob}", knob.controller())]
    Missing { field: &'static str, knob: Knob },
    #[error(
        "memory and swap together are limited to {memory_swap} bytes, less than the {memory} bytes of memory alone"
    )]
    SwapBelowMemory { memory: Limit, memory_swap: Bytes },
    #[error("the memory limit of {limit} bytes is below the current usage of {usage} bytes")]
    BelowUsage { limit: Bytes, usage: Bytes },
    #[error("unified settings ({}) need cgroup v2, and this host has v1", .0.join(", "))]
    UnifiedOnV1(Vec<String>),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// A limit in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<Bytes>);

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(bytes) => bytes.fmt(f),
            None => f.write_str("unlimited"),
        }
    }
}

impl Refused {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Missing { .. } | Self::BelowUsage { .. } => Kind::Precondition,
            Self::SwapBelowMemory { .. } | Self::UnifiedOnV1(_) => Kind::Invalid,
            Self::Unreadable(_) => Kind::Internal,
        }
    }
}

/// The knobs whose values [`plan`] needs to know for this patch.
pub fn knobs(version: Version, patch: &LimitsPatch) -> Vec<Knob> {
    match version {
        Version::V1 => v1::knobs(patch),
        Version::V2 => v2::knobs(patch),
    }
}

/// Orders the writes that turn `now` into what `patch` wants; what is so already is not written.
///
/// `oom_score_adj` is a matter of processes and is left to those who hold them. On v1 any `unified` entry is refused: a
/// caller that may only warn, as at an update, takes them out of the patch first.
pub fn plan(version: Version, now: &Values, patch: &LimitsPatch) -> Result<Vec<Write>, Refused> {
    let mut draft = Draft { now, writes: Vec::new() };
    match version {
        Version::V1 => v1::plan(&mut draft, patch)?,
        Version::V2 => v2::plan(&mut draft, patch)?,
    }
    Ok(draft.writes)
}

/// A plan in the making.
pub(crate) struct Draft<'a> {
    now: &'a Values,
    writes: Vec<Write>,
}

impl Draft<'_> {
    pub(crate) fn now(&self, knob: &Knob) -> Option<&str> {
        self.now.get(knob).map(String::as_str)
    }

    /// The value of a knob that `field` cannot do without.
    pub(crate) fn need(&self, field: &'static str, knob: &Knob) -> Result<&str, Refused> {
        self.now(knob).ok_or_else(|| Refused::Missing { field, knob: knob.clone() })
    }

    /// The limit in force in a knob that `field` cannot do without.
    pub(crate) fn limit(&self, field: &'static str, knob: &Knob) -> Result<Option<Bytes>, Refused> {
        Ok(knob.limit(self.need(field, knob)?)?)
    }

    /// Adds a write, unless it would change nothing. A later write to the same knob takes the place of an earlier one.
    pub(crate) fn set(&mut self, field: &'static str, knob: Knob, want: impl Into<String>) -> Result<(), Refused> {
        let had = self.need(field, &knob)?.to_owned();
        let want = want.into();
        self.writes.retain(|write| write.knob != knob);
        if !knob.same(&had, &want) {
            self.writes.push(Write { knob, had, want });
        }
        Ok(())
    }
}
