//! Pods that run during other measurements, and their memory.

use cri_api::v1;

use super::args::BenchArgs;
use super::lifecycle::{READY, add, make};
use super::report::results::{Figures, Unit};
use super::runtime::Runtime;

pub(super) const DAEMON: &str = "daemon memory (PSS)";
pub(super) const SHIM: &str = "shim memory of a pod (PSS)";
pub(super) const SHIM_PRIVATE: &str = "shim memory of a pod (private)";
pub(super) const PROGRAM_SIZE: &str = "daemon program";
pub(super) const FRESH: &str = "daemon memory without pods (PSS)";

/// Adds pods until there are `pods`, each with `containers`. Records ready times in `figures`;
/// stops at the first failure.
pub(super) async fn grow(runtime: &mut Runtime, figures: &mut Figures, pods: usize, containers: u32) {
    while runtime.pods.len() < pods {
        let name = format!("herd-{}", runtime.pods.len());
        let Runtime { client, shape, .. } = runtime;
        let Some(mut pod) = Box::pin(make(client, figures, shape, &name)).await else { return };
        for number in 1..containers {
            let (sandbox, container) = (shape.pod(&name), shape.idle(&format!("more-{number}")));
            let mut rest = Figures::default();
            if Box::pin(add(client, &mut rest, &mut pod, sandbox, container)).await.is_none() {
                figures.fail(READY, Unit::Ms, &"a further container failed");
            }
        }
        runtime.pods.push(pod);
    }
}

/// Creates the pods for other measurements, and measures the daemon's memory before. Returns whether each runtime has
/// all of them; without, the figures of one runtime would be for fewer containers than those of another.
pub(super) async fn create_all(plan: &BenchArgs, runtimes: &mut [Runtime]) -> bool {
    for runtime in runtimes.iter_mut().filter(|runtime| runtime.pods.is_empty()) {
        // Pods that are not of the benchmark would count.
        let pods = runtime.client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await;
        if pods.is_ok_and(|pods| pods.into_inner().items.is_empty()) {
            let fresh = runtime.family.memory(&[]).map(|memory| memory.daemon);
            runtime.figures.note(FRESH, Unit::MB, fresh);
        }
        let mut figures = Figures::default();
        Box::pin(grow(runtime, &mut figures, plan.pods as usize, plan.containers)).await;
        // Ready times are measured by other parts; only failures are recorded here.
        runtime.figures.add_failures(&figures);
    }
    runtimes.iter().all(|runtime| runtime.pods.len() == plan.pods as usize)
}

/// Measures the memory of the daemon, and of the shim processes per pod.
pub(super) fn measure_memory(runtime: &Runtime, figures: &mut Figures) {
    let memory = runtime.family.memory(&runtime.ids());
    let pods = u32::try_from(runtime.pods.len()).unwrap_or(u32::MAX).max(1);
    figures.note(DAEMON, Unit::MB, memory.as_ref().map(|memory| memory.daemon));
    figures.note(SHIM, Unit::MB, memory.as_ref().map(|memory| memory.others / f64::from(pods)));
    figures.note(SHIM_PRIVATE, Unit::MB, memory.as_ref().map(|memory| memory.others_private / f64::from(pods)));
    figures.note(PROGRAM_SIZE, Unit::MB, runtime.family.program_size());
}
