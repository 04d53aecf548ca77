//! Disables swap for a container with a memory limit and no swap limit.
//!
//! Without a swap limit the container could swap without bound. So it cannot swap at all, as with
//! containerd and CRI-O; a request must set swap explicitly.

use model::resources::{LimitsPatch, MemoryLimit};

use crate::cgroup::Cgroup;
use crate::limits::knob::{CgroupFs as _, Knob};

impl Cgroup {
    /// Returns `asked` with its memory limit as the limit of memory and swap, if neither it nor
    /// `had`, the earlier requests, sets swap. Unchanged on hosts without swap accounting.
    pub fn without_unasked_swap(&self, had: &LimitsPatch, asked: &LimitsPatch) -> LimitsPatch {
        let mut limits = asked.clone();
        if let Some(limit) = unasked_swap(had, asked)
            && [Knob::MEMSW_LIMIT, Knob::SWAP_MAX].iter().any(|knob| self.location(knob).exists())
        {
            limits.memory_swap = Some(limit);
        }
        limits
    }
}

/// Returns the limit of memory and swap that follows from that of memory; `None` if a request sets swap.
fn unasked_swap(had: &LimitsPatch, asked: &LimitsPatch) -> Option<MemoryLimit> {
    let names_swap = |limits: &LimitsPatch| {
        limits.memory_swap.is_some() || limits.unified.keys().any(|key| key.as_str() == Knob::SWAP_MAX.file())
    };
    if names_swap(asked) || names_swap(had) {
        return None;
    }
    let limited = |limits: &LimitsPatch| limits.memory.is_some_and(|memory| memory.bytes().is_some());
    // The container's limit covered both: they are lifted together.
    asked.memory.filter(|_| limited(asked) || limited(had))
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, UnifiedKey};

    use super::*;

    fn bytes(bytes: u64) -> MemoryLimit {
        MemoryLimit::Bytes(Bytes(bytes))
    }

    fn limits(memory: Option<MemoryLimit>, memory_swap: Option<MemoryLimit>) -> LimitsPatch {
        LimitsPatch { memory, memory_swap, ..LimitsPatch::default() }
    }

    #[test]
    fn a_limit_on_memory_alone_allows_no_swap() {
        let nothing = LimitsPatch::default();
        let memory = |limit| limits(Some(limit), None);
        assert_eq!(unasked_swap(&nothing, &memory(bytes(7))), Some(bytes(7)));
        assert_eq!(unasked_swap(&memory(bytes(7)), &memory(bytes(9))), Some(bytes(9)));
        assert_eq!(unasked_swap(&memory(bytes(7)), &memory(MemoryLimit::Unlimited)), Some(MemoryLimit::Unlimited));
        assert_eq!(unasked_swap(&nothing, &memory(MemoryLimit::Unlimited)), None);
        assert_eq!(unasked_swap(&memory(bytes(7)), &nothing), None);
    }

    #[test]
    fn swap_that_the_client_sets_is_kept() {
        let mut raw = limits(Some(bytes(7)), None);
        raw.unified.insert(UnifiedKey::new("memory.swap.max").unwrap(), "4096".to_owned());
        let both = limits(Some(bytes(7)), Some(bytes(9)));
        let memory = limits(Some(bytes(8)), None);
        for named in [raw, both] {
            assert_eq!(unasked_swap(&LimitsPatch::default(), &named), None);
            assert_eq!(unasked_swap(&named, &memory), None);
            assert_eq!(unasked_swap(&memory, &named), None);
        }
    }
}
