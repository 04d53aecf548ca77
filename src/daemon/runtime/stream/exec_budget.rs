//! Limits the ExecSync output that the daemon holds, and the number of commands that run in one
//! container.
//!
//! Each command keeps [`GUARANTEED`] bytes. Everything above that comes out of one total, of which
//! a pod has at most a quarter: containers whose probes print much cost other pods no output, and
//! the daemon no more memory than configured. A command without budget runs to its end, and the
//! rest of its output is dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{ContainerId, PodId};
use sync::Mutex;

/// More than the kubelet reads of the output of a probe.
const GUARANTEED: usize = 16 << 10;
/// The maximum number of commands of one container. A kubelet runs at most one per probe and hook.
pub(crate) const COMMANDS_MAX: usize = 64;
/// The part of the total that one pod can have.
const PODS: usize = 4;

/// The bytes that all commands hold.
#[derive(Debug, Default)]
pub(crate) struct ExecBudget {
    held: Mutex<Held>,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Held {
    /// Beyond the guaranteed bytes.
    total: usize,
    pods: HashMap<PodId, usize>,
    commands: HashMap<ContainerId, usize>,
}

/// The bytes that one command holds; released when this is dropped.
#[derive(Debug)]
pub(crate) struct ExecShare {
    budget: Arc<ExecBudget>,
    pod: PodId,
    container: ContainerId,
    limits: ExecLimits,
    kept: Mutex<Kept>,
}

/// Limits in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecLimits {
    /// For one command.
    pub(crate) each: usize,
    /// For all commands together.
    pub(crate) total: usize,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: usize,
    /// The bytes that would have been kept if the total had had room.
    dropped: usize,
    /// Nothing more is kept: later output would not follow the kept output.
    full: bool,
}

impl ExecBudget {
    /// Reserves a place for a command in `container`; `None` if too many run in it.
    pub(crate) fn share(
        self: &Arc<Self>,
        pod: &PodId,
        container: &ContainerId,
        limits: ExecLimits,
    ) -> Option<Arc<ExecShare>> {
        let mut held = self.held.lock();
        let commands = held.commands.entry(container.clone()).or_default();
        if *commands >= COMMANDS_MAX {
            return None;
        }
        *commands += 1;
        drop(held);
        let (budget, pod, container) = (Arc::clone(self), pod.clone(), container.clone());
        Some(Arc::new(ExecShare { budget, pod, container, limits, kept: Mutex::default() }))
    }

    /// Returns the bytes of output that were dropped because the total, or the part of a pod, was
    /// used up.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Takes as much of `wanted` as is available.
    fn take(&self, pod: &PodId, wanted: usize, total: usize) -> usize {
        let mut held = self.held.lock();
        let of_pod = held.pods.get(pod).copied().unwrap_or_default();
        let left = total.saturating_sub(held.total).min((total / PODS).saturating_sub(of_pod));
        let taken = wanted.min(left);
        if taken > 0 {
            held.total += taken;
            *held.pods.entry(pod.clone()).or_default() += taken;
        }
        taken
    }
}

impl ExecShare {
    /// Returns how many of the next `more` bytes are kept.
    pub(crate) fn keep(&self, more: usize) -> usize {
        let mut kept = self.kept.lock();
        let wanted = more.min(self.limits.each.saturating_sub(kept.bytes + kept.dropped));
        let granted = if kept.full {
            0
        } else {
            let free = GUARANTEED.saturating_sub(kept.bytes).min(wanted);
            free + self.budget.take(&self.pod, wanted - free, self.limits.total)
        };
        let dropped = wanted - granted;
        self.budget.dropped.fetch_add(u64::try_from(dropped).unwrap_or(u64::MAX), Ordering::Relaxed);
        kept.bytes += granted;
        kept.dropped += dropped;
        kept.full |= granted < more;
        granted
    }
}

impl Drop for ExecShare {
    fn drop(&mut self) {
        let taken = self.kept.lock().bytes.saturating_sub(GUARANTEED);
        let mut held = self.budget.held.lock();
        held.total -= taken;
        give_back(&mut held.pods, &self.pod, taken);
        give_back(&mut held.commands, &self.container, 1);
    }
}

/// Forgets pods and containers without commands.
fn give_back<K: Hash + Eq>(all: &mut HashMap<K, usize>, key: &K, used: usize) {
    if let Some(left) = all.get_mut(key) {
        *left = left.saturating_sub(used);
        if *left == 0 {
            all.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ExecLimits = ExecLimits { each: 1 << 20, total: 4 << 20 };

    fn pod(number: u8) -> PodId {
        PodId::from_bytes([number; 32])
    }

    fn container(number: u8) -> ContainerId {
        ContainerId::from_bytes([number; 32])
    }

    #[test]
    fn commands_keep_their_guaranteed_output_while_other_pods_use_the_total() {
        let budget = Arc::new(ExecBudget::default());
        let flood: Vec<_> = (0..40).map(|n| budget.share(&pod(n % 8), &container(n), LIMITS).unwrap()).collect();
        let kept: usize = flood.iter().map(|share| share.keep(2 << 20)).sum();
        assert_eq!(kept, (4 << 20) + 40 * GUARANTEED);
        let other = budget.share(&pod(100), &container(100), LIMITS).unwrap();
        assert_eq!((other.keep(10 << 10), other.keep(10 << 10)), (10 << 10, 6 << 10));
        assert_eq!(other.keep(1), 0);
        let dropped = 40 * (1 << 20) - kept + (4 << 10) + 1;
        assert_eq!(budget.dropped(), u64::try_from(dropped).unwrap(), "of what each could have kept");
        drop(flood);
        let again = budget.share(&pod(100), &container(100), LIMITS).unwrap();
        assert_eq!(again.keep(2 << 20), 1 << 20, "released bytes are available");
        assert_eq!(other.keep(1), 0, "no output with a hole in it");
    }

    #[test]
    fn one_pod_has_at_most_its_part_with_any_number_of_containers() {
        let budget = Arc::new(ExecBudget::default());
        let shares: Vec<_> = (0..9).map(|n| budget.share(&pod(1), &container(n), LIMITS).unwrap()).collect();
        let kept: usize = shares.iter().map(|share| share.keep(1 << 20)).sum();
        assert_eq!(kept, (1 << 20) + 9 * GUARANTEED);
        let other = budget.share(&pod(2), &container(20), LIMITS).unwrap();
        assert_eq!(other.keep(1 << 20), 1 << 20);
    }

    #[test]
    fn commands_per_container_are_limited() {
        let budget = Arc::new(ExecBudget::default());
        let mut all: Vec<_> =
            (0..COMMANDS_MAX).map(|_| budget.share(&pod(1), &container(1), LIMITS).unwrap()).collect();
        assert!(budget.share(&pod(1), &container(1), LIMITS).is_none());
        assert!(budget.share(&pod(1), &container(2), LIMITS).is_some());
        all.pop();
        assert!(budget.share(&pod(1), &container(1), LIMITS).is_some());
        all.clear();
        let held = budget.held.lock();
        assert!(held.total == 0 && held.pods.is_empty() && held.commands.is_empty(), "{held:?}");
    }
}
