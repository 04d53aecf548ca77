//! Changes of resources in place.

use super::text::{Kind, Text};
use crate::runtime::{Outcome, Resizes};

pub(super) fn tell(text: &mut Text, resizes: &Resizes) {
    let ended = "Changes of the resources of running pods and containers that ended, by how they did.";
    let mut family = text.family("crisp_resizes_total", Kind::Counter, ended);
    for outcome in Outcome::ALL {
        family.sample(&[("outcome", outcome.word())], resizes.counted(outcome));
    }
    let found = "Files of cgroups found to hold something that crisp did not write.";
    text.family("crisp_resource_drift_total", Kind::Counter, found).sample(&[], resizes.drifted());
    let now = "Pods and containers with such a file, as far as anybody looked.";
    text.family("crisp_resource_drifting", Kind::Gauge, now).sample(&[], resizes.drifting());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_told_also_before_it_happens() {
        let mut text = Text::default();
        tell(&mut text, &Resizes::default());
        let text = String::from(text);
        for outcome in ["applied", "unchanged", "refused", "below_usage", "rolled_back", "left"] {
            assert!(text.contains(&format!("crisp_resizes_total{{outcome=\"{outcome}\"}} 0\n")), "{text}");
        }
        assert!(text.contains("\ncrisp_resource_drift_total 0\n") && text.contains("\ncrisp_resource_drifting 0\n"));
    }
}
