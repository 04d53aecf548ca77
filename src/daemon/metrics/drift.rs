//! Metrics of limits that another program changed.

use super::text::{Exposition, Kind};
use crate::runtime::{DriftingLimits, ResizeOutcomes};

/// The maximum number of pods and containers that are named.
const NAMED_MAX: usize = 100;

pub(super) fn write(text: &mut Exposition, resizes: &ResizeOutcomes, drifting: &[DriftingLimits]) {
    let found = "Number of times that crisp found a cgroup limit that something else had changed.";
    text.family("crisp_resource_drift_total", Kind::Counter, found).sample(&[], resizes.drifted());
    let now = "Pods and containers whose limits currently differ from what crisp applied.";
    text.family("crisp_resource_drifting", Kind::Gauge, now).sample(&[], resizes.drifting());
    let files = "Cgroup files that currently differ from what crisp applied, by container; without a container those of \
                 the pod itself. At most 100 are named; the rest is other.";
    let mut family = text.family("crisp_resource_drifting_files", Kind::Gauge, files);
    let (named, rest) = drifting.split_at(drifting.len().min(NAMED_MAX));
    for DriftingLimits { namespace, pod, container, files } in named {
        family.sample(&[("namespace", namespace), ("pod", pod), ("container", container)], files);
    }
    if !rest.is_empty() {
        let files: usize = rest.iter().map(|drift| drift.files).sum();
        family.sample(&[("namespace", "other"), ("pod", "other"), ("container", "other")], files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drifting(pod: String) -> DriftingLimits {
        DriftingLimits { namespace: "prod".to_owned(), pod, container: "web".to_owned(), files: 2 }
    }

    #[test]
    fn containers_beyond_the_limit_are_one_sample() {
        let mut text = Exposition::default();
        let many: Vec<_> = (0..NAMED_MAX + 3).map(|number| drifting(format!("pod{number}"))).collect();
        write(&mut text, &ResizeOutcomes::default(), &many);
        let text = String::from(text);
        assert!(text.contains("\ncrisp_resource_drift_total 0\n") && text.contains("\ncrisp_resource_drifting 0\n"));
        let family = "\ncrisp_resource_drifting_files{namespace=";
        assert_eq!(text.matches(family).count(), NAMED_MAX + 1);
        assert!(text.contains(&format!("{family}\"prod\",pod=\"pod0\",container=\"web\"}} 2\n")), "{text}");
        assert!(text.contains(&format!("{family}\"other\",pod=\"other\",container=\"other\"}} 6\n")), "{text}");
    }
}
