//! UpdatePodSandboxResources: see [`crate::runtime::resize`] for the transaction.

use std::sync::Arc;

use cgroup::{AppliedValues, Cgroup};
use model::PodUpdate;
use model::resources::LimitsPatch;

use super::limits;
use crate::runtime::resize::caller::Caller;
use crate::runtime::resize::finished::ResizeTarget;
use crate::runtime::resize::journal;
use crate::runtime::resize::transaction::{Resizable, UpdateError};
use crate::runtime::{LookupError, Runtime, blocking};
use crate::store::PodRecord;

impl Resizable for PodRecord {
    type Update = PodUpdate;
    const WHAT: &'static str = "pod";

    fn limits(&self, update: &mut PodUpdate, group: &Cgroup) -> LimitsPatch {
        let mut spec = self.spec.clone();
        update.apply_to(&mut spec);
        let mut limits = limits::of(&spec);
        journal::drop_unified_on_v1("resources", group.layout().version(), &mut limits);
        limits
    }

    fn apply_update(&mut self, update: &PodUpdate) {
        update.apply_to(&mut self.spec);
    }

    fn applied(&self) -> &AppliedValues {
        &self.applied
    }

    fn applied_mut(&mut self) -> &mut AppliedValues {
        &mut self.applied
    }

    fn target(&self, _runtime: &Runtime) -> ResizeTarget {
        ResizeTarget::new(self.id.clone(), Some(self.spec.meta.clone()), None)
    }

    /// The cgroup of a stopped pod may be removed.
    fn may_lack_cgroup(&self) -> bool {
        true
    }
}

impl Runtime {
    /// Records the resources of a pod, and limits its cgroup if crisp created it: a client limits its own.
    pub(crate) async fn update_pod(
        self: &Arc<Self>,
        id: &str,
        update: PodUpdate,
        caller: Caller,
    ) -> Result<(), UpdateError> {
        let entry = self.readable_pod(id)?;
        let _turn = entry.lock_resources().await;
        if !self.pods.has(&entry) {
            return Err(LookupError::NoSuchPod(id.to_owned()).into());
        }
        let record = entry.get();
        if record.cgroup.ours {
            return self.resize(&entry, update, caller).await;
        }
        let mut spec = record.spec.clone();
        update.apply_to(&mut spec);
        if spec == record.spec {
            return Ok(());
        }
        let (runtime, pod) = (self.clone(), entry.clone());
        let recorded = blocking(move || pod.try_update(&runtime.layout, |record| record.spec = spec)).await;
        recorded.map_err(|error| UpdateError::new(&*record, error.into()))
    }
}
